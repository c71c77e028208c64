"""Every format but JPEG, through Pillow, which is imported on first use and one format at a time."""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from fulltilt.decode.header import Header
from fulltilt.decode.orientation import UPRIGHT, orientation_of, stored, upright
from fulltilt.errors import DecodeError

if TYPE_CHECKING:
    from PIL.Image import Image

_PLUGINS: Final = {
    "jpeg": ("Jpeg", "JPEG"),
    "png": ("Png", "PNG"),
    "gif": ("Gif", "GIF"),
    "webp": ("WebP", "WEBP"),
    "bmp": ("Bmp", "BMP"),
    "tiff": ("Tiff", "TIFF"),
    "ppm": ("Ppm", "PPM"),
    "jpeg2000": ("Jpeg2K", "JPEG2000"),
    "avif": ("Avif", "AVIF"),
}
_MODES: Final = {1: "L", 3: "RGB", 4: "RGBA"}
_BITS: Final = {"1": 1, "I": 32, "F": 32}
_WIDE: Final = ("png", "ppm")
"""Here Pillow's 32-bit mode I holds 16-bit samples."""


def read_header(view: memoryview, format: str) -> Header:
    """Through Pillow, without decoding."""
    with opened(view, format) as image:
        width, height = image.size
        orientation = UPRIGHT
        if format == "tiff":
            tags: Any = image
            width, height = tags.tag_v2[256], tags.tag_v2[257]
            found = tags.tag_v2.get(274, UPRIGHT)
            orientation = found if found in range(1, 9) else UPRIGHT
        elif isinstance(exif := image.info.get("exif"), bytes):
            orientation = orientation_of(exif)
        mode = str(image.mode)
    height, width = stored(height, width, orientation)
    bits = 16 if mode.startswith("I;16") or (mode == "I" and format in _WIDE) else _BITS.get(mode, 8)
    return Header(format=format, width=width, height=height, mode=mode, orientation=orientation, bits=bits)


def pixels(view: memoryview, header: Header, channels: int, shrink: int) -> NDArray[np.uint8]:
    """H×W×C, upright."""
    with opened(view, header.format) as image:
        image.load()
        made = _as_bytes(image, header, channels)
        if shrink > 1:
            made = made.reduce(shrink)
        array = np.asarray(made)
    return _turned(array.reshape(*array.shape[:2], channels), header)


def labels(view: memoryview, header: Header) -> NDArray[Any]:
    """H×W integers, upright, as Pillow has them."""
    with opened(view, header.format) as image:
        image.load()
        array = np.asarray(image)
    return _turned(array, header)


def jpeg_pixels(view: memoryview, mode: str, shrink: int) -> NDArray[np.uint8]:
    """A JPEG that TurboJPEG refuses; H×W×C as stored. CMYK comes as libjpeg gives it, inverted as Adobe does."""
    with opened(view, "jpeg") as image:
        image.load()
        if mode == "CMYK":
            from PIL import ImageChops

            made = ImageChops.invert(image)
        else:
            made = image.convert(mode)
        array = np.asarray(made.reduce(shrink) if shrink > 1 else made)
    return array.reshape(*array.shape[:2], -1)


@contextlib.contextmanager
def opened(view: memoryview, format: str) -> Iterator[Image]:
    """An image to read in the block. Whatever Pillow raises on the way is a DecodeError."""
    plugin, name = _PLUGINS[format]
    try:
        from PIL import Image

        importlib.import_module(f"PIL.{plugin}ImagePlugin")
    except ImportError as error:
        raise DecodeError(
            f"this Pillow can't read {name} ({error}): update it, or convert the image to PNG", problem="unsupported"
        ) from None
    if name not in Image.OPEN:
        raise DecodeError(f"this Pillow was built without {name}: convert the image to PNG", problem="unsupported")
    try:
        with Image.open(io.BytesIO(view), formats=(name,)) as image:
            yield image
    except DecodeError:
        raise
    except MemoryError:
        raise  # the machine's fault, not the file's
    except Image.DecompressionBombError as error:
        raise DecodeError(
            f"{error} Raise PIL.Image.MAX_IMAGE_PIXELS if the image is meant to be this large", problem="unsupported"
        ) from None
    except Exception as error:  # a broken file makes its readers raise nearly anything
        raise _explained(error, name, len(view)) from error


def _explained(error: Exception, name: str, length: int) -> DecodeError:
    text = str(error).strip() or type(error).__name__
    cut = "truncated" in text.lower() or isinstance(error, EOFError)
    if cut:
        return DecodeError(f"truncated: the {name} ends after {length:,} bytes ({text})", problem="truncated")
    text = text.partition(" <_io.BytesIO")[0]
    return DecodeError(f"damaged {name} ({text}): fetch or save it again", problem="corrupt")


def _as_bytes(image: Image, header: Header, channels: int) -> Image:
    """As 8-bit L, RGB or RGBA. Transparency is dropped, not blended, as Pillow's convert("RGB") does."""
    from PIL.Image import fromarray

    if image.mode.startswith("I;16") or (image.mode == "I" and header.format in _WIDE):
        wide = np.asarray(image).astype(np.uint32)
        image = fromarray(((wide + 128) // 257).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise DecodeError(
            f"a {header.format.upper()} of 32-bit numbers (mode {image.mode}) has no 8-bit meaning: scale and save it "
            "as 8 or 16 bits, or decode integers with decode_mask",
            problem="unsupported",
        )
    if channels != 4:
        image.info.pop("transparency", None)  # otherwise Pillow warns about what it drops
    return image if image.mode == _MODES[channels] else image.convert(_MODES[channels])


def _turned(array: NDArray[Any], header: Header) -> NDArray[Any]:
    # Pillow turns TIFFs itself while loading.
    return array if header.format == "tiff" else upright(array, header.orientation)
