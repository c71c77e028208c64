"""torchvision's transforms, versions 1 and 2, by name and attributes: torchvision itself is not imported.

A transform that is set in a way that GPUAugmentation can't follow (another fill, an expanded rotation, a bicubic
filter) is not known. It filters linearly, over a wider area where it shrinks, as torchvision resizes. torchvision turns
and zooms without that (`antialias=False`), and takes the nearest pixel by default: that alone is not followed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fulltilt.launch.apply.chains import Known, Move, is_from, made, same, span

_BLUR_REACH = 1.5
"""A kernel that ends before so many standard deviations blurs less than its sigma says."""


def members(value: Any) -> Sequence[Any] | None:
    """Of a Compose; None for anything else."""
    if not is_from(value, "torchvision") or type(value).__name__ != "Compose":
        return None
    inner = vars(value).get("transforms")
    return list(inner) if isinstance(inner, list | tuple) else None


def known(transform: Any) -> Move | None:
    """What a transform is on the GPU; None where it can't be had there."""
    if not is_from(transform, "torchvision"):
        return Move(kind="nothing") if type(transform).__name__ == "Identity" else None
    return made(_MAKERS, transform)


def _resized_crop(one: Any) -> Move | None:
    if not _resizes(one):
        return None
    size = _size(one.size)
    return Move(
        kind="crop",
        options={"size": size, "random_resized_crop": span(one.scale), "crop_ratio": span(one.ratio)},
    )


def _crop(one: Any) -> Move | None:
    padding = _padding(one.padding)
    fill = _fill(one) if one.padding_mode == "constant" else {"edge": "edge", "reflect": "reflect"}[one.padding_mode]
    if padding is None or fill is None or one.pad_if_needed:
        return None
    options: dict[str, Any] = {"random_crop": _size(one.size)}
    if padding:
        options |= {"crop_padding": padding, "fill": fill}
    return Move(kind="crop", options=options)


def _resize(one: Any) -> Move | None:
    """To a fixed size. A single number is the short side's: sizes differ then, and workers do it."""
    if isinstance(one.size, int) or len(one.size) != 2 or not _resizes(one):
        return None
    return Move(kind="crop", options={"size": _size(one.size)})


def _rotation(one: Any) -> Move | None:
    fill = _fill(one)
    if one.expand or one.center is not None or fill is None or not _turns(one):
        return None
    low, high = span(one.degrees)
    return Move(kind="move", options={"rotation_degrees": (-high, -low), "fill": fill})  # it turns counterclockwise


def _affine(one: Any) -> Move | None:
    fill = _fill(one)
    shear = one.shear
    if one.center is not None or fill is None or not _turns(one):
        return None
    options: dict[str, Any] = {"rotation_degrees": span(one.degrees), "fill": fill}
    if one.scale is not None or shear is not None:
        options["antialias"] = False
    if one.translate is not None:
        options["translate"] = span(one.translate)
    if one.scale is not None:
        options["scale"] = span(one.scale)
    if shear is not None:
        along = [float(angle) for angle in ([*shear, 0.0, 0.0] if len(shear) == 2 else shear)]
        if along[0] != -along[1] or along[2] != -along[3]:
            return None
        options["shear_degrees"] = (along[1], along[3])
    return Move(kind="move", options=options)


def _perspective(one: Any) -> Move | None:
    fill = _fill(one)
    if fill is None or not _turns(one):
        return None
    options = {"perspective": float(one.distortion_scale), "perspective_prob": float(one.p), "fill": fill}
    return Move(kind="move", options={**options, "antialias": False})


def _jitter(one: Any) -> Move | None:
    names = ("brightness", "contrast", "saturation", "hue")
    options: dict[str, Any] = {name: span(getattr(one, name)) for name in names if getattr(one, name) is not None}
    if "contrast" in options:
        options["contrast_pivot"] = "mean"
    return Move(kind="colour", options=options) if options else Move(kind="nothing")


def _solarize(one: Any) -> Move | None:
    threshold = float(one.threshold)
    if threshold == 1:  # of bytes it is nearly black, of floats white
        return None
    options = {"solarize_prob": float(one.p), "solarize_threshold": threshold / 255 if threshold > 1 else threshold}
    return Move(kind="colour", options=options)


def _blur(one: Any) -> Move | None:
    low, high = span(one.sigma)
    if min(one.kernel_size) < 2 * math.floor(_BLUR_REACH * high) + 1:
        return None
    return Move(kind="blur", options={"blur_prob": 1.0, "blur_sigma": (low, high)})


def _erase(one: Any) -> Move | None:
    if isinstance(one.value, str) or (isinstance(one.value, list | tuple) and not same(one.value)):
        return None
    value = one.value[0] if isinstance(one.value, list | tuple) else one.value
    options = {"erase_prob": float(one.p), "erase_area": span(one.scale), "erase_ratio": span(one.ratio)}
    return Move(kind="erase", options={**options, "erase_value": float(value)})


def _normalize(one: Any) -> Move:
    return Move(kind="normalize", options={"normalize": (_numbers(one.mean), _numbers(one.std))})


def _to_dtype(one: Any) -> Move | None:
    """version 1's ConvertImageDtype always scales, version 2's ToDtype where it is asked to."""
    if str(one.dtype) == "torch.float32" and getattr(one, "scale", True):
        return Move(kind="convert", scales=True)
    return None


def _apply(one: Any) -> Move | None:
    """RandomApply of one transform."""
    inner = list(one.transforms)
    move = known(inner[0]) if len(inner) == 1 else None
    if move is None or move.kind not in ("move", "colour", "blur"):
        return None
    if move.kind == "blur":
        return Move(kind="blur", options={**move.options, "blur_prob": float(one.p)})
    return Move(kind=move.kind, options=move.options, probability=move.probability * float(one.p))


_MAKERS: dict[str, Known] = {
    "RandomResizedCrop": _resized_crop,
    "RandomCrop": _crop,
    "Resize": _resize,
    "RandomHorizontalFlip": lambda one: Move(kind="flip", options={"horizontal_flip_prob": float(one.p)}),
    "RandomVerticalFlip": lambda one: Move(kind="flip", options={"vertical_flip_prob": float(one.p)}),
    "RandomRotation": _rotation,
    "RandomAffine": _affine,
    "RandomPerspective": _perspective,
    "ColorJitter": _jitter,
    "RandomGrayscale": lambda one: Move(kind="colour", options={"gray_prob": float(one.p)}),
    "RandomInvert": lambda one: Move(kind="colour", options={"invert_prob": float(one.p)}),
    "RandomSolarize": _solarize,
    "RandomPosterize": lambda one: Move(
        kind="colour", options={"posterize_prob": float(one.p), "posterize_bits": int(one.bits)}
    ),
    "GaussianBlur": _blur,
    "RandomErasing": _erase,
    "RandomApply": _apply,
    "Normalize": _normalize,
    "ToTensor": lambda _: Move(kind="convert", scales=True),
    "PILToTensor": lambda _: Move(kind="convert"),
    "ToImage": lambda _: Move(kind="convert"),
    "ToImageTensor": lambda _: Move(kind="convert"),
    "ToPureTensor": lambda _: Move(kind="nothing"),
    "ConvertImageDtype": _to_dtype,
    "ToDtype": _to_dtype,
    "Identity": lambda _: Move(kind="nothing"),
}


def _numbers(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _size(value: Any) -> tuple[int, int]:
    sides = (value, value) if isinstance(value, int) else tuple(value)
    height, width = (int(side) for side in (sides * 2 if len(sides) == 1 else sides))
    return height, width


def _padding(value: Any) -> int | None:
    """The same on all sides; None where it is not."""
    if value is None:
        return 0
    sides = (value,) if isinstance(value, int) else tuple(value)
    return int(sides[0]) if same(sides) else None


def _fill(one: Any) -> float | None:
    """As a share of white; None where channels differ, which one number can't say."""
    fill = getattr(one, "fill", 0)
    if fill is None:
        return 0.0
    channels = tuple(fill) if isinstance(fill, list | tuple) else (fill,)
    if not same(channels) or isinstance(channels[0], str):
        return None
    value = float(channels[0])
    if value == 1:  # of bytes it is nearly black, of floats white
        return None
    return value / 255 if value > 1 else value


def _resizes(one: Any) -> bool:
    """As we do; Pillow's images are smoothed whatever is said, but what comes in is not known here."""
    return _filter(one) == "bilinear" and getattr(one, "antialias", True) is not False


def _turns(one: Any) -> bool:
    return _filter(one) in ("bilinear", "nearest", "nearest-exact")


def _filter(one: Any) -> str:
    """The name of its interpolation; numbers are Pillow's, of older versions."""
    value = getattr(one, "interpolation", "bilinear")
    value = getattr(value, "value", value)
    return {0: "nearest", 2: "bilinear"}.get(value, "another") if isinstance(value, int) else str(value)
