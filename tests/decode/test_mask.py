"""Masks: the integers in the file are the integers that come out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tests.decode.support import chunk, exif, picture, png, saved

from fulltilt.decode import decode_mask, decode_mask_into, label_dtype, probe
from fulltilt.errors import DecodeError, InputError


def _labels(most: int, dtype: type = np.uint8) -> np.ndarray:
    return np.random.default_rng(most).integers(0, most + 1, (23, 37)).astype(dtype)


def test_palette_indices_stay_indices():
    labels = _labels(20)
    labels[0] = 255  # VOC's border
    image = Image.fromarray(labels).convert("P")
    image.putpalette(np.random.default_rng(0).integers(0, 256, 768).astype(np.uint8).tobytes())
    image.putdata(labels.ravel().tolist())
    for options in ({}, {"transparency": 0}, {"transparency": bytes(range(256))}):
        made = decode_mask(saved(image, "PNG", **options))
        assert made.dtype == np.uint8
        assert (made == labels).all()


@pytest.mark.parametrize(
    ("bits", "colour_type"), [(1, 0), (2, 0), (4, 0), (8, 0), (16, 0), (1, 3), (2, 3), (4, 3), (8, 3)]
)
def test_every_depth(bits, colour_type):
    labels = _labels((1 << bits) - 1, np.uint16)
    data = png(labels, bits, colour_type)
    if colour_type == 3:
        palette = chunk(b"PLTE", bytes(range(256)) * 3)
        data = data[:33] + palette + data[33:]
    made = decode_mask(data)
    assert made.dtype == (np.uint16 if bits == 16 else np.uint8)
    assert (made == labels).all()


def test_wide_labels_in_tiff():
    for dtype in (np.uint16, np.int32):
        labels = _labels(np.iinfo(dtype).max, dtype)
        made = decode_mask(saved(Image.fromarray(labels), "TIFF"))
        assert made.dtype == dtype
        assert (made == labels).all()


@pytest.mark.parametrize("format", ["BMP", "GIF", "TIFF", "PPM"])
def test_other_lossless_formats(format):
    labels = np.tile(np.arange(256, dtype=np.uint8), (4, 1))
    made = decode_mask(saved(Image.fromarray(labels), format))
    assert (made == labels).all()


def test_orientation_is_the_images():
    labels = _labels(20)
    data = saved(Image.fromarray(labels), "PNG", exif=exif(6))
    assert (decode_mask(data) == np.rot90(labels, -1)).all()
    assert decode_mask(data).flags.c_contiguous


def test_colours_are_no_labels():
    for image in (picture(), picture().convert("RGBA"), picture().convert("LA")):
        with pytest.raises(DecodeError, match=r"colours are not labels.*table from colour to class") as caught:
            decode_mask(saved(image, "PNG"))
        assert caught.value.problem == "unsupported"


def test_lossy_masks_are_refused():
    with pytest.raises(DecodeError, match=r"lossy.*Save masks as PNG"):
        decode_mask(saved(picture().convert("L")))


@given(st.sampled_from([np.uint8, np.uint16, np.int32, np.int64]), st.integers(0, 65535))
def test_another_dtype_only_where_the_labels_fit(dtype, most):
    labels = np.array([[0, most]], np.uint16)
    data = png(labels, 16)
    if most <= np.iinfo(dtype).max:
        made = decode_mask(data, dtype=dtype)
        assert made.dtype == dtype
        assert (made == labels).all()
    else:
        with pytest.raises(InputError, match=f"labels from 0 to {most} don't fit uint8"):
            decode_mask(data, dtype=dtype)


def test_labels_are_integers():
    with pytest.raises(InputError, match="labels are integers"):
        decode_mask(png(_labels(3), 8), dtype=np.float32)


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_into_the_callers_memory(offset):
    labels = _labels(60_000, np.uint16)
    data = png(labels, 16)
    memory = np.full(offset + labels.nbytes + 5, 99, np.uint8)
    assert label_dtype(probe(data)) == np.uint16
    assert decode_mask_into(data, memory[offset:], (23, 37)) == (23, 37)
    assert (memory[offset : offset + labels.nbytes].view(np.uint16).reshape(23, 37) == labels).all()
    assert (memory[offset + labels.nbytes :] == 99).all()
    assert (memory[:offset] == 99).all()


def test_size_and_room_are_checked():
    data = png(_labels(3), 8)
    with pytest.raises(InputError, match="the mask is 23×37, its image 23×38"):
        decode_mask_into(data, bytearray(10_000), (23, 38))
    with pytest.raises(InputError, match="out has 10 bytes, 23×37 of uint8 needs 851"):
        decode_mask_into(data, bytearray(10))
    with pytest.raises(InputError, match="out has 851 bytes, 23×37 of int64"):
        decode_mask_into(data, bytearray(851), dtype=np.int64)
