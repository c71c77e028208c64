"""Which format it is, from the first bytes; and if it is none, what it is instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fulltilt.decode import markers, png
from fulltilt.decode.header import Header, as_view
from fulltilt.errors import DecodeError

if TYPE_CHECKING:
    from typing_extensions import Buffer


MAX_PIXELS: Final = 1 << 29
"""More is a damaged header rather than an image: 1.6 GB of RGB."""


def probe(data: Buffer) -> Header:
    """An image's header. JPEG and PNG in microseconds; other formats through Pillow. DecodeError says what is wrong."""
    header = _read_header(data if isinstance(data, bytes) else as_view(data))  # bytes are indexed twice as fast
    if header.width * header.height > MAX_PIXELS:
        raise DecodeError(
            f"{header.width}×{header.height} pixels are announced, at most {MAX_PIXELS:,} are decoded: the header is "
            "damaged, or the image has to be cut into tiles",
            problem="unsupported",
        )
    return header


def _read_header(data: bytes | memoryview) -> Header:
    start = bytes(data[:16])
    if start[:3] == b"\xff\xd8\xff":
        return markers.read_header(data)
    if start[:8] == b"\x89PNG\r\n\x1a\n":
        return png.read_header(data)
    format = sniff(start)
    if format is None:
        raise _no_image(data)
    from fulltilt.decode import pillow

    return pillow.read_header(as_view(data), format)


_MAGIC: Final = (
    (0, b"GIF87a", "gif"),
    (0, b"GIF89a", "gif"),
    (8, b"WEBP", "webp"),
    (0, b"BM", "bmp"),
    (0, b"II*\0", "tiff"),
    (0, b"MM\0*", "tiff"),
    (0, b"II+\0", "tiff"),
    (0, b"MM\0+", "tiff"),
    (0, b"\0\0\0\x0cjP  ", "jpeg2000"),
    (0, b"\xff\x4f\xff\x51", "jpeg2000"),
    (4, b"ftypavif", "avif"),
    (4, b"ftypavis", "avif"),
)


def sniff(start: bytes) -> str | None:
    """The format that an image's first 16 bytes announce, other than JPEG and PNG."""
    for at, magic, name in _MAGIC:
        if start.startswith(magic, at):
            return name
    if start[:1] == b"P" and start[1:2] in b"123456" and start[2:3].isspace():
        return "ppm"
    return None


_OTHERS: Final = (
    (b"version https://git-lfs", "a Git LFS pointer instead of the file: run `git lfs pull`"),
    (b"<!doctype html", "an HTML page, often an error page that was saved in the image's place: download it again"),
    (b"<html", "an HTML page, often an error page that was saved in the image's place: download it again"),
    (b"<svg", "SVG, which is drawn, not decoded: convert it to PNG"),
    (b"<?xml", "XML (SVG?): convert drawings to PNG"),
    (b"%PDF", "a PDF: convert its pages to PNG"),
    (b"PK\x03\x04", "a ZIP archive: unpack it first"),
    (b"\x1f\x8b", "a gzip archive: unpack it first"),
    (b"\x93NUMPY", "a NumPy array: load it with numpy.load and feed it as an array"),
    (b"RIFF", "a RIFF file (AVI or WAV?), not WebP"),
)


def _no_image(view: bytes | memoryview) -> DecodeError:
    if not len(view):
        return DecodeError("the file is empty (0 bytes): write it again, or leave it out", problem="empty")
    start = bytes(view[:256])
    if start in (b"\xff", b"\xff\xd8") or b"\x89PNG\r\n\x1a\n".startswith(start):
        return DecodeError(f"truncated: only {len(view)} bytes", problem="truncated")
    if start[4:8] == b"ftyp":
        brand = start[8:12].decode("ascii", "replace")
        return DecodeError(
            f"no decoder for {brand!r} (HEIC or a video?): convert it to JPEG or PNG", problem="unsupported"
        )
    return DecodeError(f"not an image: {_likeness(start)}", problem="not-an-image")


def _likeness(start: bytes) -> str:
    """What the bytes look like instead."""
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    for magic, meaning in _OTHERS:
        if start.startswith(magic) or text.startswith(magic):
            return f"it is {meaning}"
    if not any(start):
        return "it begins with zero bytes, as an interrupted download or copy leaves them"
    if all(byte >= 32 or byte in b"\t\r\n" for byte in start) and _is_text(start):
        words = " ".join(start[:40].decode("utf-8", "replace").split())
        return f"it starts with text, {words!r}"
    return f"it starts with {start[:8].hex(' ')}; known are JPEG, PNG, GIF, WebP, BMP, TIFF, PPM, JPEG 2000 and AVIF"


def _is_text(start: bytes) -> bool:
    try:
        start.decode()
    except UnicodeDecodeError as error:
        return error.start >= len(start) - 3 > 0  # a character cut in two by our own limit
    return True
