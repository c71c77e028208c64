"""What is trained, and one step of it."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  as it is written everywhere

from fulltilt.errors import FulltiltError
from fulltilt.machine.software import is_installed

CLASSES = 1000


class Step:
    """Forward, loss, backward, optimizer."""

    def __init__(self, model: nn.Module, device: str, *, half: bool, compiled: bool) -> None:
        self._device, self._half = device, half
        model = model.to(device)
        if half:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=device != "cpu" or None)
        self._forward = cast("nn.Module", torch.compile(model)) if compiled else model
        self._loss: Tensor | None = None

    def __call__(self, images: Tensor, labels: Tensor) -> None:
        with torch.autocast(self._device, torch.bfloat16, enabled=self._half):
            out = self._forward(images)
            if labels.ndim == out.ndim:  # masks with a channel of their own
                labels = labels.squeeze(1)
            loss = F.cross_entropy(out.float(), labels.long())
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        # Without its history, which a CUDA graph captured later must not meet: it belongs to another stream.
        self._loss = loss.detach()

    def check(self) -> None:
        """A rate of training that has gone wrong is no figure. Waits for the device."""
        if self._loss is not None and not bool(self._loss.isfinite()):
            raise FulltiltError(f"the loss is {float(self._loss)}: what was fed, or the model, is wrong")


class GraphedStep:
    """A whole step as one CUDA graph: for models so small that launching their kernels takes longer than they do."""

    def __init__(self, step: Step, images: Tensor, labels: Tensor) -> None:
        self._images, self._labels = images.clone(), labels.clone()
        self.check = step.check
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step(self._images, self._labels)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            step(self._images, self._labels)

    def __call__(self, images: Tensor, labels: Tensor) -> None:
        self._images.copy_(images)
        self._labels.copy_(labels)
        self._graph.replay()


def resnet50() -> tuple[nn.Module, bool]:
    """torchvision's where it can be imported, else the same layers written out; and whether it is torchvision's."""
    if is_installed("torchvision"):
        try:
            from torchvision.models import resnet50 as theirs

            return cast("nn.Module", theirs()), True
        except (ImportError, RuntimeError):
            pass  # built for another torch: ours is the same network
    return _resnet50(), False


def small_classifier() -> nn.Module:
    """For machines without a GPU."""
    return nn.Sequential(
        _conv(3, 8, 3, stride=2), nn.ReLU(), _conv(8, 16, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES),
    )  # fmt: skip


def window_classifier() -> nn.Module:
    """A small CNN on windows of 24 steps × 16 channels."""
    return nn.Sequential(
        nn.Conv1d(24, 32, 3, padding=1), nn.ReLU(), nn.Conv1d(32, 64, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


class UNet(nn.Module):
    """Four levels down and up."""

    def __init__(self, base: int, classes: int = 4) -> None:
        super().__init__()
        widths = [base << level for level in range(5)]
        self.down = nn.ModuleList(
            _double(before, after) for before, after in zip([3, *widths[:-1]], widths, strict=True)
        )
        pairs = list(zip(widths[1:], widths[:-1], strict=True))[::-1]
        self.up = nn.ModuleList(nn.ConvTranspose2d(wide, narrow, 2, stride=2) for wide, narrow in pairs)
        self.join = nn.ModuleList(_double(2 * narrow, narrow) for _, narrow in pairs)
        self.head = nn.Conv2d(base, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for level, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if level else x)
            kept.append(x)
        kept.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([up(x), kept.pop()], 1))
        return cast("Tensor", self.head(x))


class _Bottleneck(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.body = nn.Sequential(
            _conv(before, width, 1), nn.ReLU(), _conv(width, width, 3, stride), nn.ReLU(), _conv(width, after, 1)
        )
        self.past: Any = nn.Identity() if before == after and stride == 1 else _conv(before, after, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.past(x))


def _resnet50() -> nn.Module:
    layers: list[nn.Module] = [_conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for level, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << level
        for block in range(blocks):
            layers.append(_Bottleneck(before, width, stride=2 if level and not block else 1))
            before = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, CLASSES))


def _conv(before: int, after: int, kernel: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=False), nn.BatchNorm2d(after)
    )


def _double(before: int, after: int) -> nn.Module:
    return nn.Sequential(_conv(before, after, 3), nn.ReLU(), _conv(after, after, 3), nn.ReLU())
