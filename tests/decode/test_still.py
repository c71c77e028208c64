"""Pixels: the same as Pillow's, in the caller's memory, upright.

Stated tolerances. JPEG exact: 0, where Pillow and simplejpeg carry the same libjpeg-turbo (2 allowed between versions).
JPEG fast, on pictures like photographs: mean 2, 99.9 % of samples within 16. Other formats: 0; 16 bits to 8: rounded.
"""

from __future__ import annotations

import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps, features
from tests.decode.support import chunk, difference, exif, opened, picture, pillow_rgb, png, saved

from fulltilt.decode import decode, decode_into, probe, size_of
from fulltilt.errors import DecodeError, InputError

EXACT = 2


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("size", [(97, 61), (1, 1), (16, 16), (7, 200)])
def test_jpeg_as_pillow_decodes_it(size, subsampling, progressive):
    data = saved(picture(200, 200).resize(size), quality=90, subsampling=subsampling, progressive=progressive)
    assert difference(decode(data), pillow_rgb(data)).max() <= EXACT


@pytest.mark.parametrize("index", range(6))
def test_fast_is_near_on_pictures_like_photographs(index):
    data = saved(picture(500, 375, index), quality=92)
    gap = difference(decode(data, quality="fast"), decode(data))
    assert 0 < gap.mean() < 2
    assert np.percentile(gap, 99.9) <= 16


def test_grey_jpeg():
    data = saved(picture().convert("L"))
    assert probe(data).mode == "L"
    assert difference(decode(data), pillow_rgb(data)).max() <= EXACT
    assert difference(decode(data, channels=1)[..., 0], np.asarray(opened(data))).max() <= EXACT


def test_colour_as_grey_is_the_files_own_luma():
    data = saved(picture(200, 150))
    draft = opened(data)
    draft.draft("L", draft.size)
    assert difference(decode(data, channels=1)[..., 0], np.asarray(draft)).max() <= EXACT
    assert difference(decode(data, channels=1)[..., 0], np.asarray(opened(data).convert("L"))).mean() < 1


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("ycck", [False, True])
def test_cmyk(channels, ycck):
    data = saved(picture().convert("CMYK"), quality=95)
    at = data.index(b"Adobe")
    assert data[at + 11] in (0, 2)
    if ycck:  # the same bytes, said to be YCCK: other colours, on which both have to agree
        data = data[: at + 11] + b"\x02" + data[at + 12 :]
    expected = opened(data).convert("RGB").convert({1: "L", 3: "RGB", 4: "RGBA"}[channels])
    assert probe(data).mode == "CMYK"
    made = decode(data, channels=channels)
    assert difference(made, np.asarray(expected).reshape(made.shape)).max() <= EXACT


def test_opaque_where_alpha_is_asked_for():
    data = saved(picture())
    made = decode(data, channels=4)
    assert (made[..., 3] == 255).all()
    assert (made[..., :3] == decode(data)).all()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(
    ("format", "channels", "shrink"),
    [("JPEG", 3, 1), ("JPEG", 1, 1), ("JPEG", 3, 2), ("PNG", 3, 1), ("WEBP", 3, 1), ("TIFF", 3, 1), ("PNG", 3, 4)],
)
def test_orientation_is_applied(format, channels, shrink, orientation):
    options = {"lossless": True} if format == "WEBP" else {}
    data = saved(picture(97, 61), format, exif=exif(orientation), **options)
    plain = saved(picture(97, 61), format, **options)
    lying = Image.fromarray(decode(plain, channels=channels, shrink=shrink).squeeze())
    lying.getexif()[0x0112] = orientation
    expected = np.asarray(ImageOps.exif_transpose(lying))
    header = probe(data)
    made = decode(data, channels=channels, shrink=shrink)
    assert made.shape == (*size_of(header, shrink), channels)
    assert difference(made.squeeze(), expected).max() <= EXACT


@pytest.mark.parametrize("shrink", [2, 4, 8])
@pytest.mark.parametrize("size", [(500, 375), (97, 61), (3, 3), (1, 40)])
def test_scaled_jpeg_is_near_the_mean_of_its_pixels(size, shrink):
    data = saved(picture(500, 375).resize(size), quality=95)
    expected = np.asarray(opened(data).convert("RGB").reduce(shrink))
    made = decode(data, shrink=shrink)
    assert made.shape == expected.shape
    if min(size) > 60:
        assert difference(made, expected).mean() < 1.5
        draft = opened(data)
        draft.draft("RGB", (size[0] // shrink, size[1] // shrink))
        assert difference(made, np.asarray(draft)).max() <= EXACT  # Pillow's own DCT scaling


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 2, 4, 8]))
def test_every_size_shrinks_to_the_announced_one(width, height, shrink):
    data = saved(Image.new("RGB", (width, height), (200, 30, 90)), quality=95)
    made = decode(data, shrink=shrink)
    assert made.shape == (-(-height // shrink), -(-width // shrink), 3)
    assert difference(made, np.broadcast_to(np.array([200, 30, 90], np.uint8), made.shape)).max() <= 4


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("RGB", 1), ("CMYK", 3)])
@pytest.mark.parametrize("shrink", [1, 4])
def test_unusual_subsampling_is_decoded_all_the_same(mode, channels, shrink, orientation):
    """A luma of three blocks per chroma block, for which TurboJPEG has no name: a scan of Pillow's, read otherwise."""
    image = picture(64, 48).convert(mode)
    data = bytearray(saved(image, subsampling="4:4:4", exif=exif(orientation)))
    frame = data.index(b"\xff\xc0")
    assert data[frame + 11] == 0x11
    data[frame + 11] = 0x31
    data[frame + 5 : frame + 9] = b"\0\x15\0\x18"
    with pytest.raises(ValueError, match="subsampling"):
        simplejpeg.decode_jpeg(bytes(data))
    lying = opened(bytes(data)).convert({1: "L", 3: "RGB"}[channels])
    expected = np.asarray(lying.reduce(shrink) if shrink > 1 else lying)
    expected = expected if orientation == 1 else np.rot90(expected, -1)
    made = decode(bytes(data), channels=channels, shrink=shrink)
    assert difference(made.squeeze(), expected).max() <= EXACT + (2 if mode == "CMYK" and shrink > 1 else 0)


@pytest.mark.parametrize(
    ("format", "modes"),
    [
        ("PNG", ["RGB", "L", "1", "P", "RGBA", "LA"]),
        ("GIF", ["RGB", "L", "1", "P", "RGBA", "LA"]),
        ("WEBP", ["RGB", "L", "P", "RGBA"]),
        ("BMP", ["RGB", "L", "1", "P", "RGBA"]),
        ("TIFF", ["RGB", "L", "1", "P", "RGBA", "LA", "CMYK"]),
        ("PPM", ["RGB", "L", "1"]),
        ("JPEG2000", ["RGB", "L", "RGBA", "LA"]),
    ],
)
def test_other_formats_as_pillow_converts_them(format, modes):
    for mode in modes:
        image = picture().convert(mode)
        if mode in ("RGBA", "LA"):
            image.putalpha(Image.linear_gradient("L").resize(image.size))
        data = saved(image, format)
        assert difference(decode(data), pillow_rgb(data)).max() == 0, mode


def test_transparency_is_dropped_and_not_blended():
    image = Image.new("RGBA", (8, 8), (200, 100, 50, 0))
    assert (decode(saved(image, "PNG")) == [200, 100, 50]).all()
    assert (decode(saved(image, "PNG"), channels=4) == [200, 100, 50, 0]).all()
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([9, 8, 7, 60, 70, 80])
    data = saved(palette, "PNG", transparency=b"\xff\x10")
    assert (decode(data) == [60, 70, 80]).all()
    assert (decode(data, channels=4) == [60, 70, 80, 16]).all()


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG", "TIFF"])
def test_first_frame_of_several(format):
    frames = [Image.new("RGB", (20, 10), colour) for colour in ("red", "lime", "blue")]
    options = {"lossless": True} if format == "WEBP" else {}
    data = saved(frames[0], format, save_all=True, append_images=frames[1:], **options)
    assert opened(data).n_frames == 3
    assert (decode(data) == [255, 0, 0]).all()


def test_sixteen_bits_are_rounded_to_eight():
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    expected = np.round(values / 257).astype(np.uint8)
    for data in (saved(Image.fromarray(values), "PNG"), saved(Image.fromarray(values), "TIFF"), png(values, 16)):
        assert probe(data).bits == 16
        assert (decode(data, channels=1)[..., 0] == expected).all()
        assert (decode(data) == expected[..., None]).all()


def test_sixteen_bit_rgb_is_within_one():
    values = np.random.default_rng(0).integers(0, 65536, (20, 30, 3)).astype(np.uint16)
    data = png(values, 16, colour_type=2)
    assert (probe(data).bits, probe(data).mode) == (16, "RGB")
    assert difference(decode(data), np.round(values / 257).astype(np.uint8)).max() <= 1  # Pillow keeps the high byte


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")
def test_avif():
    data = saved(picture(), "AVIF")
    assert probe(data).format == "avif"
    assert difference(decode(data), pillow_rgb(data)).max() == 0


def test_numbers_without_an_eight_bit_meaning_are_refused():
    data = saved(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF")
    with pytest.raises(DecodeError, match="32-bit numbers") as caught:
        decode(data)
    assert caught.value.problem == "unsupported"


def test_a_bomb_is_refused(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(DecodeError, match="MAX_IMAGE_PIXELS"):
        decode(saved(picture(), "PNG"))


@pytest.mark.parametrize("format", ["JPEG", "PNG"])
@pytest.mark.parametrize("as_buffer", [bytes, memoryview, np.ndarray])
def test_written_into_the_callers_memory_and_nowhere_else(format, as_buffer):
    data = saved(picture(97, 61), format)
    memory = np.full(5 + 97 * 61 * 3 + 7, 99, np.uint8)
    room = memory[5:]
    given_room = {bytes: bytearray(room.tobytes()), memoryview: memoryview(room), np.ndarray: room}[as_buffer]
    assert decode_into(data, given_room) == (61, 97)
    written = np.frombuffer(given_room, np.uint8)
    assert (written[: 97 * 61 * 3].reshape(61, 97, 3) == decode(data)).all()
    assert (written[97 * 61 * 3 :] == 99).all()
    assert (memory[:5] == 99).all()


def test_memory_that_will_not_do_is_refused():
    data = saved(picture(97, 61))
    with pytest.raises(InputError, match=r"out has 17,750 bytes, 61×97×3 needs 17,751"):
        decode_into(data, np.zeros(97 * 61 * 3 - 1, np.uint8))
    for out in (np.zeros(97 * 61 * 3), np.zeros((97 * 61 * 3, 2), np.uint8)[:, 0], bytes(97 * 61 * 3)):
        with pytest.raises(InputError, match="writable, contiguous bytes"):
            decode_into(data, out)  # type: ignore[arg-type]


def test_no_copy_on_the_ordinary_path(monkeypatch):
    """The decoder is handed the caller's own memory."""
    seen = []
    real = simplejpeg.decode_jpeg
    monkeypatch.setattr(
        simplejpeg, "decode_jpeg", lambda *args, **kwargs: seen.append(kwargs["buffer"]) or real(*args, **kwargs)
    )
    memory = np.zeros(100_000, np.uint8)
    decode_into(saved(picture(97, 61)), memory[123:])
    assert np.shares_memory(seen[0], memory)
    assert seen[0].ctypes.data == memory.ctypes.data + 123


def test_exif_in_a_png_turns_it():
    values = np.arange(15, dtype=np.uint8).reshape(3, 5)
    data = png(values, 8, extra=chunk(b"eXIf", exif(6)[6:]))
    assert (decode(data, channels=1)[..., 0] == np.rot90(values, -1)).all()
