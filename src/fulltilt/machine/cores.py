"""How many cores this process may use: the smallest of the core count, the affinity mask and the cgroup quota."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fulltilt.machine.cgroup import ROOT, Quota, cpu_quota

Bound = Literal["count", "affinity", "quota"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """The cores of the machine and what of them is ours."""

    count: int
    """Logical cores that the system has online."""
    affinity: int | None = None
    """How many of them the affinity mask (taskset, cpuset, a batch system) allows."""
    quota: float | None = None
    """CPU time that the cgroup quota allows, in cores; can be a fraction."""
    quota_group: str | None = None
    """The cgroup that sets the quota."""
    usable: int
    """The smallest of the three, in whole cores, at least 1."""
    bound_by: Bound
    reason: str
    """Why it is that many, in one clause."""


def read_cores(root: Path = ROOT) -> Cores:
    """Ask the system; `root` is where the cgroup files are looked for."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return bound_cores(count=os.cpu_count() or 1, affinity=affinity, quota=cpu_quota(root))


def bound_cores(*, count: int, affinity: int | None, quota: Quota | None) -> Cores:
    """The smallest of the three; a tie goes to the plainest explanation."""
    usable = count
    bound_by: Bound = "count"
    reason = "all there are; no affinity mask or cgroup quota narrows them"
    if affinity is not None and affinity < usable:
        usable, bound_by = affinity, "affinity"
        reason = f"the affinity mask (taskset, cpuset) allows {affinity} of {count} cores"
    # A part of a core is no core: one more thread than the quota feeds is stopped in every period.
    if quota is not None and quota.cores < usable:
        usable, bound_by = int(quota.cores), "quota"
        reason = f"the cgroup {quota.group} has a quota of {quota.cores:.4g} of {count} cores"
    return Cores(
        count=count,
        affinity=affinity,
        quota=quota.cores if quota else None,
        quota_group=quota.group if quota else None,
        usable=max(1, usable),
        bound_by=bound_by,
        reason=reason,
    )
