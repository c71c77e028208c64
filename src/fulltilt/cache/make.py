"""A file to the pixels that are kept: read, decoded, made smaller where asked for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fulltilt.cache.settings import CacheSettings
from fulltilt.decode import Header, decode, decode_mask, pick_shrink, probe
from fulltilt.decode.mask import told_of_mask
from fulltilt.errors import InputError

Pixels = NDArray[np.uint8]


def make(image: bytes, mask: bytes | None, settings: CacheSettings) -> tuple[Pixels, Pixels | None]:
    """H×W×C, and H×W labels where there is a mask. Errors say what is wrong with the file."""
    header = probe(image)
    labels = None
    if mask is not None:
        with told_of_mask():
            labels = _labels(mask, header)
    height, width = settings.target(header.height, header.width)
    if (height, width) == (header.height, header.width):
        return decode(image, header=header, channels=settings.channels, quality=settings.quality), labels
    # JPEG can leave out frequencies that a smaller picture has no room for. Down to twice the size nobody sees it;
    # "fast" goes down to the size itself.
    reserve = 1 if settings.quality == "fast" else 2
    shrink = pick_shrink(header, reserve * min(height, width))
    pixels = decode(image, header=header, channels=settings.channels, quality=settings.quality, shrink=shrink)
    return _resized(pixels, height, width), None if labels is None else _picked(labels, height, width)


def kept_bytes(header: Header, settings: CacheSettings, *, masked: bool) -> int:
    """What `make` will give for this image."""
    height, width = settings.target(header.height, header.width)
    return height * width * (settings.channels + masked)


def _labels(mask: bytes, image: Header) -> Pixels:
    header = probe(mask)
    if (header.height, header.width) != (image.height, image.width):
        raise InputError(
            f"the mask is {header.height}×{header.width}, its image {image.height}×{image.width}: "
            "they must be of one size"
        )
    labels: Pixels = decode_mask(mask, header=header, dtype=np.uint8)
    return labels


def _resized(pixels: Pixels, height: int, width: int) -> Pixels:
    """Pillow's bilinear filter, which grows with the reduction and so keeps out aliases."""
    from PIL import Image

    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    resized = image.resize((width, height), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(resized).reshape(height, width, pixels.shape[2]))


def _picked(labels: Pixels, height: int, width: int) -> Pixels:
    """The label under the centre of each pixel: none that was not there."""
    rows = ((np.arange(height) + 0.5) * labels.shape[0] / height).astype(np.int64)
    columns = ((np.arange(width) + 0.5) * labels.shape[1] / width).astype(np.int64)
    picked: Pixels = labels[rows[:, None], columns]
    return picked
