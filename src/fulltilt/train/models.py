"""Small models that come with the package: enough to try a configuration with, not more."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


class Mlp(nn.Sequential):
    """Fully connected layers on flattened inputs."""

    def __init__(self, inputs: int, outputs: int, hidden: int = 128, layers: int = 2, dropout: float = 0.0) -> None:
        parts: list[nn.Module] = [nn.Flatten()]
        width = inputs
        for _ in range(layers):
            parts += [nn.Linear(width, hidden), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
            width = hidden
        super().__init__(*parts, nn.Linear(width, outputs))


class SmallCnn(nn.Module):
    """Convolutions that halve the image four times, then one score per class."""

    def __init__(self, classes: int, channels: int = 3, width: int = 16) -> None:
        super().__init__()
        widths = [channels, width, 2 * width, 4 * width, 4 * width]
        self.features = nn.Sequential(*(_block(before, after, stride=2) for before, after in pairwise(widths)))
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).mean((-2, -1)))  # type: ignore[no-any-return]


class SmallUnet(nn.Module):
    """Down, up and across; scores of the image's own size. Sides must be multiples of 4."""

    def __init__(self, classes: int = 1, channels: int = 3, width: int = 16) -> None:
        super().__init__()
        self.first = _block(channels, width)
        self.second = _block(width, 2 * width, stride=2)
        self.third = _block(2 * width, 4 * width, stride=2)
        self.up_second = _block(4 * width + 2 * width, 2 * width)
        self.up_first = _block(2 * width + width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        first = self.first(images)
        second = self.second(first)
        third = self.third(second)
        second = self.up_second(torch.cat([_doubled(third), second], 1))
        first = self.up_first(torch.cat([_doubled(second), first], 1))
        return self.head(first)  # type: ignore[no-any-return]


def _block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


def _doubled(images: Tensor) -> Tensor:
    return nn.functional.interpolate(images, scale_factor=2.0, mode="nearest")
