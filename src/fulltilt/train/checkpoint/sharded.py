"""A checkpoint of tensors that are spread over ranks: a folder that every rank writes its part of.

    checkpoint-000012-step-1500/
      rank-00000.safetensors     rank 0's plain values and tensors: what all ranks have alike
      rank-00001.safetensors …   what differs from rank to rank (random states)
      shards/                    torch.distributed.checkpoint's own format, readable by its tools
      manifest.json              written last: every file with its size and checksum

It loads on any number of ranks. Shards are read as tensors only (weights_only), and the index beside them, which is a
pickle, with the few classes that it consists of: nothing in a folder can run code.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from fulltilt.errors import CheckpointError, InputError
from fulltilt.train.checkpoint import folder as folders
from fulltilt.train.checkpoint.file import read_file, write_file
from fulltilt.train.checkpoint.ranks import Team
from fulltilt.train.checkpoint.staging import Staged
from fulltilt.train.checkpoint.tree import Flat, flatten, unflatten

FORMAT: Final = 1
_MANIFEST: Final = "manifest.json"
_SHARDS: Final = "shards"
_PIECE_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank has to write."""

    tree: Any
    tensors: dict[str, Tensor]
    shards: dict[str, Tensor] = field(default_factory=dict)
    """Its pieces of tensors that are spread over ranks."""
    places: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    """Of each piece: where it begins in the whole tensor, and the whole tensor's shape."""


def part_of(state: Mapping[str, Any], flat: Flat, own: tuple[str, ...], *, rank: int) -> Part:
    """Rank 0 writes all plain values, the others only those that are their own."""
    shards, places = {}, {}
    for name, tensor in flat.sharded.items():
        try:
            (chunk,) = tensor.__create_chunk_list__()  # type: ignore[attr-defined]
        except (RuntimeError, ValueError) as error:
            raise InputError(f"{name}: this placement can't be saved ({error}); redistribute it first") from None
        local = tensor.to_local()  # type: ignore[attr-defined]
        if local.numel():
            shards[name] = local
            places[name] = (tuple(chunk.offsets), tuple(tensor.shape))
    if rank > 0:
        flat = flatten({key: state[key] for key in own if key in state})
    return Part(flat.tree, flat.tensors, shards, places)


def write(folder: Path, team: Team, part: Part, plain: Staged, shards: Staged, notes: Mapping[str, Any]) -> Path:
    """Write a folder together: aside, synced, then one rename by rank 0. When one rank fails, all raise."""
    lock = -1

    def begin() -> str:
        nonlocal lock
        partial, lock = folders.new_partial_folder(folder)
        return partial.name

    try:
        partial = folder / team.from_first(begin)
        try:
            team.together(lambda: _write_plain(partial, team.rank, part, plain))
            shards.wait()
            if any(team.share(bool(part.places))):
                from fulltilt.train.checkpoint.shards import write_shards

                write_shards(partial / _SHARDS, team, shards.tensors(), part.places)
            checks = team.together(lambda: _own_files(partial, team.rank))
            files = {path: check for found in checks for path, check in found.items()}
            manifest = {"format": FORMAT, **notes, "ranks": team.size, "files": files}
            return folder / team.from_first(lambda: _finish(partial, notes["step"], manifest))
        except BaseException:
            if team.rank == 0:
                folders.discard(partial)
            raise
    finally:
        if lock >= 0:
            os.close(lock)


def read_manifest(path: Path) -> dict[str, Any]:
    """What rank 0 wrote last; CheckpointError when it isn't there or has changed."""
    try:
        text = (path / _MANIFEST).read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"it has no {_MANIFEST}") from None
    try:
        manifest = json.loads(text)
        crc32 = manifest.pop("crc32")
        if crc32 != _crc_of(manifest):
            raise CheckpointError(f"its {_MANIFEST} has changed since it was written (checksum)")
        if manifest["format"] != FORMAT:
            raise CheckpointError(f"it has format {manifest['format']}; this version reads {FORMAT}")
    except CheckpointError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"its {_MANIFEST} can't be read ({type(error).__name__}: {error})") from None
    return dict(manifest)


def verify(path: Path, *, rank: int = 0, of: int = 1) -> None:
    """Compare files with the manifest: every `of`-th of them, the others being other ranks' to verify."""
    for name, expected in sorted(read_manifest(path)["files"].items())[rank::of]:
        try:
            found = _check(path / name)
        except FileNotFoundError:
            raise CheckpointError(f"its file {name} is missing") from None
        if found != expected:
            what = "has another size than" if found[0] != expected[0] else "has changed since"
            raise CheckpointError(f"its file {name} {what} it was written")


def load(path: Path, *, rank: int, into: Mapping[str, Any] | None = None) -> Any:
    """The state for a rank, of files that are verified; a rank that wasn't there gets rank 0's."""
    manifest = read_manifest(path)
    tensors, notes = read_file(path / _rank_file(0))
    targets = flatten(into).sharded if into is not None else {}
    whole: dict[str, Tensor] = {}
    if (path / _SHARDS).is_dir():
        from fulltilt.train.checkpoint.shards import read_shards

        whole = read_shards(path / _SHARDS, targets)
    state = unflatten(notes.get("tree"), tensors, whole)
    if 0 < rank < manifest["ranks"]:
        own_tensors, own_notes = read_file(path / _rank_file(rank))
        state |= unflatten(own_notes.get("tree"), own_tensors, whole)
    return state


def _write_plain(partial: Path, rank: int, part: Part, staged: Staged) -> None:
    data = staged.wait()
    descriptor = os.open(partial / _rank_file(rank), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        write_file(descriptor, staged.layout, {"tree": part.tree}, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _finish(partial: Path, step: int, manifest: Mapping[str, Any]) -> str:
    _write_manifest(partial, manifest)
    return folders.add_folder(partial, step).name


def _write_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    with open(path / _MANIFEST, "x") as file:
        json.dump({**manifest, "crc32": _crc_of(manifest)}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def _own_files(partial: Path, rank: int) -> dict[str, list[Any]]:
    """Size and checksum of the files that this rank wrote; rank 0 also counts the shards' index."""
    shards = [path for path in (partial / _SHARDS).glob(f"__{rank}_*") if path.is_file()]
    index = [path for path in (partial / _SHARDS).glob(".metadata") if rank == 0]
    return {str(path.relative_to(partial)): _check(path) for path in [partial / _rank_file(rank), *shards, *index]}


def _check(path: Path) -> list[Any]:
    crc32, size = 0, 0
    piece = memoryview(bytearray(_PIECE_BYTES))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(piece):
            crc32 = zlib.crc32(piece[:count], crc32)
            size += count
    return [size, f"{crc32:08x}"]


def _crc_of(manifest: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(manifest, sort_keys=True).encode()):08x}"


def _rank_file(rank: int) -> str:
    return f"rank-{rank:05d}.safetensors"
