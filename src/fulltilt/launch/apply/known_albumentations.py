"""Albumentations' transforms, of versions 1 and 2, by name and attributes: the package itself is not imported.

Each has a probability `p` of its own, mostly ½: what GPUAugmentation does always is then a pass for a part of the
samples. Brightness and contrast are left to the workers: here they add, there they multiply. Shrinking with OpenCV's
linear filter smooths nothing (`antialias=False`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fulltilt.launch.apply.chains import Kind, Known, Move, is_from, made, span

_BORDERS: dict[int, float | str] = {0: 0.0, 1: "edge", 2: "reflect", 4: "reflect"}
"""OpenCV's."""
_NEAREST, _LINEAR = 0, 1
"""OpenCV's, too."""
_BYTE = 255.0


def members(value: Any) -> Sequence[Any] | None:
    """Of a Compose that is always done, to images alone; None for anything else."""
    if not is_from(value, "albumentations") or type(value).__name__ != "Compose":
        return None
    inner = vars(value).get("transforms")
    plain = getattr(value, "p", 1.0) >= 1.0 and not getattr(value, "processors", None)
    return list(inner) if isinstance(inner, list | tuple) and plain else None


def known(transform: Any) -> Move | None:
    """What a transform is on the GPU; None where it can't be had there."""
    if not is_from(transform, "albumentations"):
        return None
    return made(_MAKERS, transform)


def _always(kind: Kind, options: dict[str, Any], one: Any, **more: Any) -> Move | None:
    return Move(kind=kind, options=options, **more) if _p(one) >= 1.0 else None


def _often(kind: Kind, options: dict[str, Any], one: Any) -> Move:
    return Move(kind=kind, options=options, probability=_p(one))


def _p(one: Any) -> float:
    return 1.0 if getattr(one, "always_apply", False) else float(one.p)


def _resizes(one: Any) -> bool:
    return getattr(one, "interpolation", _LINEAR) == _LINEAR and getattr(one, "area_for_downscale", None) is None


def _turns(one: Any) -> bool:
    """Turned images are interpolated, where the nearest pixel was asked for."""
    return getattr(one, "interpolation", _LINEAR) in (_NEAREST, _LINEAR)


def _resized_crop(one: Any) -> Move | None:
    if not _resizes(one):
        return None
    options = {"size": _size(one), "random_resized_crop": span(one.scale), "crop_ratio": span(one.ratio)}
    return _always("crop", {**options, "antialias": False}, one)


def _resize(one: Any) -> Move | None:
    return _always("crop", {"size": _size(one), "antialias": False}, one) if _resizes(one) else None


def _crop(one: Any) -> Move | None:
    return None if getattr(one, "pad_if_needed", False) else _always("crop", {"random_crop": _size(one)}, one)


def _rotate(one: Any) -> Move | None:
    low, high = span(one.limit)
    if getattr(one, "crop_border", False) or not _turns(one):
        return None
    if low != -high:  # which way it turns depends on the version
        return None
    return _often("move", {"rotation_degrees": (low, high), "fill": _border(one)}, one)


def _shift_scale_rotate(one: Any) -> Move | None:
    across, down, turn = span(one.shift_limit_x), span(one.shift_limit_y), span(one.rotate_limit)
    if not _turns(one) or any(low != -high for low, high in (across, down, turn)):
        return None
    options = {
        "translate": (across[1], down[1]),
        "scale": span(one.scale_limit),
        "rotation_degrees": turn,
        "fill": _border(one),
        "antialias": False,
    }
    return _often("move", options, one)


def _jitter(one: Any) -> Move | None:
    names = ("brightness", "contrast", "saturation", "hue")
    options: dict[str, Any] = {name: span(getattr(one, name)) for name in names}
    return _often("colour", {**options, "contrast_pivot": "mean"}, one)


def _gray(one: Any) -> Move | None:
    """Weighted as the eye does; later versions have other ways, too."""
    usual = getattr(one, "method", "weighted_average") == "weighted_average"
    if not usual or getattr(one, "num_output_channels", 3) != 3:
        return None
    return Move(kind="colour", options={"gray_prob": _p(one)})


def _normalize(one: Any) -> Move | None:
    if float(one.max_pixel_value) != _BYTE or getattr(one, "normalization", "standard") != "standard":
        return None
    mean, std = (tuple(float(value) for value in values) for values in (one.mean, one.std))
    return _always("normalize", {"normalize": (mean, std)}, one, scales=True)


_MAKERS: dict[str, Known] = {
    "RandomResizedCrop": _resized_crop,
    "RandomCrop": _crop,
    "Resize": _resize,
    "HorizontalFlip": lambda one: Move(kind="flip", options={"horizontal_flip_prob": _p(one)}),
    "VerticalFlip": lambda one: Move(kind="flip", options={"vertical_flip_prob": _p(one)}),
    # Of its four turns one is none.
    "RandomRotate90": lambda one: Move(kind="flip", options={"quarter_turn_prob": 0.75 * _p(one)}),
    "Rotate": _rotate,
    "ShiftScaleRotate": _shift_scale_rotate,
    "ColorJitter": _jitter,
    "ToGray": _gray,
    "InvertImg": lambda one: Move(kind="colour", options={"invert_prob": _p(one)}),
    "Normalize": _normalize,
    "ToTensorV2": lambda one: _always("convert", {}, one),
    "NoOp": lambda _: Move(kind="nothing"),
}


def _size(one: Any) -> tuple[int, int]:
    """`height` and `width`, or `size`."""
    height, width = one.size if getattr(one, "size", None) is not None else (one.height, one.width)
    return int(height), int(width)


def _border(one: Any) -> float | str:
    fill = getattr(one, "value", None) if hasattr(one, "value") else getattr(one, "fill", None)
    border = _BORDERS[int(one.border_mode)]
    if border == 0.0 and fill not in (None, 0, 0.0, (0, 0, 0), [0, 0, 0]):
        raise ValueError(fill)
    return border
