"""Where each tensor lies in a file, and the header that says so: safetensors, with our notes in its metadata.

    8 bytes     length of the header
    header      JSON: {"__metadata__": {"crc32": "…", "notes": "…"}, name: {"dtype", "shape", "data_offsets"}, …}
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
_NO_CRC: Final = "00000000"
_PREFIX: Final = b'{"__metadata__":{"crc32":"'
"""Every header begins so. The checksum of the header comes next, at a place that does not move."""

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
            strides = tensor.stride() if not tensor.is_contiguous() and _fills_its_memory(tensor) else None
            place = Place(name=name, dtype=tensor.dtype, shape=tuple(tensor.shape), strides=strides, begin=begin)
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

    def header(self, notes: Mapping[str, Any], *, data_crc32: int) -> bytes:
        """Length and header; as long for one checksum as for any other."""
        ours = {"format": FORMAT, "data_crc32": f"{data_crc32:08x}", "beside": self._beside, **notes}
        metadata = json.dumps(json.dumps(ours, separators=(",", ":")))
        entries = f",{self.entries}" if self.places else ""
        text = _PREFIX + f'{_NO_CRC}","notes":{metadata}}}{entries}}}'.encode()
        text += b" " * (-(LENGTH_BYTES + len(text)) % _ALIGNED_TO)
        whole = len(text).to_bytes(LENGTH_BYTES, "little") + text
        return _with_crc(whole, zlib.crc32(whole))


def read_header(whole: bytes) -> tuple[Layout, dict[str, Any]]:
    """Layout and notes of a header (with its length in front); CheckpointError when it isn't one of ours, unchanged."""
    begin = LENGTH_BYTES + len(_PREFIX)
    if whole[LENGTH_BYTES:begin] != _PREFIX:
        raise CheckpointError("it does not begin as a checkpoint does")
    stored = whole[begin : begin + len(_NO_CRC)]
    if _with_crc(whole, zlib.crc32(_with_crc(whole, 0)))[begin : begin + len(_NO_CRC)] != stored:
        raise CheckpointError("its header has changed since it was written (checksum)")
    try:
        entries = json.loads(whole[LENGTH_BYTES:])
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
    return layout, notes


def _place(name: str, entry: Mapping[str, Any], beside: Mapping[str, Any]) -> Place:
    dtype = getattr(torch, beside["dtype"]) if "dtype" in beside else _DTYPES[entry["dtype"]]
    if not isinstance(dtype, torch.dtype):
        raise CheckpointError(f"{name} has an unknown type, {beside['dtype']!r}")
    shape = entry["shape"][:-1] if "dtype" in beside else entry["shape"]
    strides = tuple(beside["strides"]) if "strides" in beside else None
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


def _fills_its_memory(tensor: Tensor) -> bool:
    """Whether strides are a permutation of row by row: such memory can be laid out again as it was."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _with_crc(whole: bytes, crc32: int) -> bytes:
    begin = LENGTH_BYTES + len(_PREFIX)
    return whole[:begin] + f"{crc32:08x}".encode() + whole[begin + len(_NO_CRC) :]
