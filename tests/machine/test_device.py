"""The device that is meant by a name."""

from __future__ import annotations

import pytest
import torch

from fulltilt.errors import InputError, UnavailableError
from fulltilt.machine.device import named_device


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch would tell of them; the second is the current one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("name", "expected"),
    [("auto", "cuda:1"), ("cuda", "cuda:1"), ("cuda:0", "cuda:0"), (torch.device("cuda:0"), "cuda:0"), ("cpu", "cpu")],
)
def test_a_gpu_has_its_number(name: str | torch.device, expected: str) -> None:
    assert named_device(name) == torch.device(expected)


@pytest.mark.usefixtures("two_gpus")
def test_a_model_that_is_on_a_gpu_stays_there() -> None:
    assert named_device("auto", torch.device("cuda:0")) == torch.device("cuda:0")
    assert named_device("auto", torch.device("cpu")) == torch.device("cuda:1")


@pytest.mark.usefixtures("two_gpus")
def test_what_is_not_there_is_said() -> None:
    with pytest.raises(UnavailableError, match="device='cuda:2': torch sees 2 GPUs here, from cuda:0 on"):
        named_device("cuda:2")
    with pytest.raises(InputError, match="device='gpu' is unknown; allowed: 'auto'"):
        named_device("gpu")
    with pytest.raises(InputError, match="device='meta' is neither the CPU nor an NVIDIA GPU"):
        named_device("meta")


def test_without_a_gpu_auto_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert named_device("auto") == torch.device("cpu")
    with pytest.raises(UnavailableError, match="sees no NVIDIA GPU"):
        named_device("cuda")
