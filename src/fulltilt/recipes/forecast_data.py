"""Hourly readings of sensors along a valley, generated: fine dust, wind, temperature, rain.

    dust ──(wind carries it from sensor to sensor)──► dust an hour later
      ▲ traffic at rush hours, heating when it is cold; both thinned by how deep the air is mixed at that hour
      ▼ settles slowly, is washed out by rain

In a picture of time × sensors, dust that is carried along is a slanted line: what a two-dimensional convolution sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fulltilt.errors import InputError

Floats = NDArray[np.float64]

QUANTITIES = ("pm25", "wind", "temperature", "rain")
_SPACING_KM = 20.0
_DAY, _WEEK, _YEAR = 24, 24 * 7, 24 * 365
_SETTLED_PER_HOUR, _WASHED_PER_MM = 0.07, 0.15
_BACKGROUND = 12.0
"""µg/m³ that the air has before it comes into the valley, on average."""


@dataclass(frozen=True, kw_only=True)
class Readings:
    """What sensors have measured, an hour to a row."""

    values: NDArray[np.float32]
    """Hours × quantities × sensors; nothing is missing."""
    quantities: tuple[str, ...]
    sensors: tuple[str, ...]
    """In the order in which they stand: neighbours side by side."""
    read: NDArray[np.bool_] | None = None
    """Where a value was read; elsewhere it is the last one that was. None: everywhere."""
    left_out: tuple[str, ...] = ()
    """Columns of what was read that are no quantity of all sensors: words, counters, or nothing at all."""
    notes: tuple[str, ...] = ()
    """What else a user should know of what was read."""

    def __post_init__(self) -> None:
        expected = (len(self.quantities), len(self.sensors))
        if self.values.shape[1:] != expected:
            raise InputError(f"readings of shape {self.values.shape} for {expected} quantities and sensors")

    @property
    def missing_share(self) -> float:
        """Of the values, those that were not read."""
        return 0.0 if self.read is None else float(1 - self.read.mean())

    def can_be_target(self, quantity: str) -> NDArray[np.bool_]:
        """Of each hour, whether all sensors have read it: what only stands in for a reading is nothing to forecast."""
        if self.read is None:
            return np.ones(len(self.values), np.bool_)
        whole: NDArray[np.bool_] = np.all(self.read[:, self.quantities.index(quantity)], axis=-1)
        return whole

    def still(self, quantity: str, begin: int = 0) -> tuple[str, ...]:
        """The sensors at which it is the same in every hour from `begin` on."""
        values = self.values[begin:, self.quantities.index(quantity)]
        return tuple(name for name, spread in zip(self.sensors, np.ptp(values, axis=0), strict=True) if not spread)

    def most_missing(self, quantity: str) -> str:
        """The sensor that lacks it most, and how much, for a message."""
        assert self.read is not None
        shares = 1 - self.read[:, self.quantities.index(quantity)].mean(0)
        worst = int(shares.argmax())
        return f"{self.sensors[worst]} lacks most: {100 * shares[worst]:.3g} % of its hours"

    def most_missing_of_all(self) -> str:
        """The quantity and the sensor that lack most, and how much, for a message."""
        assert self.read is not None
        shares = 1 - self.read.mean(0)
        quantity, sensor = np.unravel_index(int(shares.argmax()), shares.shape)
        share = 100 * shares[quantity, sensor]
        return f"most of {self.quantities[quantity]} at {self.sensors[sensor]}: {share:.3g} %"


@lru_cache(maxsize=2)  # training and validation ask for the same
def simulate(hours: int, sensors: int, seed: int = 0) -> Readings:
    """Readings of so many hours, from the middle of November on: the winter is where the dust is."""
    for name, value, least in (("hours", hours, 1), ("sensors", sensors, 2)):
        if value < least:
            raise InputError(f"{name} is {value}; at least {least} are needed")
    random = np.random.default_rng(seed)
    time = np.arange(hours)
    temperature = (
        11 - 9 * np.cos(2 * np.pi * (time - 60 * _DAY) / _YEAR) - 4 * np.cos(2 * np.pi * (time - 3) / _DAY)
        + _drifting(random, hours, spread=3.0, remembered_hours=60)
    )  # fmt: skip
    breeze = 6 * np.sin(2 * np.pi * (time - 9) / _DAY)  # up the valley by day, down by night
    wind = breeze + _drifting(random, hours, spread=9.0, remembered_hours=96)
    rain = np.maximum(0, _drifting(random, hours, spread=1.6, remembered_hours=18) - 2.0)
    dust = _dust(random, sensors, temperature=temperature, wind=wind, rain=rain)

    def everywhere(values: Floats, noise: float) -> Floats:
        """Weather is nearly the same along the valley; each sensor has its own error."""
        return values[:, None] + random.normal(0, noise, (hours, sensors))

    found = np.stack(
        [
            np.maximum(0, dust + random.normal(0, 1.0, dust.shape)),
            everywhere(wind, 1.0),
            everywhere(temperature, 0.5),
            np.maximum(0, everywhere(rain, 0.05)),
        ],
        axis=1,
    )
    names = tuple(f"s{number:02d}" for number in range(sensors))
    return Readings(values=found.astype(np.float32), quantities=QUANTITIES, sensors=names)


def _dust(random: np.random.Generator, sensors: int, *, temperature: Floats, wind: Floats, rain: Floats) -> Floats:
    """Concentrations in µg/m³, hours × sensors: carried, emitted, lost, hour by hour."""
    hours = len(wind)
    time = np.arange(hours)
    rush = sum(np.exp(-0.5 * ((time % _DAY - peak) / 1.8) ** 2) for peak in (8, 18))
    traffic = rush * np.where(time % _WEEK < 5 * _DAY, 1.0, 0.45)
    heating = np.clip(15 - temperature, 0, None) / 15
    mixed = 1.0 + 0.6 * np.sin(2 * np.pi * (time - 8) / _DAY)  # deepest in the afternoon
    mixed += 0.02 * (temperature - 11)
    mixed = np.clip(mixed, 0.35, None)
    of_traffic, of_heating = (random.lognormal(0, 0.7, sensors) * scale for scale in (7.0, 3.0))
    events = np.exp(np.stack([_drifting(random, hours, spread=0.2, remembered_hours=36) for _ in range(sensors)], 1))
    emitted = (traffic[:, None] * of_traffic + heating[:, None] * of_heating) * events / mixed[:, None]
    inflow = np.maximum(2, _BACKGROUND + _drifting(random, hours, spread=4.0, remembered_hours=72))
    kept = np.exp(-_SETTLED_PER_HOUR - _WASHED_PER_MM * rain)
    places = np.arange(sensors, dtype=np.float64)
    come_from = places - wind[:, None] / _SPACING_KM
    found = np.empty((hours, sensors))
    now = np.full(sensors, _BACKGROUND)
    for hour in range(hours):
        now = np.interp(come_from[hour], places, now, left=inflow[hour], right=inflow[hour])
        now = now * kept[hour] + emitted[hour]
        found[hour] = now
    return found


def _drifting(random: np.random.Generator, hours: int, *, spread: float, remembered_hours: float) -> Floats:
    """Noise that forgets slowly (an Ornstein-Uhlenbeck process), of this standard deviation."""
    keep = np.exp(-1 / remembered_hours)
    steps = random.normal(0, spread * np.sqrt(1 - keep**2), hours)
    steps[0] = random.normal(0, spread)
    found = np.empty(hours)
    value = 0.0
    for hour, step in enumerate(steps):
        value = found[hour] = keep * value + step
    return found
