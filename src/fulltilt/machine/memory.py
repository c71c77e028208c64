"""Where bytes can be kept: RAM and its cgroup limit, shared memory, disks."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fulltilt.machine.cgroup import ROOT, MemoryLimit, memory_limit

Use = Literal["working directory", "temporary files"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """RAM, and what of it is ours."""

    total_bytes: int
    limit_bytes: int | None = None
    """What the cgroup allows, when that is less than there is."""
    limit_group: str | None = None
    usable_bytes: int
    """The smaller of the two."""
    available_bytes: int
    """What can be taken now without swapping or being killed."""
    bound_by: Literal["ram", "cgroup"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemory:
    """/dev/shm, through which loader processes hand batches over."""

    path: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """The disk behind a directory that training writes to."""

    use: Use
    path: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    """What this user may still write."""
    problem: str | None = None
    """Why it could not be read."""


def read_memory(root: Path = ROOT) -> Memory:
    """Ask the system; `root` is where the cgroup files are looked for."""
    import psutil

    ram = psutil.virtual_memory()
    return bound_memory(total_bytes=ram.total, available_bytes=ram.available, limit=memory_limit(root))


def bound_memory(*, total_bytes: int, available_bytes: int, limit: MemoryLimit | None) -> Memory:
    """RAM under a cgroup limit; a limit above the RAM binds nothing."""
    if limit is None or limit.limit_bytes >= total_bytes:
        return Memory(
            total_bytes=total_bytes, usable_bytes=total_bytes, available_bytes=available_bytes, bound_by="ram"
        )
    free = limit.limit_bytes if limit.free_bytes is None else limit.free_bytes
    return Memory(
        total_bytes=total_bytes,
        limit_bytes=limit.limit_bytes,
        limit_group=limit.group,
        usable_bytes=limit.limit_bytes,
        available_bytes=min(available_bytes, free),
        bound_by="cgroup",
    )


def read_shared_memory(path: str = "/dev/shm") -> SharedMemory | None:
    """None where the system has none (macOS, Windows) or the container left it out."""
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return None
    return SharedMemory(path=path, total_bytes=usage.total, free_bytes=usage.free)


def read_disks() -> tuple[Disk, ...]:
    """The working directory's disk and the temporary directory's."""
    return _read_disk("working directory", os.getcwd), _read_disk("temporary files", tempfile.gettempdir)


def _read_disk(use: Use, find: Callable[[], str]) -> Disk:
    try:
        path = find()
        usage = shutil.disk_usage(path)
    except OSError as error:  # a working directory that was deleted, or nowhere to write temporary files
        return Disk(use=use, problem=str(error))
    return Disk(use=use, path=path, total_bytes=usage.total, free_bytes=usage.free)
