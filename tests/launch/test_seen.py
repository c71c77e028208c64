"""What an observation says of the model and of torch's own settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fulltilt.launch.job import Job
from fulltilt.launch.launches import Launched
from fulltilt.launch.seen import start_seconds, training
from fulltilt.launch.watch import Watch


@pytest.fixture
def matmul() -> Iterator[object]:
    found = torch.backends.cuda.matmul
    before = found.fp32_precision
    yield found
    found.fp32_precision = before


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    found = Watch(Job(out=str(tmp_path)))
    found.model = torch.nn.Linear(2, 2)
    found.optimizer = torch.optim.SGD(found.model.parameters(), lr=0.1)
    return found


@pytest.mark.parametrize(("name", "value"), [("allow_tf32", True), ("fp32_precision", "tf32")])
def test_tf32_is_seen_by_whichever_name_it_was_set(matmul: object, name: str, value: object, watch: Watch) -> None:
    matmul.fp32_precision = "ieee"  # type: ignore[attr-defined]
    found = training(watch)
    assert found is not None
    assert not found.tf32
    setattr(matmul, name, value)
    found = training(watch)
    assert found is not None
    assert found.tf32


@pytest.mark.parametrize(("graphs", "seconds"), [(0, 0.004), (1, None)])
def test_kernels_that_a_graph_may_hide_are_not_added_up(watch: Watch, graphs: int, seconds: float | None) -> None:
    watch.launched = Launched(count=20, graphs=graphs, kernel_seconds=0.004)
    found = training(watch)
    assert found is not None
    assert (found.launches, found.kernel_seconds) == (20, seconds)


def test_workers_that_live_on_are_started_once() -> None:
    waits = [3_000_000_000, 200_000_000, 400_000_000]
    assert start_seconds([], live_on=True, making=0.1) is None
    assert start_seconds(waits, live_on=False, making=0.1) == 0.4
    assert start_seconds(waits, live_on=True, making=0.1) == pytest.approx(0.3)
    assert start_seconds(waits[:1], live_on=True, making=0.1) == 0.1, "what a worker needs for a batch"
    assert start_seconds(waits[:1], live_on=True, making=5.0) == 3.0
    assert start_seconds(waits[:1], live_on=True, making=0.0) == 3.0, "unknown"
