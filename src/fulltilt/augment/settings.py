"""What an augmentation does, as a checked value: `Settings`; and the two vectors of numbers that the draws read.

The vectors (`Settings.vector`) hold every range and probability in one fixed order (`Slot`). The device keeps two of
them, `full` and `rest`, and a strength between: a draw uses strength·full + (1 − strength)·rest. So a schedule changes
one number on the device, and nothing is compiled again.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from fulltilt.augment.layout import Ops, Slot
from fulltilt.errors import InputError

Range = tuple[float, float]
Size = tuple[int, int]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every option of an augmentation. Magnitudes are a half-width (0.2 means 0.8 to 1.2) or a pair (low, high)."""

    horizontal_flip_prob: float = 0.0
    vertical_flip_prob: float = 0.0
    quarter_turn_prob: float = 0.0
    """Probability of a turn by 90°, 180° or 270° (only 180° where the output is not square)."""
    rotation_degrees: float | Range = 0.0
    scale: float | Range = 0.0
    """Zoom factor; 0.1 means 0.9 to 1.1, above 1 enlarges."""
    translate: float | Range = 0.0
    """Largest shift as a share of the output's (width, height)."""
    shear_degrees: float | Range = 0.0
    """Largest shear along x, or along (x, y)."""
    perspective: float = 0.0
    """How far corners move inwards, as a share of half the size."""
    perspective_prob: float = 0.5

    size: int | Size | None = None
    """Output (height, width); an int is a square. None keeps the input's."""
    random_resized_crop: bool | Range = False
    """Crop a random box of this share of the area (True: 0.08 to 1) and resize it to `size`."""
    crop_ratio: Range = (3 / 4, 4 / 3)
    random_crop: int | Size | None = None
    """Crop a box of exactly this size at a random place; becomes the output size."""
    crop_padding: int = 0
    """How far a random crop may reach over the border."""
    eval_crop: float | None = None
    """In eval mode: the centred box of this share of the short side, in the output's shape. None: the whole image."""

    brightness: float | Range = 0.0
    contrast: float | Range = 0.0
    contrast_pivot: float | Literal["mean"] = 0.5
    """What contrast keeps in place: a constant, or each image's own mean (one more pass over the input)."""
    saturation: float | Range = 0.0
    hue: float | Range = 0.0
    """Shift of the hue as a share of the circle, at most 0.5."""
    gray_prob: float = 0.0
    invert_prob: float = 0.0
    gamma: float | Range = 0.0
    solarize_prob: float = 0.0
    solarize_threshold: float = 0.5
    posterize_prob: float = 0.0
    posterize_bits: int = 4
    noise_std: float = 0.0
    """Standard deviation of Gaussian noise, on the [0, 1] scale."""
    erase_prob: float = 0.0
    erase_area: Range = (0.02, 0.33)
    erase_ratio: Range = (0.3, 3.3)
    erase_value: float = 0.0
    """Written into the erased box after normalisation. Masks are not erased."""
    blur_prob: float = 0.0
    blur_sigma: Range = (0.1, 2.0)
    """In output pixels."""

    fill: float | Literal["reflect", "edge"] = 0.0
    """What lies outside the image: a constant on the [0, 1] scale, its reflection, or its edge."""
    mask_fill: int = 0
    """The same for masks where `fill` is a constant: an ignore index, often 255."""
    antialias: bool = True
    """Widen the filter when shrinking, as torchvision and Pillow do."""
    normalize: Literal["imagenet"] | tuple[Sequence[float], Sequence[float]] | None = None
    """(mean, std) per channel on the [0, 1] scale."""

    def __post_init__(self) -> None:
        for name in _CHECKS:  # YAML and JSON know only lists
            if isinstance(value := getattr(self, name), list):
                object.__setattr__(self, name, tuple(value))
        if problems := problems_in({f.name: getattr(self, f.name) for f in fields(self)}):
            raise InputError("augmentation settings: " + "; ".join(problems))

    @property
    def output_size(self) -> Size | None:
        """(height, width) where the settings fix it."""
        size = self.random_crop if self.random_crop is not None else self.size
        if size is None:
            return None
        return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))

    @property
    def mean_std(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Normalisation as numbers, or None."""
        if self.normalize is None:
            return None
        if isinstance(self.normalize, str):
            return IMAGENET_MEAN, IMAGENET_STD
        mean, std = self.normalize
        return tuple(map(float, mean)), tuple(map(float, std))

    def at_rest(self) -> Settings:
        """These settings at strength 0: flips, crops and turns stay, everything else is off."""
        kept = {
            "horizontal_flip_prob", "vertical_flip_prob", "quarter_turn_prob", "random_resized_crop", "crop_ratio",
            "random_crop", "crop_padding", "size", "eval_crop", "fill", "mask_fill", "antialias", "normalize",
            "contrast_pivot", "erase_area", "erase_ratio", "erase_value", "blur_sigma", "solarize_threshold",
            "posterize_bits", "perspective_prob",
        }  # fmt: skip
        return Settings(**{f.name: getattr(self, f.name) for f in fields(self) if f.name in kept})

    def changed(self, **options: Any) -> Settings:
        """A copy with some options replaced, checked again."""
        return replace(self, **options)

    def vector(self) -> list[float]:
        """The numbers that the draws read, in the order of `Slot`."""
        translate_x, translate_y = _pair(self.translate)
        shear_x, shear_y = self.shear_degrees if isinstance(self.shear_degrees, tuple) else (self.shear_degrees, 0.0)
        area = (0.08, 1.0) if self.random_resized_crop is True else self.random_resized_crop or (1.0, 1.0)
        values = {
            "translate_x": translate_x,
            "translate_y": translate_y,
            "shear_x": math.radians(shear_x),
            "shear_y": math.radians(shear_y),
            "contrast_pivot": 0.5 if isinstance(self.contrast_pivot, str) else self.contrast_pivot,
        }
        ranges = {
            "rotation": tuple(math.radians(degrees) for degrees in _around(self.rotation_degrees, 0.0)),
            "scale": _around(self.scale, 1.0),
            "area": area,
            "log_ratio": tuple(map(math.log, self.crop_ratio)),
            "brightness": _around(self.brightness, 1.0),
            "contrast": _around(self.contrast, 1.0),
            "saturation": _around(self.saturation, 1.0),
            "hue": _around(self.hue, 0.0),
            "gamma": _around(self.gamma, 1.0),
            "erase_area": self.erase_area,
            "erase_log_ratio": tuple(map(math.log, self.erase_ratio)),
            "blur_sigma": self.blur_sigma,
        }
        for name, (low, high) in ranges.items():
            values[f"{name}_lo"], values[f"{name}_hi"] = low, high
        names = [slot.name.lower() for slot in Slot]
        return [float(values[name] if name in values else getattr(self, name)) for name in names]

    @property
    def ops(self) -> Ops:
        """The groups of operations that these settings need, whatever the strength."""
        moves = any(map(_on, (self.rotation_degrees, self.scale, self.translate, self.shear_degrees)))
        tilts = bool(self.perspective and self.perspective_prob)
        grays = _on(self.saturation) or self.gray_prob > 0
        colours = grays or _on(self.brightness) or _on(self.contrast) or self.invert_prob > 0
        wanted = {
            Ops.TURN: self.horizontal_flip_prob or self.vertical_flip_prob or self.quarter_turn_prob,
            Ops.AFFINE: moves,
            Ops.PERSPECTIVE: tilts,
            Ops.RESIZED_CROP: self.random_resized_crop,
            Ops.RANDOM_CROP: self.random_crop is not None,
            Ops.COLOUR: colours,
            Ops.GRAY: grays,
            Ops.MEAN_PIVOT: _on(self.contrast) and self.contrast_pivot == "mean",
            Ops.HUE: _on(self.hue),
            Ops.GAMMA: _on(self.gamma),
            Ops.SOLARIZE: self.solarize_prob,
            Ops.POSTERIZE: self.posterize_prob,
            Ops.NOISE: self.noise_std,
            Ops.ERASE: self.erase_prob,
            Ops.BLUR: self.blur_prob,
            # A random crop may be larger than its image.
            Ops.OUTSIDE: moves or tilts or self.random_crop is not None,
            Ops.SHRINK: self.antialias
            and (self.size is not None or _on(self.scale) or _on(self.shear_degrees) or tilts),
            Ops.ANTIALIAS: self.antialias,
        }
        return Ops(sum(op for op, on in wanted.items() if on))

    @property
    def eval_ops(self) -> Ops:
        """What is left in `eval()` mode: resizing, or a centred crop."""
        kept = self.ops & (Ops.ANTIALIAS | Ops.RANDOM_CROP)
        shrinks = Ops.SHRINK if self.antialias and self.size is not None else Ops(0)
        return kept | shrinks | Ops.CENTRE | (Ops.OUTSIDE if self.random_crop is not None else Ops(0))


def _on(magnitude: float | Range) -> bool:
    return magnitude != 0


def _around(value: float | Range, centre: float) -> Range:
    if isinstance(value, tuple):
        return float(value[0]), float(value[1])
    low = centre - value
    return (max(low, 0.0) if centre == 1.0 else low), centre + value


def _pair(value: float | Range) -> Range:
    return value if isinstance(value, tuple) else (value, value)


def problems_in(options: Mapping[str, Any], *, beside: Sequence[str] = ()) -> list[str]:
    """All that is wrong with these options, each problem beginning with an option's name. Defaults fill the gaps.

    `beside`: names that the caller takes itself, so that a misspelt one is recognised, too.
    """
    defaults = {f.name: f.default for f in fields(Settings)}
    allowed = (*defaults, *beside)
    problems = []
    for name in options:
        if name not in defaults:
            begun = [other for other in allowed if other.startswith(f"{name}_")]  # rotation is rotation_degrees
            near = begun or difflib.get_close_matches(name, allowed, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else "."
            problems.append(f"{name} is not an option{hint} Allowed: {', '.join(allowed)}")
    every = defaults | {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    problems += [problem for name, check in _CHECKS.items() if (problem := check(name, every[name]))]
    if every["random_resized_crop"] and every["size"] is None:
        problems.append("random_resized_crop needs size=(height, width)")
    if every["random_crop"] is not None and (every["size"] is not None or every["random_resized_crop"]):
        problems.append("random_crop gives the output size itself: leave out size and random_resized_crop")
    if every["crop_padding"] and every["random_crop"] is None:
        problems.append("crop_padding needs random_crop")
    return problems + _normalize_problems(every["normalize"])


# --- checks: each returns what is wrong, or None -----------------------------------------------------------------


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _within(low: float, high: float) -> Any:
    def check(name: str, value: Any) -> str | None:
        if _number(value) and low <= value <= high:
            return None
        return f"{name}={value!r} must be a number from {low:g} to {high:g}"

    return check


def _whole(low: int, high: int) -> Any:
    def check(name: str, value: Any) -> str | None:
        if type(value) is int and low <= value <= high:
            return None
        return f"{name}={value!r} must be a whole number from {low} to {high}"

    return check


def _magnitude(high: float, pair: Range, *, ordered: bool = True) -> Any:
    """A half-width up to `high`, or two numbers within `pair`: a range, or, not ordered, one number for each axis."""

    def check(name: str, value: Any) -> str | None:
        if _number(value) and 0 <= value <= high:
            return None
        two = (
            isinstance(value, tuple) and len(value) == 2 and all(_number(v) and pair[0] <= v <= pair[1] for v in value)
        )
        if two and (value[0] <= value[1] or not ordered):
            return None
        what = "a pair (low, high)" if ordered else "a pair (along x, along y)"
        return f"{name}={value!r} must be a number from 0 to {high:g} or {what} within {pair[0]:g} to {pair[1]:g}"

    return check


def _interval(low: float, high: float) -> Any:
    def check(name: str, value: Any) -> str | None:
        pair = isinstance(value, tuple) and len(value) == 2 and all(map(_number, value))
        if pair and low <= value[0] <= value[1] <= high:
            return None
        return f"{name}={value!r} must be a pair (low, high) within {low:g} to {high:g}"

    return check


def _size(name: str, value: Any) -> str | None:
    sides = (value, value) if isinstance(value, int) else value
    if value is None:
        return None
    if isinstance(sides, tuple) and len(sides) == 2 and all(type(side) is int and side >= 1 for side in sides):
        return None
    return f"{name}={value!r} must be a whole number ≥ 1 or a pair (height, width) of them"


def _area(name: str, value: Any) -> str | None:
    return None if isinstance(value, bool) else _interval(1e-6, 1.0)(name, value)


def _choice_or_number(low: float, high: float, *words: str) -> Any:
    def check(name: str, value: Any) -> str | None:
        if value in words or (_number(value) and low <= value <= high):
            return None
        return f"{name}={value!r} must be a number from {low:g} to {high:g} or {' or '.join(map(repr, words))}"

    return check


def _optional(check: Any) -> Any:
    return lambda name, value: None if value is None else check(name, value)


def _boolean(name: str, value: Any) -> str | None:
    return None if isinstance(value, bool) else f"{name}={value!r} must be True or False"


def _normalize_problems(value: Any) -> list[str]:
    if value is None or value == "imagenet":
        return []
    try:
        mean, std = value
        mean, std = [float(v) for v in mean], [float(v) for v in std]
    except (TypeError, ValueError):
        return [f"normalize={value!r} must be None, 'imagenet' or (mean, std), each one number per channel"]
    if len(mean) != len(std) or not mean:
        return [f"normalize has {len(mean)} means and {len(std)} standard deviations; they must be as many"]
    if not all(map(math.isfinite, mean + std)) or min(std) < 1e-4:
        return [f"normalize={value!r}: standard deviations must be at least 0.0001 and everything finite"]
    return []


_probability = _within(0.0, 1.0)
_CHECKS: dict[str, Any] = {
    "horizontal_flip_prob": _probability,
    "vertical_flip_prob": _probability,
    "quarter_turn_prob": _probability,
    "rotation_degrees": _magnitude(360.0, (-360.0, 360.0)),
    "scale": _magnitude(0.99, (0.01, 100.0)),
    "translate": _magnitude(1.0, (0.0, 1.0), ordered=False),
    "shear_degrees": _magnitude(80.0, (0.0, 80.0), ordered=False),
    "perspective": _within(0.0, 0.9),
    "perspective_prob": _probability,
    "size": _size,
    "random_resized_crop": _area,
    "crop_ratio": _interval(0.01, 100.0),
    "random_crop": _size,
    "crop_padding": _whole(0, 1 << 15),
    "eval_crop": _optional(_within(0.01, 1.0)),
    "brightness": _magnitude(10.0, (0.0, 11.0)),
    "contrast": _magnitude(10.0, (0.0, 11.0)),
    "contrast_pivot": _choice_or_number(0.0, 1.0, "mean"),
    "saturation": _magnitude(10.0, (0.0, 11.0)),
    "hue": _magnitude(0.5, (-0.5, 0.5)),
    "gray_prob": _probability,
    "invert_prob": _probability,
    "gamma": _magnitude(0.99, (0.01, 100.0)),
    "solarize_prob": _probability,
    "solarize_threshold": _within(0.0, 1.0),
    "posterize_prob": _probability,
    "posterize_bits": _whole(1, 8),
    "noise_std": _within(0.0, 10.0),
    "erase_prob": _probability,
    "erase_area": _interval(0.0, 1.0),
    "erase_ratio": _interval(0.01, 100.0),
    "erase_value": _within(-1e4, 1e4),
    "blur_prob": _probability,
    "blur_sigma": _interval(0.01, 20.0),
    "fill": _choice_or_number(0.0, 1.0, "reflect", "edge"),
    "mask_fill": _whole(-(1 << 62), 1 << 62),
    "antialias": _boolean,
}
