"""`fulltilt env`: as a real process on this machine, and its look for machines that are not here."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys

import pytest
from rich.console import Console
from tests.machine.fake_nvml import a100_mig, h200, install, lost_gpu, v100
from typer.testing import CliRunner

from fulltilt.cli import app
from fulltilt.cli.env_view import show
from fulltilt.machine import inspect, inspection
from fulltilt.machine.cgroup import Quota
from fulltilt.machine.cores import bound_cores

COMMAND = [sys.executable, "-m", "fulltilt", "env"]


def run(*arguments: str, before: tuple[str, ...] = (), **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*before, *COMMAND, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def drawn(monkeypatch, gpus, *, width: int = 80, **how) -> str:
    """The screen for a machine with these GPUs and 16 cores."""
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    if "CUDA_VISIBLE_DEVICES" not in how:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", how["CUDA_VISIBLE_DEVICES"])
    install(monkeypatch, gpus, init_error=how.get("init_error"))
    quota = how.get("quota")
    monkeypatch.setattr(inspection, "read_cores", lambda root: bound_cores(count=16, affinity=16, quota=quota))
    console = Console(width=width, record=True, highlight=False, file=open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    show(inspect(), console)
    console.file.close()
    return console.export_text()


@pytest.mark.skipif(shutil.which("taskset") is None, reason="taskset is not installed")
def test_one_core_under_taskset():
    core = str(min(os.sched_getaffinity(0)))
    flat = json.loads(run("--json", before=("taskset", "-c", core)).stdout)
    cores = flat["machine"]["cores"]
    assert cores["usable"] == 1
    assert flat["budget"]["usable"] == 1
    if cores["count"] > 1:
        assert cores["bound_by"] == "affinity"
        assert f"allows 1 of {cores['count']} cores" in cores["reason"]


def test_the_json_is_this_machine():
    done = run("--json")
    assert done.returncode == 0
    assert done.stderr == ""
    flat = json.loads(done.stdout)
    assert flat["machine"]["cores"]["count"] == os.cpu_count()
    assert flat["versions"]["python"] == sys.version.split()[0]


def test_it_is_quick():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run("--json")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.5


def test_nothing_visible_on_a_machine_of_no_use_to_cuda():
    flat = json.loads(run("--json", CUDA_VISIBLE_DEVICES="").stdout)
    assert not flat["paths"]["cuda"]["available"]
    assert all("cuda_index" not in gpu for gpu in flat["gpus"])


def test_piped_output_has_no_escape_codes():
    done = run(COLUMNS="100")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert done.stdout.startswith("cores ")


@pytest.mark.parametrize("ranks", ["0", "-1"])
def test_ranks_that_are_none(ranks):
    done = run("--ranks", ranks)
    assert done.returncode == 2
    assert done.stderr == f"fulltilt: --ranks must be 1 or more, found {ranks}\n"


def test_ranks_on_the_command_line(monkeypatch):
    install(monkeypatch, [h200()])
    flat = json.loads(CliRunner().invoke(app, ["env", "--json", "--ranks", "2"]).stdout)
    assert flat["budget"]["ranks"] == 2


def test_trying_the_paths(monkeypatch):
    install(monkeypatch, init_error="NVML_ERROR_LIBRARY_NOT_FOUND")
    asked = []
    real = inspection.find_paths
    monkeypatch.setattr(inspection, "find_paths", lambda *a, try_them: asked.append(try_them) or real(*a))
    assert CliRunner().invoke(app, ["env", "--try"]).exit_code == 0
    assert CliRunner().invoke(app, ["env"]).exit_code == 0
    assert asked == [True, False]


def test_the_screen_of_one_gpu(monkeypatch):
    screen = drawn(monkeypatch, [h200()])
    assert "cores     16 usable" in screen
    assert "cuda:0  NVIDIA H200 · 140 GiB · 139 GiB free" in screen
    assert "132 SMs · capability 9.0 · 7 NVDEC · 7 JPEG engines · GPM" in screen
    assert "driver 580.159.04 for CUDA ≤ 13.0" in " ".join(screen.split())
    assert "core budget for 1 rank," in screen
    assert "13  loading" in screen


def test_the_screen_without_a_gpu_is_one_sentence(monkeypatch):
    screen = drawn(monkeypatch, [], init_error="NVML_ERROR_LIBRARY_NOT_FOUND", width=120)
    assert screen.count("no NVIDIA driver is installed") == 1
    assert "✗  cuda         torch on the GPU                    needs a GPU" in screen


def test_the_screen_of_many_kinds_of_gpu(monkeypatch):
    screen = drawn(monkeypatch, [v100(), h200(), a100_mig(), lost_gpu()], width=120)
    assert "GPU 0   Tesla V100-SXM2-32GB" in screen
    assert "NVML 2 slice 2 · 0000:87:00.0 · MIG-6a1b2c3d" in screen
    assert "the driver gives no access to this GPU (GPU is lost)" in screen
    assert screen.count("no CUDA index:") == 1  # the same reason for all is said once


def test_a_hidden_gpu_says_so(monkeypatch):
    screen = drawn(monkeypatch, [h200(), h200(number=1)], CUDA_VISIBLE_DEVICES="1")
    assert "no CUDA index: hidden by CUDA_VISIBLE_DEVICES=1" in screen
    assert "cuda:0  NVIDIA H200" in screen


def test_a_quota_is_explained(monkeypatch):
    screen = drawn(monkeypatch, [h200()], quota=Quota(cores=2.5, group="/kubepods/pod1"), width=120)
    assert "cores     2 usable · the cgroup /kubepods/pod1 has a quota of 2.5 of 16 cores" in screen


@pytest.mark.parametrize("width", [60, 80, 120, 160])
def test_nothing_is_cut_off_or_too_wide(monkeypatch, width):
    screen = drawn(monkeypatch, [h200(), a100_mig()], width=width)
    assert max(len(line.rstrip()) for line in screen.splitlines()) <= width
    assert "…" not in screen
    flat = "".join(screen.split())
    for wanted in ("MIG-6a1b2c3d-0000-5000-8000-000000000002", "GPU-4d8f0a1c-52a5-6f0e-9c1b-000000000000"):
        assert wanted in flat


def test_the_bar_has_a_block_for_every_core(monkeypatch):
    screen = drawn(monkeypatch, [h200()])
    bar = next(line for line in screen.splitlines() if "█" in line)
    assert bar.count("██") + bar.count("░░") == 16
