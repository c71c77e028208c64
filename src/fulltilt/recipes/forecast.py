"""Fine dust some hours ahead, from windows of what sensors have read: regression with a CNN over time × sensors.

    readings: hours × quantities × sensors ──► windows: quantities × hours × sensors ──► dust at each sensor, later

`windows` gives tensors, which a feed keeps on the device: a batch is one gather. `WindowDataset` gives the same samples
one by one, for a DataLoader.
"""

from __future__ import annotations

import logging
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from fulltilt.errors import InputError
from fulltilt.recipes.forecast_data import Readings, simulate
from fulltilt.recipes.forecast_files import read_once
from fulltilt.words import disk_size

log = logging.getLogger("fulltilt.recipes")

_ROUNDING: Final = 1e-6
"""A deviation of so small a part of the mean is none: it is float32's own."""
_NOTHING: Final = 1e-12
"""And so is one that no unit makes of what changes."""

Split = Literal["train", "val"]


def windows(
    split: Split,
    *,
    path: str | None = None,
    target: str = "pm25",
    hours: int = 87_600,
    sensors: int = 32,
    seed: int = 0,
    window: int = 72,
    horizon: int = 6,
    val_share: float = 0.2,
) -> tuple[Tensor, Tensor]:
    """Windows (N × quantities × hours × sensors) and, for each, the target `horizon` hours after it (N × sensors).

    Windows are views of one tensor, however much they overlap. The last hours are for validation: windows of both parts
    have no hour in common. Everything is scaled to mean 0 and deviation 1, as the hours for training have them; a
    quantity that does not change in these keeps its deviation.

    Windows whose target was not read at every sensor are left out; the others are copies, then.

    Args:
        path: a folder or CSV of readings (forecast_files.py); without one, they are generated.
        target: the quantity that is forecast.
        hours, sensors, seed: of what is generated.
    """
    if split not in ("train", "val"):
        raise InputError(f"split is {split!r}; it can be 'train' or 'val'")
    readings = simulate(hours, sensors, seed) if path is None else read_once(Path(path))
    if target not in readings.quantities:
        raise InputError(f"target is {target!r}; the readings have {', '.join(readings.quantities)}")
    values, border = _scaled(readings, val_share)
    part = values[:border] if split == "train" else values[border:]
    count = len(part) - window - horizon + 1
    if window < 1 or horizon < 1 or count < 1:
        raise InputError(
            f"{len(part)} hours for {split} hold no window of {window} with a target {horizon} hours after it; "
            "both are at least 1, and together at most as many"
        )
    inputs = part[: count + window - 1].unfold(0, window, 1).movedim(-1, 2)
    targets = part[window + horizon - 1 :, readings.quantities.index(target)]
    whole = readings.can_be_target(target)
    kept = torch.from_numpy((whole[:border] if split == "train" else whole[border:])[window + horizon - 1 :])
    if split == "train":
        for note in readings.notes:
            log.warning("%s: %s", path, note)
    if kept.all():
        return inputs, targets
    if not kept.any():
        raise InputError(
            f"{path}: no window for {split} has a target: in none of its {count} hours have all sensors read {target}. "
            f"{readings.most_missing(target)}; leave it out, or the time in which little was read"
        )
    told = "%s: %d of %d windows for %s have a target that was read; copies of them take %s"
    log.info(told, path, int(kept.sum()), count, split, disk_size(int(kept.sum()) * inputs[0].nbytes))
    return inputs[kept], targets[kept]


def _scaled(readings: Readings, val_share: float) -> tuple[Tensor, int]:
    """The values, and the hour with which validation begins."""
    if not 0 < val_share < 1:
        raise InputError(f"val_share is {val_share}; it must be between 0 and 1")
    values = readings.values
    border = round(len(values) * (1 - val_share))
    known = values[:border]
    mean, deviation = (of((0, 2), keepdims=True, dtype=np.float64) for of in (known.mean, known.std))
    still = deviation <= np.maximum(_ROUNDING * np.abs(mean), _NOTHING)  # in training: it may yet change in validation
    return torch.from_numpy(((values - mean) / np.where(still, 1, deviation)).astype(np.float32)), border


class WindowDataset(Dataset[tuple[Tensor, Tensor]]):
    """The same windows as an ordinary data set, sample by sample."""

    def __init__(self, split: Split, **options: Any) -> None:
        self._inputs, self._targets = windows(split, **options)

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._inputs[index].contiguous(), self._targets[index]


class SensorCnn(nn.Module):
    """Convolutions over time × sensors, half the hours after each; then a number for each sensor.

    Sensors are told apart by a vector of their own, which is learnt: they stand at different streets. The last hour's
    readings go straight to the result, so that the rest has only to find the change.
    """

    def __init__(
        self,
        sensors: int,
        window: int,
        quantities: int = 4,
        widths: tuple[int, ...] = (32, 64, 128),
        hidden: int = 64,
    ) -> None:
        super().__init__()
        if window % 2 ** len(widths):
            raise InputError(
                f"window is {window}; with {len(widths)} layers it must be a multiple of {2 ** len(widths)}"
            )
        self.blocks = nn.Sequential(*(_block(*pair) for pair in pairwise((quantities, *widths))))
        self.place = nn.Parameter(torch.zeros(1, widths[-1], 1, sensors))
        self.last = nn.Conv2d(quantities, 1, 1)
        left = window // 2 ** len(widths)
        self.head = nn.Sequential(
            nn.Conv2d(widths[-1], hidden, (left, 1)), nn.ReLU(), nn.Conv2d(hidden, 1, 1), nn.Flatten()
        )

    def forward(self, windows: Tensor) -> Tensor:
        change = self.head(self.blocks(windows) + self.place)
        return change.float() + self.last(windows[:, :, -1:]).flatten(1).float()  # type: ignore[no-any-return]


def _block(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
        nn.Conv2d(after, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
        nn.MaxPool2d((2, 1)),
    )  # fmt: skip
