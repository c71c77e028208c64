"""Fine dust some hours ahead, from windows of what sensors have read: regression with a CNN over time × sensors.

    readings: hours × quantities × sensors ──► windows: quantities × hours × sensors ──► dust at each sensor, later

`windows` gives tensors, which a feed keeps on the device: a batch is one gather. `WindowDataset` gives the same samples
one by one, for a DataLoader. `latest` gives what is forecast from once the model is trained.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from fulltilt.errors import InputError
from fulltilt.recipes.forecast_data import Readings, simulate
from fulltilt.recipes.forecast_files import read_once
from fulltilt.words import disk_size

log = logging.getLogger("fulltilt.recipes")

WINDOW: Final = 72
HORIZON: Final = 6
VAL_SHARE: Final = 0.2
"""What `windows` takes, unless something else is said."""
_WIDTHS: Final = (32, 64, 128)
MULTIPLE: Final[int] = 2 ** len(_WIDTHS)
"""What the model asks of a window: each layer halves it."""
_ROUNDING: Final = 1e-6
"""A deviation of so small a part of the mean is none: it is float32's own."""
_NOTHING: Final = 1e-12
"""And so is one that no unit makes of what changes."""

Split = Literal["train", "val"]


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """What was taken off each quantity, and what it was divided by then."""

    quantities: Sequence[str]
    target: str
    """The quantity of the model's outputs."""
    mean: Sequence[float]
    """Of each quantity in the hours for training, in its own unit."""
    deviation: Sequence[float]
    """Likewise; 1 where it does not change."""

    def of_target(self, outputs: Tensor) -> Tensor:
        """What the model's outputs are in the target's own unit."""
        at = self.quantities.index(self.target)
        return outputs * self.deviation[at] + self.mean[at]

    def scaled(self, values: NDArray[np.float32]) -> Tensor:
        """Hours × quantities × sensors, as the model sees them."""
        mean, deviation = (np.reshape(of, (1, -1, 1)) for of in (self.mean, self.deviation))
        return torch.from_numpy(((values - mean) / deviation).astype(np.float32))


def windows(
    split: Split,
    *,
    path: str | None = None,
    target: str = "pm25",
    hours: int = 87_600,
    sensors: int = 32,
    seed: int = 0,
    window: int = WINDOW,
    horizon: int = HORIZON,
    val_share: float = VAL_SHARE,
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
    begin = border(len(readings.values), val_share)
    values = _scaling(readings, target, begin).scaled(readings.values)
    part = values[:begin] if split == "train" else values[begin:]
    count = len(part) - window - horizon + 1
    if window < 1 or horizon < 1 or count < 1:
        raise InputError(
            f"{len(part)} hours for {split} hold no window of {window} with a target {horizon} hours after it; "
            "both are at least 1, and together at most as many"
        )
    inputs = part[: count + window - 1].unfold(0, window, 1).movedim(-1, 2)
    targets = part[window + horizon - 1 :, readings.quantities.index(target)]
    training, held_out = with_target(readings, target, window=window, horizon=horizon, val_share=val_share)
    kept = torch.from_numpy(training if split == "train" else held_out)
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


def latest(
    *,
    path: str | None = None,
    target: str = "pm25",
    hours: int = 87_600,
    sensors: int = 32,
    seed: int = 0,
    window: int = WINDOW,
    horizon: int = HORIZON,
    val_share: float = VAL_SHARE,
    scaling: Scaling | None = None,
) -> tuple[Tensor, Scaling]:
    """The newest window (1 × quantities × hours × sensors), whose target is not known yet, and how it was scaled.

    With the options that `windows` had for training, it is scaled as then:

        inputs, scaling = latest(**options)
        scaling.of_target(model(inputs))    # 1 × sensors, `horizon` hours after the last one, in the target's unit

    Args:
        scaling: of the training, where readings have been added or replaced since; it would be another one now.
    """
    readings = simulate(hours, sensors, seed) if path is None else read_once(Path(path))
    found = len(readings.values)
    if horizon < 1 or not 1 <= window <= found:
        raise InputError(f"window is {window} and horizon {horizon}, of {found} hours; both are at least 1")
    for note in readings.notes:
        log.warning("%s: %s", path, note)
    if scaling is None:
        scaling = _scaling(readings, target, border(found, val_share))
    elif tuple(scaling.quantities) != readings.quantities:
        had, has = (", ".join(names) for names in (scaling.quantities, readings.quantities))
        raise InputError(f"{path}: the scaling is of {had}, and the readings have {has}; they must be the same")
    return scaling.scaled(readings.values[-window:]).movedim(0, 1)[None], scaling


def border(hours: int, val_share: float = VAL_SHARE) -> int:
    """The hour with which validation begins."""
    if not 0 < val_share < 1:
        raise InputError(f"val_share is {val_share}; it must be between 0 and 1")
    return round(hours * (1 - val_share))


def with_target(
    readings: Readings, target: str, *, window: int, horizon: int = HORIZON, val_share: float = VAL_SHARE
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Of each window to train on, and of each to validate with, whether its target was read at every sensor."""
    whole, lead = readings.can_be_target(target), window + horizon - 1
    begin = border(len(whole), val_share)
    return whole[lead:begin], whole[begin + lead :]


def _scaling(readings: Readings, target: str, hours: int) -> Scaling:
    """Of the hours to train on, which are the first."""
    if target not in readings.quantities:
        raise InputError(f"target is {target!r}; the readings have {', '.join(readings.quantities)}")
    known = readings.values[:hours]
    mean, deviation = (of((0, 2), dtype=np.float64) for of in (known.mean, known.std))
    still = deviation <= np.maximum(_ROUNDING * np.abs(mean), _NOTHING)  # in training: it may yet change in validation
    return Scaling(
        quantities=readings.quantities,
        target=target,
        mean=mean.tolist(),
        deviation=np.where(still, 1, deviation).tolist(),
    )


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
        widths: tuple[int, ...] = _WIDTHS,
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
