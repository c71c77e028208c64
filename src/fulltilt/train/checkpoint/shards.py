"""How torch.distributed.checkpoint is told what we have copied out, and read without trusting what it stored."""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path, PosixPath
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, create_default_global_save_plan
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from fulltilt.errors import CheckpointError, FulltiltError
from fulltilt.train.checkpoint.ranks import Team

Places = Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
"""Of each piece: where it begins in the whole tensor, and the whole tensor's shape."""


def write_shards(path: Path, team: Team, pieces: Mapping[str, Tensor], places: Places) -> None:
    """All ranks write their pieces and sync them; when one fails, all raise."""
    try:
        save(
            {},
            storage_writer=FileSystemWriter(path, sync_files=True),
            planner=ShardPlanner(pieces, places),
            process_group=team.group,
        )
    except CheckpointException as error:  # not an Exception: it would pass by whoever catches errors
        causes = "; ".join(f"rank {rank}: {cause[0]}" for rank, cause in error.failures.items())
        raise FulltiltError(f"can't write shards into {path.parent.parent} ({causes})") from None


def read_shards(path: Path, targets: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All tensors: into their target where there is one (this rank's piece), whole otherwise."""
    reader = DataReader(path)
    tensors = {}
    try:
        for name, entry in reader.read_metadata().state_dict_metadata.items():
            if not isinstance(entry, TensorStorageMetadata):
                raise CheckpointError(f"{name} in its shards isn't a tensor")
            target = targets.get(name)
            if target is not None and target.shape != entry.size:
                raise CheckpointError(f"{name} is {[*entry.size]} in it, {[*target.shape]} where it shall go")
            tensors[name] = torch.empty(entry.size, dtype=entry.properties.dtype) if target is None else target
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message="torch.distributed is disabled"
            )  # each rank reads for itself: meant
            load(tensors, storage_reader=reader, planner=planner, no_dist=True)
    except (CheckpointException, pickle.UnpicklingError, AttributeError, EOFError, IndexError, TypeError) as error:
        raise CheckpointError(f"its shards can't be read ({type(error).__name__}: {error})") from None
    return tensors


class ShardPlanner(SavePlanner):
    """Writes pieces that lie in host memory, by name; the tensors they came from are not needed any more.

    The usual planner takes DTensors, and those must not change until everything is written.
    """

    def __init__(self, pieces: Mapping[str, Tensor], places: Places) -> None:
        self._pieces, self._places = pieces, places

    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None:
        """Nothing to prepare."""

    def create_local_plan(self) -> SavePlan:
        return SavePlan([_item(name, piece, *self._places[name]) for name, piece in self._pieces.items()])

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        return create_default_global_save_plan(_without_doubles(all_plans))

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> Tensor | io.BytesIO:
        return self._pieces[write_item.index.fqn]


def _item(name: str, piece: Tensor, offset: tuple[int, ...], shape: tuple[int, ...]) -> WriteItem:
    return WriteItem(
        index=MetadataIndex(name, offset),
        type=WriteItemType.SHARD,
        tensor_data=TensorWriteData(
            chunk=ChunkStorageMetadata(offsets=torch.Size(offset), sizes=piece.shape),
            properties=TensorProperties(dtype=piece.dtype),
            size=torch.Size(shape),
        ),
    )


def _without_doubles(plans: list[SavePlan]) -> list[SavePlan]:
    """A piece that several ranks have (replicas) is written by the one that has the least to write so far."""
    holders: dict[MetadataIndex, list[tuple[int, WriteItem]]] = {}
    for rank, plan in enumerate(plans):
        for item in plan.items:
            holders.setdefault(item.index, []).append((rank, item))
    loads, chosen = [0] * len(plans), [list[WriteItem]() for _ in plans]
    for held in holders.values():
        rank, item = min(held, key=lambda holder: loads[holder[0]])
        loads[rank] += item.tensor_storage_size() or 0
        chosen[rank].append(item)
    return [SavePlan(items) for items in chosen]


class DataReader(FileSystemReader):
    """Reads shards. Their index is a pickle: it may name the classes of an index, and no others."""

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:
        with self.fs.create_stream(self.fs.concat_path(self.path, ".metadata"), "rb") as file:
            metadata = _IndexUnpickler(file).load()
        if not isinstance(metadata, Metadata):
            raise pickle.UnpicklingError(f"the index is a {type(metadata).__name__}")
        metadata.storage_meta = StorageMeta(load_id=self.load_id)
        return metadata


def _allowed() -> dict[tuple[str, str], Any]:
    classes = (
        BytesStorageMetadata,
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        StorageMeta,
        TensorProperties,
        TensorStorageMetadata,
        metadata._MEM_FORMAT_ENCODING,
        filesystem._StorageInfo,
        PosixPath,
        torch.Size,
    )
    return {(kind.__module__, kind.__qualname__): kind for kind in classes}


class _IndexUnpickler(pickle.Unpickler):
    _ALLOWED: Final = _allowed()

    def find_class(self, module: str, name: str) -> Any:
        found = self._ALLOWED.get((module, name))
        if found is None and (module, name) == ("torch.serialization", "_get_layout"):
            return _layout
        if found is None and module == "torch":
            found = torch.__dict__.get(name)
            if not isinstance(found, torch.dtype):
                found = None
        if found is None:
            raise pickle.UnpicklingError(f"the index names {module}.{name}, which does not belong in one")
        return found


def _layout(name: str) -> torch.layout:
    if name != "torch.strided":
        raise pickle.UnpicklingError(f"the index names the layout {name!r}; shards are strided")
    return torch.strided
