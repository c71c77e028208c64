"""JPEGs that Pillow would decode, decoded by simplejpeg instead: a shorter way through the same library.

Only whole RGB images, at full size, are taken over; what simplejpeg refuses, Pillow decodes or refuses itself, so the
script sees the errors that it knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def install(note: Callable[[str], None]) -> None:
    try:
        import simplejpeg  # type: ignore[import-untyped]  # noqa: F401
        from PIL.JpegImagePlugin import JpegImageFile
    except ImportError as error:
        note(f"decode: left out ({error})")
        return
    JpegImageFile.load = _loading(JpegImageFile.load)  # type: ignore[method-assign,assignment]


def _loading(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    import functools

    import simplejpeg
    from PIL import Image

    @functools.wraps(original)
    def load(self: Any) -> Any:
        # A draft is decoded at another scale, or as luma alone; multi-picture files have offsets of their own.
        plain = self.mode == "RGB" and self.format == "JPEG" and len(self.tile) == 1 and not self.decoderconfig
        if not plain or self.layers != 3 or self.tile[0][2] != 0 or self.fp is None:
            return original(self)
        at = self.fp.tell()
        self.fp.seek(0)
        try:
            # Four bytes a pixel, as Pillow keeps them.
            pixels = simplejpeg.decode_jpeg(self.fp.read(), "RGBX")
        except ValueError:
            self.fp.seek(at)
            return original(self)
        height, width = pixels.shape[:2]
        if (width, height) != self.size:
            self.fp.seek(at)
            return original(self)
        self.im = Image.frombytes("RGB", self.size, pixels.data, "raw", "RGBX").im
        self.tile = []
        self.readonly = 0
        if self._exclusive_fp and self._close_exclusive_fp_after_loading:
            self.fp.close()
        self.fp = None
        return Image.Image.load(self)

    return load
