"""Damaged files: an error or every pixel, never grey in between."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image
from tests.decode.support import difference, opened, picture, pillow_rgb, saved

from fulltilt.decode import decode, probe
from fulltilt.errors import DecodeError


def _cuts(length: int, count: int) -> list[int]:
    spread = set(np.linspace(0, length - 1, count).astype(int).tolist())
    return sorted(spread | set(range(min(24, length))) | {length - back for back in range(1, 8)})


@pytest.mark.parametrize(
    "options",
    [{}, {"progressive": True}, {"restart_marker_rows": 1}, {"optimize": True}],
    ids=["baseline", "progressive", "restarts", "optimized"],
)
@pytest.mark.parametrize("quality", ["exact", "fast"])
@pytest.mark.parametrize("shrink", [1, 4])
def test_a_jpeg_cut_anywhere_is_an_error(options, quality, shrink):
    data = saved(picture(200, 150), quality=90, **options)
    for length in _cuts(len(data), 150):
        with pytest.raises(DecodeError) as caught:
            decode(data[:length], quality=quality, shrink=shrink)
        assert caught.value.problem in ("truncated", "empty", "corrupt"), length
        if length > 700:
            assert caught.value.problem == "truncated"


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_grey_and_cmyk_cut_anywhere(mode):
    data = saved(picture().convert(mode))
    for length in _cuts(len(data), 60):
        with pytest.raises(DecodeError):
            decode(data[:length])


@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("PNG", {}),
        ("GIF", {}),
        ("WEBP", {}),
        ("BMP", {}),
        ("PPM", {}),
        ("JPEG2000", {}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("TIFF", {"compression": "tiff_adobe_deflate"}),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, about a cut TIFF's tags
def test_other_formats_cut_anywhere_raise_or_are_whole(format, options):
    data = saved(picture(120, 90), format, **options)
    whole = decode(data)
    for length in _cuts(len(data), 80):
        try:
            made = decode(data[:length])
        except DecodeError:
            continue
        assert (made == whole).all(), f"{format} cut to {length} of {len(data)} bytes came out changed"


def test_a_cut_file_behind_a_harmless_warning_is_an_error():
    """libjpeg tells only its first warning, here about the version; the end is missing all the same."""
    data = bytearray(saved(picture(200, 150)))
    data[data.index(b"JFIF") + 5] = 0
    assert (decode(bytes(data)) == pillow_rgb(bytes(data))).all()
    for length in (1000, len(data) // 2, len(data) - 1):
        with pytest.raises(DecodeError, match="truncated"):
            decode(bytes(data[:length]))
    with pytest.raises(DecodeError, match="damaged"):  # a hole, and the end in its place
        decode(bytes(data[: len(data) // 2] + data[-2:]))


@pytest.mark.parametrize("extra", [1, 9, 300])
def test_too_many_bytes_before_the_end_are_harmless(extra):
    """They occur in public data sets; all pixels are there, and Pillow decodes them."""
    data = saved(picture(200, 150))
    odd = data[:-2] + b"\0" * (extra + 1) + data[-2:]
    assert (decode(odd) == decode(data)).all()


@pytest.mark.parametrize("tail", [b"\0" * 100, b"\xff\xd8\xff\xe0 another"])
def test_what_follows_the_end_is_ignored(tail):
    data = saved(picture())
    assert (decode(data + tail) == decode(data)).all()


def test_a_hole_in_the_pixels_is_an_error():
    """A marker in the middle of the scan: libjpeg warns, fills up and goes on."""
    data = saved(picture(200, 150), quality=90)
    middle = (probe(data).scan_offset + len(data)) // 2
    assert difference(pillow_rgb(data[:middle] + data[-2:]), pillow_rgb(data)).max() > 50  # Pillow says nothing
    with pytest.raises(DecodeError, match="damaged JPEG") as caught:
        decode(data[:middle] + data[-2:])
    assert caught.value.problem == "corrupt"


def test_the_message_is_one_line_and_names_no_object():
    file = io.BytesIO()
    Image.new("RGB", (64, 64)).save(file, "WEBP")
    for data in (file.getvalue()[:30], saved(picture(), "PNG")[:300], saved(picture())[:900]):
        with pytest.raises(DecodeError) as caught:
            decode(data)
        assert "\n" not in str(caught.value)
        assert "0x" not in str(caught.value)


def test_a_multi_picture_file_gives_its_first():
    first, second = picture(), picture(index=1)
    data = saved(first, "MPO", save_all=True, append_images=[second])
    assert opened(data).n_frames == 2
    assert (decode(data) == pillow_rgb(data)).all()
