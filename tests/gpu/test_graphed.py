"""Graphs of a model's forward and backward on a GPU: the same steps, batches pinned and copied meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fulltilt.launch.apply.graphed import Graphed
from fulltilt.launch.apply.tried import Refused

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda", 0)


class Net(nn.Module):
    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for width in (3, 16, 16):
            parts += [nn.Conv2d(width, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)]
        self.body = nn.Sequential(*parts)
        self.drop, self.head = nn.Dropout(drop), nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.drop(self.body(images).mean((2, 3))))  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def the_same_each_time() -> Iterator[None]:
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield


@pytest.fixture
def busy() -> Iterator[None]:
    """Another thread pins and copies, as loaders do."""
    ends = threading.Event()

    def work() -> None:
        stream: Any = torch.cuda.Stream()
        while not ends.is_set():
            with torch.cuda.stream(stream):
                torch.ones(64, 64, 33).pin_memory().cuda(non_blocking=True)
            stream.synchronize()

    thread = threading.Thread(target=work)
    thread.start()
    yield
    ends.set()
    thread.join()


def trained(net: Net, call: Any, *, accumulate: int, half: bool) -> list[float]:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(12):
        images = torch.randn(8, 3, 16, 16, device=DEVICE).contiguous(memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            output = call(images)
        loss = nn.functional.cross_entropy(output.float(), torch.arange(8, device=DEVICE))
        loss.backward()
        if step % accumulate == accumulate - 1:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.usefixtures("busy")
def test_the_same_steps(accumulate: int, half: bool) -> None:
    torch.manual_seed(0)
    nets = [Net().to(DEVICE, memory_format=torch.channels_last) for _ in range(2)]  # type: ignore[call-overload]
    nets[1].load_state_dict(nets[0].state_dict())
    graphs: list[Graphed] = []

    def call(images: Tensor) -> Any:
        def plain(given: Tensor) -> Any:
            with torch.autocast("cuda", torch.bfloat16, enabled=half, cache_enabled=False):
                return nets[1](given)

        if not graphs:
            graphs.append(Graphed(nets[1], plain, (images,), {}, device=DEVICE))
        assert graphs[0].fits(nets[1], (images,), {})
        return graphs[0]((images,), {})

    known = trained(nets[0], nets[0], accumulate=accumulate, half=half)
    found = trained(nets[1], call, accumulate=accumulate, half=half)
    torch.testing.assert_close(found, known, rtol=2e-2 if half else 1e-4, atol=1e-4)
    assert found[-1] < found[0]
    for name, buffer in nets[0].named_buffers():
        torch.testing.assert_close(dict(nets[1].named_buffers())[name], buffer, rtol=2e-2, atol=1e-3)


def test_dropout_draws_anew() -> None:
    net = Net(drop=0.5).to(DEVICE)
    images = torch.randn(8, 3, 16, 16, device=DEVICE)
    state = torch.cuda.get_rng_state()
    graph = Graphed(net, net, (images,), {}, device=DEVICE)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    outputs = []
    for _ in range(2):
        outputs.append(graph((images,), {}))
        outputs[-1].sum().backward()
    assert not torch.equal(*outputs)


def test_a_model_that_waits_for_the_device_is_left_alone() -> None:
    class Waits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, given: Tensor) -> Tensor:
            return self.layer(given) * (2.0 if given.sum().item() > 0 else 1.0)  # type: ignore[no-any-return]

    net = Waits().to(DEVICE)
    with pytest.raises(Refused, match="waits for the device"):
        Graphed(net, net, (torch.ones(2, 4, device=DEVICE),), {}, device=DEVICE)
    assert torch.rand(1, device=DEVICE) >= 0  # random numbers are still to be had
