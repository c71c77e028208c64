"""Where each tensor lies in a file, and the header that says so: safetensors, with our notes in its metadata.

    8 bytes     length of the header
    header      JSON: {"__metadata__": {checksums, notes}, name: {"dtype", "shape", "data_offsets"}, …}
    data        the tensors, contiguous, without gaps: wide types first, so that each is aligned

Pure: bytes of headers in and out, no files.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch
from torch import Tensor

from fulltilt.errors import CheckpointError

FORMAT: Final = 1
LENGTH_BYTES: Final = 8
_ALIGNED_TO: Final = 64
_BEGINNING: Final = '{{"__metadata__":{{"crc32":"{header:08x}","data_crc32":"{data:08x}",'
"""Of every header. The checksums have places that do not move: they are filled in when the data is written."""
_SEALED: Final = slice(LENGTH_BYTES, LENGTH_BYTES + len(_BEGINNING.format(header=0, data=0)))

_NAMES: Final = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float32: "F32",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
_DTYPES: Final = {name: dtype for dtype, name in _NAMES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One tensor of a file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    """As they were in memory, where that isn't row by row (channels_last); in the file it always is."""
    begin: int
    """Bytes from the beginning of the data."""

    @property
    def end(self) -> int:
        return self.begin + math.prod(self.shape) * self.dtype.itemsize


class Layout:
    """The places of a state's tensors, in the file's order."""

    def __init__(self, places: tuple[Place, ...]) -> None:
        self.places = places
        self.data_bytes = places[-1].end if places else 0

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Layout:
        begin, places = 0, []
        # Those of one device side by side: then a few copies move all of them.
        for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, str(item[1].device))):
            shape = tuple(tensor.shape)
            strides = _other_order(shape, tensor.stride())
            place = Place(name=name, dtype=tensor.dtype, shape=shape, strides=strides, begin=begin)
            places.append(place)
            begin = place.end
        return cls(tuple(places))

    @cached_property
    def entries(self) -> str:
        """The safetensors part of the header: the same for every checkpoint of one model, so written once."""
        entries = {}
        for place in self.places:
            name, shape = _stored_as(place.dtype, place.shape)
            entries[place.name] = {"dtype": name, "shape": shape, "data_offsets": [place.begin, place.end]}
        return json.dumps(entries, separators=(",", ":"))[1:-1]

    @cached_property
    def _beside(self) -> dict[str, dict[str, Any]]:
        """What safetensors has no words for: strides, and types that it does not know."""
        notes: dict[str, dict[str, Any]] = {}
        for place in self.places:
            if place.dtype not in _NAMES:
                notes.setdefault(place.name, {})["dtype"] = str(place.dtype).removeprefix("torch.")
            if place.strides is not None:
                notes.setdefault(place.name, {})["strides"] = list(place.strides)
        return notes

    def header(self, notes: Mapping[str, Any]) -> bytes:
        """Length and header, to be sealed."""
        ours = json.dumps({"format": FORMAT, "beside": self._beside, **notes}, separators=(",", ":"))
        entries = f",{self.entries}" if self.places else ""
        text = (_BEGINNING.format(header=0, data=0) + f'"notes":{json.dumps(ours)}}}{entries}}}').encode()
        text += b" " * (-(LENGTH_BYTES + len(text)) % _ALIGNED_TO)
        return len(text).to_bytes(LENGTH_BYTES, "little") + text


def seal(header: bytes, data_crc32: int) -> bytes:
    """The header with the data's checksum and its own."""
    own = zlib.crc32(_filled(header, 0, data_crc32))
    return _filled(header, own, data_crc32)


def read_header(header: bytes) -> tuple[Layout, dict[str, Any], int]:
    """Layout, notes and the data's checksum; CheckpointError when the header isn't one of ours, unchanged."""
    try:
        data_crc32 = int(json.loads(header[_SEALED].rstrip(b",") + b"}}")["__metadata__"]["data_crc32"], 16)
    except (ValueError, KeyError, TypeError):
        raise CheckpointError("it does not begin as a checkpoint does") from None
    if seal(header, data_crc32) != header:
        raise CheckpointError("its header has changed since it was written (checksum)")
    try:
        entries = json.loads(header[LENGTH_BYTES:])
        notes = json.loads(entries.pop("__metadata__")["notes"])
        if notes["format"] != FORMAT:
            raise CheckpointError(f"it has format {notes['format']}; this version reads {FORMAT}")
        layout = Layout(tuple(_place(name, entry, notes["beside"].get(name, {})) for name, entry in entries.items()))
        if [place.begin for place in layout.places] != [0, *(place.end for place in layout.places)][:-1]:
            raise CheckpointError("its tensors do not lie one behind the other")
    except CheckpointError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"its header can't be read ({type(error).__name__}: {error})") from None
    return layout, notes, data_crc32


def _place(name: str, entry: Mapping[str, Any], beside: Mapping[str, Any]) -> Place:
    dtype = getattr(torch, beside["dtype"]) if "dtype" in beside else _DTYPES[entry["dtype"]]
    if not isinstance(dtype, torch.dtype):
        raise CheckpointError(f"{name} has an unknown type, {beside['dtype']!r}")
    shape = entry["shape"][:-1] if "dtype" in beside else entry["shape"]
    strides = _other_order(tuple(shape), tuple(beside["strides"])) if "strides" in beside else None
    begin, end = entry["data_offsets"]
    place = Place(name=name, dtype=dtype, shape=tuple(shape), strides=strides, begin=begin)
    if min(shape, default=0) < 0 or begin < 0 or place.end != end:
        raise CheckpointError(f"{name}: {shape} of {dtype} does not fill bytes {begin} to {end}")
    return place


def _stored_as(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[str, list[int]]:
    """A type that safetensors lacks is stored as its parts (complex) or bytes, in a dimension behind the others."""
    if dtype in _NAMES:
        return _NAMES[dtype], list(shape)
    if dtype.is_complex:
        return {4: "F16", 8: "F32", 16: "F64"}[dtype.itemsize], [*shape, 2]
    return "U8", [*shape, dtype.itemsize]


def _other_order(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides that fill memory without gaps, but not row by row: such memory can be laid out again as it was."""
    rows = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1:
            if stride != expected:
                return None
            expected *= size
    return strides if strides != rows else None


def _filled(header: bytes, own: int, data: int) -> bytes:
    return header[: _SEALED.start] + _BEGINNING.format(header=own, data=data).encode() + header[_SEALED.stop :]
