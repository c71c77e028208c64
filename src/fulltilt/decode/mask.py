"""Masks: the integers that the file stores, whatever colours it shows them in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fulltilt.decode.header import Header, as_view
from fulltilt.decode.recognise import probe
from fulltilt.decode.still import Room, as_room
from fulltilt.errors import DecodeError, InputError

if TYPE_CHECKING:
    from typing_extensions import Buffer


def decode_mask(data: Buffer, *, header: Header | None = None, dtype: DTypeLike | None = None) -> NDArray[Any]:
    """A mask as H×W integers, upright: uint8, uint16 or int32 as stored, or `dtype` where every label fits."""
    header = header or probe(data)
    kind = label_dtype(header)
    return _as(_labels(data, header, kind), kind if dtype is None else dtype)


def decode_mask_into(
    data: Buffer,
    out: Room,
    size: tuple[int, int] | None = None,
    *,
    dtype: DTypeLike | None = None,
) -> tuple[int, int]:
    """Write a mask to the beginning of `out` (bytes) as H×W numbers of `dtype`, and return (H, W).

    `size`: its image's (H, W), which it must have.
    """
    header = probe(data)
    height, width = header.height, header.width
    if size is not None and size != (height, width):
        raise InputError(f"the mask is {height}×{width}, its image {size[0]}×{size[1]}: they must be of one size")
    stored = label_dtype(header)
    kind = stored if dtype is None else np.dtype(dtype)
    room = as_room(out, height * width * kind.itemsize, f"{height}×{width} of {kind}")
    room.view(kind).reshape(height, width)[...] = _as(_labels(data, header, stored), kind)
    return height, width


@contextlib.contextmanager
def told_of_mask() -> Iterator[None]:
    """Where an error is told with the image's name, that the mask is meant has to be said."""
    try:
        yield
    except DecodeError as error:
        raise DecodeError(f"its mask: {error}", problem=error.problem) from error


def label_dtype(header: Header) -> np.dtype[Any]:
    """What the file's labels are: uint8, uint16 or int32. DecodeError for an image that holds no labels."""
    if header.format == "jpeg":
        raise DecodeError(
            "a mask in a JPEG: lossy compression changes labels. Save masks as PNG; for a grey JPEG that is only cut "
            "at a threshold, use decode(data, channels=1)",
            problem="unsupported",
        )
    if header.mode in ("1", "L", "P"):
        return np.dtype(np.uint8)
    if header.bits == 16 and header.mode.startswith("I"):
        return np.dtype(np.uint16)
    if header.mode == "I":
        return np.dtype(np.int32)
    raise DecodeError(
        f"a mask of mode {header.mode}: colours are not labels. Convert it once to a grey or palette PNG whose values "
        "are the classes (with a table from colour to class), or use decode() if it is an image",
        problem="unsupported",
    )


def _labels(data: Buffer, header: Header, kind: np.dtype[Any]) -> NDArray[Any]:
    from fulltilt.decode import pillow

    labels = pillow.labels(as_view(data), header)
    if header.format == "png" and header.mode == "L" and header.bits < 8:
        labels = labels // (255 // ((1 << header.bits) - 1))  # Pillow spreads 2 and 4 bits over 0 to 255
    if labels.shape != (header.height, header.width):
        raise DecodeError(
            f"damaged {header.format.upper()}: {labels.shape} decoded, {(header.height, header.width)} announced"
        )
    return labels.astype(kind, copy=False)


def _as(labels: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    kind = np.dtype(dtype)
    if kind == labels.dtype:
        return np.ascontiguousarray(labels)
    if kind.kind not in "iu":
        raise InputError(f"dtype is {kind}; labels are integers: uint8, uint16, int32 or int64")
    least, most = int(labels.min()), int(labels.max())
    limits = np.iinfo(kind)
    if least < limits.min or most > limits.max:
        raise InputError(f"labels from {least} to {most} don't fit {kind}: ask for a wider dtype")
    return labels.astype(kind)
