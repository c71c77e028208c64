"""RAM under a limit, shared memory, disks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

from fulltilt.machine.cgroup import MemoryLimit
from fulltilt.machine.memory import bound_memory, read_disks, read_memory, read_shared_memory

TREES = Path(__file__).parent / "cgroups"
GIB = 1024**3


def limit(limit_bytes: int, free_bytes: int | None) -> MemoryLimit:
    return MemoryLimit(limit_bytes=limit_bytes, free_bytes=free_bytes, group="/job")


def test_without_a_limit_all_ram_is_usable():
    memory = bound_memory(total_bytes=64 * GIB, available_bytes=40 * GIB, limit=None)
    assert (memory.usable_bytes, memory.available_bytes, memory.bound_by) == (64 * GIB, 40 * GIB, "ram")
    assert memory.limit_bytes is None


def test_a_limit_below_the_ram_binds():
    memory = bound_memory(total_bytes=64 * GIB, available_bytes=40 * GIB, limit=limit(8 * GIB, 3 * GIB))
    assert (memory.usable_bytes, memory.available_bytes, memory.bound_by) == (8 * GIB, 3 * GIB, "cgroup")
    assert memory.limit_group == "/job"


def test_what_the_machine_lacks_a_limit_cannot_give():
    memory = bound_memory(total_bytes=64 * GIB, available_bytes=2 * GIB, limit=limit(32 * GIB, 30 * GIB))
    assert memory.available_bytes == 2 * GIB


def test_a_limit_above_the_ram_binds_nothing():
    memory = bound_memory(total_bytes=64 * GIB, available_bytes=40 * GIB, limit=limit(64 * GIB, 64 * GIB))
    assert memory.bound_by == "ram"
    assert memory.limit_bytes is None


def test_a_limit_whose_use_is_unknown_counts_in_full():
    memory = bound_memory(total_bytes=64 * GIB, available_bytes=40 * GIB, limit=limit(8 * GIB, None))
    assert memory.available_bytes == 8 * GIB


def test_the_limit_in_the_files_is_found():
    assert read_memory(TREES / "v2_docker").usable_bytes == 512 * 1024**2


def test_the_machine_itself(tmp_path):
    memory = read_memory(tmp_path)
    assert memory.total_bytes == psutil.virtual_memory().total
    assert 0 < memory.available_bytes <= memory.usable_bytes <= memory.total_bytes


def test_shared_memory_is_the_size_of_its_file_system(tmp_path):
    shared = read_shared_memory(str(tmp_path))
    size = os.statvfs(tmp_path)
    assert shared.total_bytes == size.f_blocks * size.f_frsize
    assert 0 <= shared.free_bytes <= shared.total_bytes


def test_no_shared_memory():
    assert read_shared_memory("/nonexistent/shm") is None


def test_disks_are_those_that_training_writes_to(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    work, temporary = read_disks()
    assert (work.use, work.path) == ("working directory", str(tmp_path))
    assert temporary.use == "temporary files"
    assert all(0 <= disk.free_bytes <= disk.total_bytes for disk in (work, temporary))


def test_a_working_directory_that_is_gone_is_a_problem_and_no_crash(tmp_path):
    code = (
        "import os, shutil; os.chdir(os.environ['GONE']); shutil.rmtree(os.environ['GONE'])\n"
        "from fulltilt.machine.memory import read_disks; disk = read_disks()[0]\n"
        "print(disk.problem, disk.free_bytes)"
    )
    gone = tmp_path / "gone"
    gone.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "GONE": str(gone)}
    )
    assert "No such file" in done.stdout
    assert done.stdout.strip().endswith("None")
