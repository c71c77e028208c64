"""One checkpoint file: written from one piece of memory, verified while it is read.

The thread that writes shares the interpreter with the loop that trains. So there is no work per tensor here: checksum
and write take megabytes at a time, and both let go of the interpreter's lock meanwhile.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import torch
from torch import Tensor

from fulltilt.errors import CheckpointError
from fulltilt.train.checkpoint.layout import LENGTH_BYTES, Layout, Place, read_header, seal

_PIECE_BYTES: Final = 8 << 20
_TORCH_SAVED: Final = (b"PK\x03\x04", b"\x80\x02")
"""How files of torch.save begin, now and formerly; as the length of a header it would be beyond any file."""


def write_file(descriptor: int, layout: Layout, notes: Mapping[str, Any], data: memoryview) -> None:
    """Fill an empty file. The header comes last, as it holds the data's checksum; its length is known before."""
    header = layout.header(notes)
    crc32, offset = 0, len(header)
    for begin in range(0, len(data), _PIECE_BYTES):
        piece = data[begin : begin + _PIECE_BYTES]
        crc32 = zlib.crc32(piece, crc32)
        _write(descriptor, piece, offset)
        offset += len(piece)
    _write(descriptor, memoryview(seal(header, crc32)), 0)


def read_notes(path: Path) -> dict[str, Any]:
    """What was noted beside the tensors, without reading these; CheckpointError when it can't be read."""
    with open(path, "rb") as file:
        return _header(file)[1]


def read_file(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and notes, every byte checked; CheckpointError says what is wrong with the file."""
    with open(path, "rb", buffering=0) as file:
        layout, notes, expected = _header(file)
        crc32, tensors = 0, {}
        for place in layout.places:
            tensors[place.name], crc32 = _read_tensor(file, place, crc32)
        if crc32 != expected:
            raise CheckpointError("its data has changed since it was written (checksum)")
        return tensors, notes


def _header(file: BinaryIO | Any) -> tuple[Layout, dict[str, Any], int]:
    size = os.fstat(file.fileno()).st_size
    if size == 0:
        raise CheckpointError("it is empty")
    length = file.read(LENGTH_BYTES)
    header_bytes = int.from_bytes(length, "little")
    if len(length) < LENGTH_BYTES or header_bytes > size - LENGTH_BYTES:
        if length.startswith(_TORCH_SAVED):
            raise CheckpointError(
                "torch.save has made it, not fulltilt; to begin with its weights, give them to the model before: "
                "model.load_state_dict(torch.load(…, weights_only=True))"
            )
        raise CheckpointError(f"it ends within its header, after {size:,} bytes")
    header = bytearray(length) + bytearray(header_bytes)
    _read(file, memoryview(header)[LENGTH_BYTES:])
    layout, notes, data_crc32 = read_header(bytes(header))
    expected = len(header) + layout.data_bytes
    if size != expected:
        raise CheckpointError(f"it has {size:,} bytes; {expected:,} were written")
    return layout, notes, data_crc32


def _read_tensor(file: Any, place: Place, crc32: int) -> tuple[Tensor, int]:
    """Each tensor has memory of its own: views of one piece would keep all of it alive."""
    flat = torch.empty(place.end - place.begin, dtype=torch.uint8)
    memory = flat.numpy().data
    for begin in range(0, len(memory), _PIECE_BYTES):
        piece = memory[begin : begin + _PIECE_BYTES]
        _read(file, piece)
        crc32 = zlib.crc32(piece, crc32)
    tensor = flat.view(place.dtype).view(place.shape)
    if place.strides is not None:
        tensor = torch.empty_strided(place.shape, place.strides, dtype=place.dtype).copy_(tensor)
    return tensor, crc32


def _read(file: Any, memory: memoryview) -> None:
    while memory:
        count = file.readinto(memory)
        if not count:
            raise CheckpointError("it became shorter while it was read")
        memory = memory[count:]


def _write(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        count = os.pwrite(descriptor, data, offset)
        offset += count
        data = data[count:]
