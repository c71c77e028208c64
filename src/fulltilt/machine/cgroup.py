"""What a container or a batch system allows this process: CPU time and memory, from cgroup v1 and v2.

A process sits in one group per hierarchy; a limit on any ancestor holds for it, so the tightest one binds.
Every function takes the root of the file system, so that a tree of real files can stand in for a machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path("/")
_UNLIMITED_V1 = 1 << 60
"""cgroup v1 writes "no memory limit" as the largest multiple of the page size; nothing real is near it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """CPU time per time, in cores."""

    cores: float
    group: str
    """The cgroup that sets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """Bytes that a cgroup and all below it may hold."""

    limit_bytes: int
    free_bytes: int | None
    """What the fullest of the limited groups still has; its page cache counts as free, because it gives way."""
    group: str
    """The cgroup that sets the limit."""


@dataclass(frozen=True, slots=True)
class _Group:
    version: int
    folder: Path
    name: str


def cpu_quota(root: Path = ROOT) -> Quota | None:
    """The tightest CPU quota over this process, or None."""
    quotas = [
        Quota(cores=cores, group=group.name)
        for group in _groups("cpu", root)
        if (cores := _quota_v2(group.folder) if group.version == 2 else _quota_v1(group.folder)) is not None
    ]
    return min(quotas, key=lambda quota: quota.cores, default=None)


def memory_limit(root: Path = ROOT) -> MemoryLimit | None:
    """The tightest memory limit over this process, or None."""
    found: list[MemoryLimit] = []
    for group in _groups("memory", root):
        v2 = group.version == 2
        limit = _number(group.folder / ("memory.max" if v2 else "memory.limit_in_bytes"))
        if limit is None or limit >= _UNLIMITED_V1:
            continue
        used = _number(group.folder / ("memory.current" if v2 else "memory.usage_in_bytes"))
        cache = _stat(group.folder / "memory.stat", "inactive_file" if v2 else "total_inactive_file") or 0
        free = None if used is None else max(0, limit - max(0, used - cache))
        found.append(MemoryLimit(limit_bytes=limit, free_bytes=free, group=group.name))
    if not found:
        return None
    tightest = min(found, key=lambda limit: limit.limit_bytes)
    known = [limit.free_bytes for limit in found if limit.free_bytes is not None]
    return MemoryLimit(limit_bytes=tightest.limit_bytes, free_bytes=min(known, default=None), group=tightest.group)


def _groups(controller: str, root: Path) -> Iterator[_Group]:
    """This process's group and its ancestors, in each hierarchy that has the controller."""
    memberships = [line.split(":", 2) for line in _text(root / "proc/self/cgroup").splitlines() if line.count(":") >= 2]
    mounts = [mount for line in _text(root / "proc/self/mountinfo").splitlines() if (mount := _mount(line))]
    for _, controllers, name in memberships:
        version = 1 if controllers else 2
        if version == 1 and controller not in controllers.split(","):
            continue
        fitting = [
            (top, point)
            for kind, top, point, options in mounts
            if (kind == "cgroup2" if version == 2 else kind == "cgroup" and controller in options)
        ]
        if fitting:
            yield from _ancestry(version, PurePosixPath(name), fitting, root)


def _ancestry(
    version: int, name: PurePosixPath, mounts: list[tuple[PurePosixPath, str]], root: Path
) -> Iterator[_Group]:
    # A container's mount may show only a part of the hierarchy: usually the part that holds the group. Where it does
    # not (the process was moved out of the container's view), the top of what is shown is the nearest to be read.
    inside = [(top, point) for top, point in mounts if name.is_relative_to(top)]
    top, point = max(inside or mounts, key=lambda mount: len(mount[0].parts))
    below = name.relative_to(top) if inside else PurePosixPath()
    for part in (below, *below.parents):
        yield _Group(version, root / point.lstrip("/") / part, str(top / part))


def _mount(line: str) -> tuple[str, PurePosixPath, str, list[str]] | None:
    """File system type, root within it, mount point and options of one line of mountinfo(5), if it is a cgroup's."""
    left, separator, right = line.partition(" - ")
    fields, tail = left.split(), right.split()
    if not separator or len(fields) < 5 or len(tail) < 3 or tail[0] not in ("cgroup", "cgroup2"):
        return None
    return tail[0], PurePosixPath(_unescape(fields[3])), _unescape(fields[4]), tail[2].split(",")


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _quota_v2(folder: Path) -> float | None:
    words = _text(folder / "cpu.max").split()
    if not words or words[0] == "max":
        return None
    return int(words[0]) / int(words[1] if len(words) > 1 else 100_000)


def _quota_v1(folder: Path) -> float | None:
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota is not None and period and quota > 0 else None


def _number(file: Path) -> int | None:
    text = _text(file).strip()
    return int(text) if re.fullmatch(r"-?\d+", text) else None


def _stat(file: Path, key: str) -> int | None:
    found = re.search(rf"^{key} (\d+)$", _text(file), re.MULTILINE)
    return int(found[1]) if found else None


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # the root group has no limits to read; other systems have no cgroups
        return ""
