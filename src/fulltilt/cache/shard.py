"""The files of a shard, byte by byte.

    shard-00000.pixels   header │ image │ mask │ image │ …      each on a 64-byte boundary
    shard-00000.names    path, path, …                          so that damage can be named
    shard-00000.index    header │ record │ record │ …           of one length each

All three only grow. Pixels and names are synced before the record that points to them is written, and each record ends
in its own checksum: however a build ended, what follows the last whole record is known to be worthless and is cut off.

Checksums are CRC-32: they are to find torn writes and flipped bits, not forgers, and zlib has them everywhere. All
errors up to 32 bits long are found, others but one in four billion.
"""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

ALIGN: Final = 64
HEADER_BYTES: Final = 64
_HEADER: Final = struct.Struct("<8s16sI")
_CRC: Final = struct.Struct("<I")
_MAGIC: Final = {"pixels": b"FTPIXEL1", "index": b"FTINDEX1"}
_RECORD: Final = struct.Struct("<16s16s8Q4i2q2Iq2iq")
RECORD_BYTES: Final = _RECORD.size + _CRC.size + 4

KEYS: Final = np.dtype(
    {"names": ["name", "content"], "formats": ["<u8", "<u8"], "offsets": [0, 16], "itemsize": RECORD_BYTES}
)
"""The first half of the two hashes in each record: what the reader sorts by."""

_FILE: Final = re.compile(r"shard-(\d{5,})\.(pixels|index|names)")


class Record(NamedTuple):
    """One sample: who it is and where its pixels lie (perhaps in another shard, where the content was known)."""

    name: bytes
    content: bytes
    stamp: tuple[int, ...]
    shard: int
    height: int
    width: int
    channels: int
    offset: int
    mask_offset: int
    """-1 without a mask."""
    checksum: int
    mask_checksum: int
    path_offset: int
    path_bytes: int
    mask_path_bytes: int
    written_ns: int

    def pack(self) -> bytes:
        body = _RECORD.pack(*self[:2], *self.stamp, *self[3:])
        return body + _CRC.pack(zlib.crc32(body)) + b"\0\0\0\0"

    @classmethod
    def unpack(cls, data: bytes) -> Record | None:
        """None when the bytes are not a whole record."""
        if len(data) != RECORD_BYTES or _CRC.unpack_from(data, _RECORD.size)[0] != zlib.crc32(data[: _RECORD.size]):
            return None
        name, content, *rest = _RECORD.unpack_from(data)
        return cls._make((name, content, tuple(rest[:8]), *rest[8:]))

    @property
    def pixel_bytes(self) -> int:
        return self.height * self.width * self.channels

    @property
    def end(self) -> int:
        """One past the last byte that belongs to it."""
        if self.mask_offset >= 0:
            return self.mask_offset + self.height * self.width
        return self.offset + self.pixel_bytes


def header(kind: str, settings: bytes, number: int) -> bytes:
    """The first bytes of a shard's file; `settings`: their digest."""
    body = _HEADER.pack(_MAGIC[kind], settings, number)
    return (body + _CRC.pack(zlib.crc32(body))).ljust(HEADER_BYTES, b"\0")


def path_of(folder: Path, number: int, kind: str) -> Path:
    return folder / f"shard-{number:05d}.{kind}"


def shard_files(folder: Path) -> list[Path]:
    """All files that belong to shards, and nothing else."""
    return sorted(path for path in folder.iterdir() if _FILE.fullmatch(path.name))


def shard_numbers(folder: Path) -> list[int]:
    """Shards of which any file is there."""
    found = (_FILE.fullmatch(path.name) for path in folder.iterdir())
    return sorted({int(match[1]) for match in found if match})


def align(offset: int) -> int:
    return -(-offset // ALIGN) * ALIGN
