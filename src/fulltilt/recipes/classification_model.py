"""A residual network for small pictures."""

from __future__ import annotations

from torch import Tensor, nn


class Classifier(nn.Module):
    """A residual network of two convolutions to a block, halving the picture from group to group."""

    def __init__(
        self, classes: int = 8, channels: int = 1, width: int = 64, blocks: tuple[int, ...] = (2, 2, 2, 2)
    ) -> None:
        super().__init__()
        stem = nn.Conv2d(channels, width, 5, stride=2, padding=2, bias=False)
        self.stem = nn.Sequential(stem, nn.BatchNorm2d(width), nn.ReLU())
        parts: list[nn.Module] = []
        before = width
        for group, number in enumerate(blocks):
            after = width * min(2**group, 8)
            for block in range(number):
                parts.append(_Block(before, after, stride=2 if group and not block else 1))
                before = after
        self.blocks = nn.Sequential(*parts)
        self.head = nn.Linear(before, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(images)).mean((-2, -1)))  # type: ignore[no-any-return]


class _Block(nn.Module):
    def __init__(self, before: int, after: int, *, stride: int) -> None:
        super().__init__()
        self.way = nn.Sequential(
            nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
        )
        same = before == after and stride == 1
        self.past = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(before, after, 1, stride=stride, bias=False), nn.BatchNorm2d(after))
        )

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.relu(self.way(images) + self.past(images))
