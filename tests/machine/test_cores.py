"""Usable cores: the smallest of three, and which one it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulltilt.machine.cgroup import Quota
from fulltilt.machine.cores import bound_cores, read_cores

TREES = Path(__file__).parent / "cgroups"


@pytest.mark.parametrize(
    ("count", "affinity", "quota", "usable", "bound_by"),
    [
        (16, 16, None, 16, "count"),
        (16, None, None, 16, "count"),
        (16, 4, None, 4, "affinity"),
        (16, 16, 6.0, 6, "quota"),
        (16, 16, 2.5, 2, "quota"),  # a part of a core is none
        (16, 16, 0.5, 1, "quota"),  # but one there always is
        (16, 4, 2.0, 2, "quota"),
        (16, 2, 4.0, 2, "affinity"),
        (16, 16, 16.0, 16, "count"),  # a quota that takes nothing away binds nothing
        (16, 4, 4.0, 4, "affinity"),
        (2, 2, 150.0, 2, "count"),
    ],
)
def test_the_smallest_binds(count, affinity, quota, usable, bound_by):
    cores = bound_cores(
        count=count, affinity=affinity, quota=None if quota is None else Quota(cores=quota, group="/job")
    )
    assert (cores.usable, cores.bound_by) == (usable, bound_by)


@given(
    count=st.integers(1, 512),
    affinity=st.none() | st.integers(1, 512),
    quota=st.none() | st.floats(0.01, 600, allow_nan=False),
)
def test_never_more_than_any_of_the_three(count, affinity, quota):
    cores = bound_cores(
        count=count, affinity=affinity, quota=None if quota is None else Quota(cores=quota, group="/job")
    )
    assert 1 <= cores.usable <= count
    assert affinity is None or cores.usable <= affinity
    assert quota is None or cores.usable <= max(1, quota)


def test_the_reason_has_the_figures_and_the_group():
    cores = bound_cores(count=16, affinity=16, quota=Quota(cores=2.5, group="/kubepods/pod1"))
    assert cores.reason == "the cgroup /kubepods/pod1 has a quota of 2.5 of 16 cores"
    assert "1 of 8 cores" in bound_cores(count=8, affinity=1, quota=None).reason


def test_a_quota_in_the_files_is_found():
    cores = read_cores(TREES / "v2_docker")
    assert (cores.usable, cores.bound_by, cores.quota) == (1, "quota", 0.5)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity masks")
def test_a_real_affinity_mask_is_found():
    code = (
        "import os, json; count = os.cpu_count(); os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from fulltilt.machine.cores import read_cores; from pathlib import Path\n"
        "cores = read_cores(Path('/nonexistent')); print(json.dumps([count, cores.usable, cores.bound_by]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, usable, bound_by = json.loads(done.stdout)
    assert usable == 1
    assert bound_by == ("affinity" if count > 1 else "count")
