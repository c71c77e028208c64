"""Each thing that settings can do, alone: which options belong to it, and what a draw of it was, in words.

A draw depends on (seed, epoch, index) and each purpose has its own uniform number, so a sample is turned by the same
angle whether the rotation is shown alone or along with everything else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch

from fulltilt.augment.draws import Frame, draw_rows
from fulltilt.augment.layout import UNIFORMS, Column, Slot, Uniform
from fulltilt.augment.philox import sample_words, to_uniform
from fulltilt.augment.settings import Settings

Size = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """One sample's draw of one effect."""

    settings: Settings
    vector: list[float]
    uniforms: list[float]
    row: list[float]
    in_size: Size
    out_size: Size
    """(height, width)"""

    def between(self, name: str, purpose: int) -> float:
        low, high = self.vector[Slot[f"{name}_LO"]], self.vector[Slot[f"{name}_HI"]]
        return low + (high - low) * self.uniforms[purpose]

    def either_side(self, name: str, purpose: int) -> float:
        return self.vector[Slot[name]] * (2.0 * self.uniforms[purpose] - 1.0)


@dataclass(frozen=True, kw_only=True)
class Effect:
    """One row of a preview."""

    name: str
    """The setting that switches it on."""
    short: str
    """For captions; empty where the value speaks for itself."""
    text: Callable[[Drawn], str]
    """What was drawn."""
    range: Callable[[Settings, list[float]], str] = lambda *_: ""
    """What may be drawn."""
    how: tuple[str, ...] = ()
    """Settings that say how it is done; they matter to nothing else."""
    prob: str | None = None
    """The setting that says how often."""
    happens: Uniform | None = None
    """The number that decides whether it does."""
    moves: bool = True
    """Pixels leave their places, and masks with them."""
    crops: bool = False
    """It chooses the part of the input that is shown, so it starts from the input itself."""

    def is_on(self, settings: Settings) -> bool:
        value = getattr(settings, self.name)
        often = 1.0 if self.prob is None else getattr(settings, self.prob)
        return bool(value is not None and value is not False and value != 0 and often > 0)

    def alone(self, settings: Settings) -> Settings:
        """These settings with nothing else on, and this one happening every time."""
        kept = {self.name, *self.how, *_MANNERS}
        if self.crops:
            kept.add("size")
        options = {f.name: getattr(settings, f.name) for f in fields(settings) if f.name in kept}
        if self.prob is not None:
            options[self.prob] = 1.0
        return Settings(**options)

    def often(self, settings: Settings) -> str:
        """How often it happens; empty where that is always."""
        return "" if self.prob is None else f"{getattr(settings, self.prob):.0%} of samples"


def draw(effect: Effect, settings: Settings, *, key: tuple[int, int, int], in_size: Size, out_size: Size) -> str | None:
    """What sample `key` (seed, epoch, index) draws of an effect, in words; None where it doesn't happen to it."""
    seed, epoch, index = key
    place = torch.tensor([index])
    uniforms = to_uniform(sample_words(seed, epoch, place, UNIFORMS))[0].tolist()
    if effect.prob is not None and effect.happens is not None:
        often = getattr(settings, effect.prob)
        if uniforms[effect.happens] >= torch.tensor(often, dtype=torch.float32).item():
            return None
    alone = effect.alone(settings)
    vector = alone.vector()
    frame = Frame(
        sizes=torch.tensor([in_size]),
        out_h=out_size[0],
        out_w=out_size[1],
        crop_padding=alone.crop_padding,
        eval_crop=alone.eval_crop or 0.0,
    )
    row = draw_rows(ops=alone.ops, values=torch.tensor(vector), seed=seed, epoch=epoch, index=place, frame=frame)
    drawn = Drawn(
        settings=alone, vector=vector, uniforms=uniforms, row=row[0].tolist(), in_size=in_size, out_size=out_size
    )
    return effect.text(drawn)


# --- words -----------------------------------------------------------------------------------------------------------


def _degrees(radians: float) -> str:
    return f"{math.degrees(radians):+.1f}°"


def _factor(value: float) -> str:
    return f"x {value:.2f}"


def _hue(value: float) -> str:
    return f"{value * 360:+.0f}°"


def _ranged(name: str, slot: str, purpose: Uniform, words: Callable[[float], str], **more: Any) -> Effect:
    """An effect whose value is drawn between two numbers of the settings vector."""

    def span(_: Settings, vector: list[float]) -> str:
        return f"{words(vector[Slot[f'{slot}_LO']])} to {words(vector[Slot[f'{slot}_HI']])}"

    return Effect(name=name, text=lambda drawn: words(drawn.between(slot, purpose)), range=span, **more)


def _sometimes(name: str, short: str, text: Callable[[Drawn], str], **more: Any) -> Effect:
    """An effect that happens or doesn't."""
    happens = Uniform[name.removesuffix("_prob").upper()]
    return Effect(name=name, short=short, text=text, prob=name, happens=happens, **more)


def _turns(drawn: Drawn) -> str:
    square = drawn.out_size[0] == drawn.out_size[1]
    return f"{(math.floor(drawn.uniforms[Uniform.TURNS] * 3.0) + 1) * 90 if square else 180}°"


def _shift(drawn: Drawn) -> str:
    x = drawn.either_side("TRANSLATE_X", Uniform.TRANSLATE_X)
    y = drawn.either_side("TRANSLATE_Y", Uniform.TRANSLATE_Y)
    return f"{x:+.0%}, {y:+.0%}"


def _shift_range(_: Settings, vector: list[float]) -> str:
    x, y = vector[Slot.TRANSLATE_X], vector[Slot.TRANSLATE_Y]
    return f"± {x:.0%}" if x == y else f"± {x:.0%} across, ± {y:.0%} down"


def _shear(drawn: Drawn) -> str:
    x, y = (_degrees(drawn.either_side(f"SHEAR_{axis}", Uniform[f"SHEAR_{axis}"])) for axis in "XY")
    return f"{x}, {y}" if drawn.vector[Slot.SHEAR_Y] else x


def _shear_range(_: Settings, vector: list[float]) -> str:
    x, y = (f"± {math.degrees(vector[Slot[f'SHEAR_{axis}']]):.0f}°" for axis in "XY")
    return f"{x} along x, {y} along y" if vector[Slot.SHEAR_Y] else f"{x} along x"


def _tilt(drawn: Drawn) -> str:
    moves = drawn.uniforms[Uniform.PERSPECTIVE : Uniform.PERSPECTIVE + 8]
    reach = drawn.vector[Slot.PERSPECTIVE]
    return f"corners {min(moves) * reach:.0%} to {max(moves) * reach:.0%} in"


def _crop_box(drawn: Drawn) -> str:
    width, height = drawn.row[Column.MATRIX] * drawn.out_size[1], drawn.row[Column.MATRIX + 4] * drawn.out_size[0]
    share = width * height / (drawn.in_size[0] * drawn.in_size[1])
    return f"{share:.0%} of the area, {width / height:.2f}:1"


def _crop_place(drawn: Drawn) -> str:
    return f"from {drawn.row[Column.MATRIX + 2]:.0f}, {drawn.row[Column.MATRIX + 5]:.0f}"


def _crop_range(settings: Settings, _: list[float]) -> str:
    height, width = settings.output_size or (0, 0)
    over = f", up to {settings.crop_padding} px over the border" if settings.crop_padding else ""
    return f"{width} x {height} px{over}"


def _area_range(settings: Settings, vector: list[float]) -> str:
    height, width = settings.output_size or (0, 0)
    return f"{vector[Slot.AREA_LO]:.0%} to {vector[Slot.AREA_HI]:.0%} of the area, to {width} x {height} px"


def _erased(drawn: Drawn) -> str:
    left, top, right, bottom = drawn.row[Column.ERASE : Column.ERASE + 4]
    return f"{right - left:.0f} x {bottom - top:.0f} px"


_MANNERS = ("fill", "mask_fill", "antialias", "normalize")
"""Settings that hold for everything."""

EFFECTS: tuple[Effect, ...] = (
    Effect(
        name="random_resized_crop",
        short="crop",
        text=_crop_box,
        range=_area_range,
        how=("crop_ratio",),
        crops=True,
    ),
    Effect(
        name="random_crop",
        short="crop",
        text=_crop_place,
        range=_crop_range,
        how=("crop_padding",),
        crops=True,
    ),
    _sometimes("horizontal_flip_prob", "", lambda _: "flipped"),
    _sometimes("vertical_flip_prob", "", lambda _: "flipped upside down"),
    _sometimes("quarter_turn_prob", "turn", _turns),
    _ranged("rotation_degrees", "ROTATION", Uniform.ROTATION, _degrees, short="rotation"),
    _ranged("scale", "SCALE", Uniform.SCALE, _factor, short="scale"),
    Effect(name="translate", short="shift", text=_shift, range=_shift_range),
    Effect(name="shear_degrees", short="shear", text=_shear, range=_shear_range),
    Effect(
        name="perspective",
        short="",
        text=_tilt,
        range=lambda settings, _: f"corners up to {settings.perspective:.0%} in",
        prob="perspective_prob",
        happens=Uniform.PERSPECTIVE_IF,
    ),
    _ranged("brightness", "BRIGHTNESS", Uniform.BRIGHTNESS, _factor, short="brightness", moves=False),
    _ranged("contrast", "CONTRAST", Uniform.CONTRAST, _factor, short="contrast", moves=False, how=("contrast_pivot",)),
    _ranged("saturation", "SATURATION", Uniform.SATURATION, _factor, short="saturation", moves=False),
    _ranged("hue", "HUE", Uniform.HUE, _hue, short="hue", moves=False),
    _sometimes("gray_prob", "", lambda _: "gray", moves=False),
    _sometimes("invert_prob", "", lambda _: "inverted", moves=False),
    _ranged("gamma", "GAMMA", Uniform.GAMMA, "{:.2f}".format, short="gamma", moves=False),
    _sometimes(
        "solarize_prob",
        "solarized",
        lambda drawn: f"from {drawn.settings.solarize_threshold:g} up",
        how=("solarize_threshold",),
        moves=False,
    ),
    _sometimes(
        "posterize_prob",
        "posterized",
        lambda drawn: f"{drawn.settings.posterize_bits} bits",
        how=("posterize_bits",),
        moves=False,
    ),
    Effect(name="noise_std", short="noise", moves=False, text=lambda drawn: f"std {drawn.settings.noise_std:g}"),
    Effect(
        name="erase_prob",
        short="erased",
        moves=False,
        text=_erased,
        range=lambda settings, _: f"{settings.erase_area[0]:.0%} to {settings.erase_area[1]:.0%} of the area",
        how=("erase_area", "erase_ratio", "erase_value"),
        prob="erase_prob",
        happens=Uniform.ERASE_IF,
    ),
    _ranged(
        "blur_prob",
        "BLUR_SIGMA",
        Uniform.BLUR,
        "{:.1f} px".format,
        short="blur",
        moves=False,
        how=("blur_sigma",),
        prob="blur_prob",
        happens=Uniform.BLUR_IF,
    ),
)
