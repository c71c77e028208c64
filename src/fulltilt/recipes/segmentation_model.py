"""A U-Net that is also told what a picture is like, BCE + Dice, IoU."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics.classification import BinaryJaccardIndex


class Unet(nn.Module):
    """Down, up and across. Features scale and shift what goes up, on every level; logits are N×H×W, as masks are."""

    def __init__(self, features: int = 4, channels: int = 3, width: int = 32, depth: int = 4) -> None:
        """
        Args:
            features: numbers that come with each picture; 0: none do.
            depth: how often the picture is halved; its sides must be multiples of 2 ** depth.
        """
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.first = _twice(channels, width)
        self.down = nn.ModuleList(_twice(before, after) for before, after in pairwise(widths))
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(after, before, 2, stride=2) for before, after in reversed(list(pairwise(widths)))
        )
        self.join = nn.ModuleList(_twice(2 * before, before) for before in reversed(widths[:-1]))
        self.told = None
        self._going_up = widths[::-1]
        if features:
            told = nn.Linear(64, 2 * sum(widths))
            nn.init.zeros_(told.weight)  # begins as a U-Net that is told nothing
            nn.init.zeros_(told.bias)
            self.told = nn.Sequential(nn.BatchNorm1d(features), nn.Linear(features, 64), nn.ReLU(), told)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, images: Tensor, features: Tensor | None = None) -> Tensor:
        seen = [self.first(images)]
        for block in self.down:
            seen.append(block(functional.max_pool2d(seen[-1], 2)))
        levels = self._levels(features)
        here = _changed(seen.pop(), levels[0])
        for up, join, level in zip(self.up, self.join, levels[1:], strict=True):
            here = _changed(join(torch.cat([up(here), seen.pop()], dim=1)), level)
        return self.head(here).squeeze(1)  # type: ignore[no-any-return]

    def _levels(self, features: Tensor | None) -> tuple[Tensor | None, ...]:
        if self.told is None or features is None:
            return (None,) * len(self._going_up)
        return self.told(features)[:, :, None, None].split([2 * width for width in self._going_up], dim=1)  # type: ignore[no-any-return]


def _changed(images: Tensor, by: Tensor | None) -> Tensor:
    if by is None:
        return images
    scale, shift = by.chunk(2, dim=1)
    return images * (1 + scale) + shift


def _twice(before: int, after: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for inputs in (before, after):
        parts += [nn.Conv2d(inputs, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*parts)


def bce_dice(outputs: Tensor, masks: Tensor) -> Tensor:
    """Binary cross entropy and 1 − Dice, added. Anything but 0 in a mask is what is searched for, be it 1 or 255."""
    logits = outputs.float()  # sums over a picture need more than 16 bits
    target = (masks > 0).float().view_as(logits)
    shares = logits.sigmoid()
    overlap = (shares * target).flatten(1).sum(1)
    dice = (2 * overlap + 1) / (shares.flatten(1).sum(1) + target.flatten(1).sum(1) + 1)
    return functional.binary_cross_entropy_with_logits(logits, target) + 1 - dice.mean()


class Iou(BinaryJaccardIndex):
    """Intersection over union, for masks of 0 and 255 as well."""

    def update(self, preds: Tensor, target: Tensor) -> None:
        super().update(preds, (target > 0).long().view_as(preds))
