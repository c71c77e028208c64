"""Limits from cgroup files, laid out as real systems have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fulltilt.machine.cgroup import cpu_quota, memory_limit

TREES = Path(__file__).parent / "cgroups"
GIB = 1024**3
POD = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1f2e.slice"


@pytest.mark.parametrize(
    ("tree", "cores", "group"),
    [
        ("v1_docker", 0.5, "/docker/3f4e"),
        ("v1_slurm", 6.0, "/slurm/uid_1000/job_77"),  # the job's 6, not the task's 8 or the user's 16
        ("v2_docker", 0.5, "/"),
        ("v2_kubernetes", 2.5, POD),  # the pod's 2.5, not the container's 4
    ],
)
def test_the_tightest_quota_of_all_ancestors_binds(tree, cores, group):
    quota = cpu_quota(TREES / tree)
    assert quota.cores == cores
    assert quota.group.startswith(group)


@pytest.mark.parametrize(
    ("tree", "limit", "free"),
    [
        ("v1_docker", 2 * GIB, 1 * GIB),  # 1.5 GiB in use, of which 0.5 GiB is page cache that gives way
        ("v1_slurm", 32 * GIB, 16 * GIB),
        ("v2_docker", 512 * 1024**2, 432 * 1024**2),
        ("v2_kubernetes", 16 * GIB, 9 * GIB),
    ],
)
def test_the_tightest_memory_limit_of_all_ancestors_binds(tree, limit, free):
    found = memory_limit(TREES / tree)
    assert (found.limit_bytes, found.free_bytes) == (limit, free)


def test_the_group_that_limits_is_named():
    assert memory_limit(TREES / "v1_slurm").group == "/slurm/uid_1000/job_77"
    assert memory_limit(TREES / "v2_kubernetes").group == POD


def test_free_memory_is_that_of_the_fullest_limited_group(tmp_path):
    """The process's own limit is the smaller one, but its siblings have nearly filled the parent's."""
    write(tmp_path, "proc/self/cgroup", "0::/jobs/mine")
    write(tmp_path, "proc/self/mountinfo", V2)
    write(tmp_path, "sys/fs/cgroup/jobs/mine/memory.max", str(4 * GIB))
    write(tmp_path, "sys/fs/cgroup/jobs/mine/memory.current", str(1 * GIB))
    write(tmp_path, "sys/fs/cgroup/jobs/memory.max", str(16 * GIB))
    write(tmp_path, "sys/fs/cgroup/jobs/memory.current", str(15 * GIB))
    found = memory_limit(tmp_path)
    assert (found.limit_bytes, found.free_bytes, found.group) == (4 * GIB, 1 * GIB, "/jobs/mine")


def test_no_limit_anywhere(tmp_path):
    write(tmp_path, "proc/self/cgroup", "0::/user.slice/session-3.scope")
    write(tmp_path, "proc/self/mountinfo", V2)
    for group in ("user.slice", "user.slice/session-3.scope"):
        write(tmp_path, f"sys/fs/cgroup/{group}/cpu.max", "max 100000")
        write(tmp_path, f"sys/fs/cgroup/{group}/memory.max", "max")
    assert cpu_quota(tmp_path) is None
    assert memory_limit(tmp_path) is None


def test_a_hybrid_system_is_read_in_both_hierarchies(tmp_path):
    """cgroup v1 controllers beside a unified hierarchy that has none, as older systemd sets it up."""
    write(tmp_path, "proc/self/cgroup", "4:memory:/\n1:cpu:/box/inner\n0::/")
    write(
        tmp_path,
        "proc/self/mountinfo",
        "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw",
    )
    write(tmp_path, "sys/fs/cgroup/cpu/box/inner/cpu.cfs_quota_us", "-1")
    write(tmp_path, "sys/fs/cgroup/cpu/box/inner/cpu.cfs_period_us", "100000")
    write(tmp_path, "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "150000")
    write(tmp_path, "sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "50000")
    quota = cpu_quota(tmp_path)
    assert (quota.cores, quota.group) == (3.0, "/box")


def test_a_controller_is_matched_whole(tmp_path):
    """`cpuset` and `cpuacct` are not `cpu`."""
    write(tmp_path, "proc/self/cgroup", "3:cpuset:/box\n2:cpuacct:/box")
    write(tmp_path, "proc/self/mountinfo", "34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset")
    write(tmp_path, "sys/fs/cgroup/cpuset/box/cpu.cfs_quota_us", "100000")
    write(tmp_path, "sys/fs/cgroup/cpuset/box/cpu.cfs_period_us", "100000")
    assert cpu_quota(tmp_path) is None


def test_a_group_outside_of_what_the_container_shows_falls_back_to_its_top(tmp_path):
    write(tmp_path, "proc/self/cgroup", "0::/../../elsewhere")
    write(tmp_path, "proc/self/mountinfo", V2.replace("0:26 / ", "0:26 /docker/abc "))
    write(tmp_path, "sys/fs/cgroup/cpu.max", "200000 100000")
    assert cpu_quota(tmp_path).cores == 2.0


def test_a_mount_point_with_a_space(tmp_path):
    write(tmp_path, "proc/self/cgroup", "0::/")
    write(tmp_path, "proc/self/mountinfo", V2.replace("/sys/fs/cgroup", "/mnt/c\\040group"))
    write(tmp_path, "mnt/c group/cpu.max", "100000 100000")
    assert cpu_quota(tmp_path).cores == 1.0


def test_a_quota_without_its_period_has_the_kernels_default(tmp_path):
    write(tmp_path, "proc/self/cgroup", "0::/")
    write(tmp_path, "proc/self/mountinfo", V2)
    write(tmp_path, "sys/fs/cgroup/cpu.max", "150000")
    assert cpu_quota(tmp_path).cores == 1.5


def test_a_system_without_cgroups(tmp_path):
    assert cpu_quota(tmp_path) is None
    assert memory_limit(tmp_path) is None


V2 = "1042 1041 0:26 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup rw,nsdelegate"


def write(root: Path, name: str, text: str) -> None:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")
