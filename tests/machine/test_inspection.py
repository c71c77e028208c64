"""The whole machine at once, and its JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.machine.fake_nvml import a100_mig, h200, install

import fulltilt.machine
from fulltilt.machine import inspect

TREES = Path(__file__).parent / "cgroups"


def keys(part) -> set[str]:
    """Every key at any depth, as a path."""
    if isinstance(part, list):
        return set().union(*(keys(item) for item in part))
    if not isinstance(part, dict):
        return set()
    return {key for name, item in part.items() for key in (name, *(f"{name}.{below}" for below in keys(item)))}


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)


def test_the_top_of_the_json_with_gpus(monkeypatch):
    install(monkeypatch, [h200(), h200(number=1)])
    flat = inspect().to_json()
    assert list(flat) == ["machine", "gpus", "versions", "paths", "budget"]
    assert list(flat["machine"]) == ["cores", "memory", "shm", "disk"]
    assert flat == json.loads(json.dumps(flat))
    assert flat["budget"]["ranks"] == 2  # one for each GPU


def test_the_top_of_the_json_without_a_driver(monkeypatch):
    install(monkeypatch, init_error="NVML_ERROR_LIBRARY_NOT_FOUND")
    flat = inspect().to_json()
    assert flat["gpus"] == []
    assert flat["gpu_problem"].startswith("no GPU can be read")
    assert flat["budget"]["ranks"] == 1
    assert "driver" not in flat["versions"]


def test_the_keys_that_scripts_rely_on(monkeypatch):
    install(monkeypatch, [h200()])
    got = keys(inspect().to_json())
    assert {
        "machine.cores.count",
        "machine.cores.affinity",
        "machine.cores.usable",
        "machine.cores.bound_by",
        "machine.cores.reason",
        "machine.memory.total_bytes",
        "machine.memory.usable_bytes",
        "machine.memory.available_bytes",
        "machine.memory.bound_by",
        "machine.disk.free_bytes",
        "gpus.index",
        "gpus.cuda_index",
        "gpus.uuid",
        "gpus.pci",
        "gpus.name",
        "gpus.memory_bytes",
        "gpus.compute_capability",
        "gpus.decoders",
        "gpus.jpeg_engines",
        "gpus.gpm",
        "versions.python",
        "versions.torch",
        "versions.driver",
        "paths.nvjpeg.available",
        "paths.nvjpeg.tried",
        "budget.usable",
        "budget.ranks",
        "budget.system.value",
        "budget.system.reason",
        "budget.loading.value",
        "budget.training.value",
        "budget.workers_per_rank.value",
        "budget.assist_workers.value",
        "budget.async_workers.value",
    } <= got


def test_what_is_unknown_is_absent_and_what_is_none_is_zero(monkeypatch):
    install(monkeypatch, [a100_mig()])
    gpus = inspect().to_json()["gpus"]
    assert "cuda_index" not in gpus[0]
    assert "MIG" in gpus[0]["cuda_index_reason"]
    assert gpus[0]["jpeg_engines"] == 0
    assert gpus[0]["slice_index"] == 0


@pytest.mark.parametrize("tree", ["v1_docker", "v2_docker"])
def test_a_container_with_half_a_core(monkeypatch, tree):
    install(monkeypatch, init_error="NVML_ERROR_LIBRARY_NOT_FOUND")
    machine = inspect(root=TREES / tree).to_json()
    found = machine["machine"]["cores"]
    assert (found["usable"], found["bound_by"], found["quota"]) == (1, "quota", 0.5)
    assert found["quota_group"] in found["reason"]
    assert machine["machine"]["memory"]["bound_by"] == "cgroup"
    assert machine["budget"]["usable"] == 1


def test_a_budget_for_more_ranks(monkeypatch):
    install(monkeypatch, [h200()])
    assert inspect(ranks=3).budget.ranks == 3


def test_the_room_says_what_it_has():
    assert set(fulltilt.machine.__all__) == set(fulltilt.machine._HOMES)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fulltilt.machine.nothing


def test_looking_imports_no_torch():
    code = (
        "import sys; from fulltilt.machine import inspect; inspect()\n"
        "print([name for name in ('torch', 'triton', 'numpy', 'torchvision') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
