"""The sampler against the fake driver: what a tick reads, what it leaves to the slow lane, what it survives."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pynvml as real
import pytest
from tests.machine.fake_nvml import GIB, Refuse, a100_mig, h200, install, lost_gpu, v100

from fulltilt.errors import InputError, UnavailableError
from fulltilt.machine.sampler import Sampler

SLOW = {"nvmlDeviceGetPcieThroughput", "nvmlDeviceGetComputeRunningProcesses"}


@pytest.fixture
def pause():
    """Longer than GPM's least interval, and long enough for the kernel's clock ticks."""
    return lambda: time.sleep(0.12)


def working(gpu, *, util=97):
    gpu.answers["nvmlDeviceGetUtilizationRates"] = SimpleNamespace(gpu=util, memory=50)
    if gpu.gpm is not None:
        gpu.gpm[real.NVML_GPM_METRIC_SM_UTIL] = 88.0
    return gpu


def test_a_sample_has_every_figure_of_the_card(monkeypatch, pause):
    gpu = working(h200())
    gpu.answers |= {
        "nvmlDeviceGetCurrentClocksEventReasons": 0x1 | 0x4 | 0x40,
        "nvmlDeviceGetComputeRunningProcesses": lambda: [SimpleNamespace(pid=77, usedGpuMemory=5 * GIB)],
    }
    install(monkeypatch, [gpu])
    with Sampler() as sampler:
        sampler.start()
        pause()
        sampler.read_slow()
        first = sampler.read().gpus[0]
    assert (first.index, first.name, first.util, first.sm) == (0, "NVIDIA H200", 97, 88.0)
    assert first.uuid.startswith("GPU-4d8f")
    assert (first.mem_used, first.mem_total) == (GIB, 150_754_820_096)
    assert (first.temp, first.power_w, first.power_limit_w) == (31, 76.0, 700.0)
    assert (first.clock_sm_mhz, first.clock_sm_max_mhz) == (345, 1980)
    assert first.throttle == ("power cap", "thermal slowdown (hardware)"), "idle clocks are not throttling"
    assert first.processes == {"77": 5 * GIB}


def test_what_never_changes_is_said_once_and_slow_figures_when_taken(monkeypatch, pause):
    install(monkeypatch, [h200()])
    with Sampler(slow_seconds=60) as sampler:
        sampler.start()
        pause()
        first = sampler.read()
        pause()
        second = sampler.read()
    assert first.gpus[0].uuid is not None
    assert second.gpus[0].uuid is None
    assert second.gpus[0].processes is None
    assert second.t > first.t


def test_a_tick_asks_nothing_slow(monkeypatch, pause):
    fake = install(monkeypatch, [v100()])
    with Sampler() as sampler:
        pause()
        fake.calls.clear()
        sampler.read()
        assert not SLOW & {*fake.calls}
        assert "nvmlDeviceGetHandleByIndex" not in fake.calls, "handles are opened once"
        sampler.read_slow()
        assert {*fake.calls} >= SLOW


def test_a_card_with_gpm_is_never_asked_for_its_pcie_counters(monkeypatch):
    fake = install(monkeypatch, [h200()])
    with Sampler() as sampler:
        sampler.read_slow()
    assert "nvmlDeviceGetPcieThroughput" not in fake.calls


def test_what_a_card_lacks_is_absent(monkeypatch, pause):
    gpu = v100()
    gpu.answers["nvmlDeviceGetPowerUsage"] = Refuse("NVML_ERROR_NOT_SUPPORTED")
    install(monkeypatch, [gpu])
    with Sampler() as sampler:
        sampler.start()
        pause()
        flat = sampler.read().to_json()["gpus"][0]
    assert not {"sm", "occupancy", "tensor", "dram", "power_w"} & flat.keys()
    assert flat["util"] == 0


def test_the_slices_of_a_divided_gpu_are_read_each(monkeypatch, pause):
    install(monkeypatch, [a100_mig()])
    with Sampler() as sampler:
        sampler.start()
        pause()
        gpus = sampler.read().gpus
    assert [gpu.label for gpu in gpus] == ["0:0", "0:2"]
    assert [gpu.mem_total for gpu in gpus] == [20 * GIB, 10 * GIB]
    assert all(gpu.util is None for gpu in gpus), "a slice has no utilisation, which is not zero"
    assert all(gpu.temp == 31 for gpu in gpus), "the sensors are the GPU's"


def test_a_gpu_that_is_lost_is_named_and_the_others_go_on(monkeypatch, pause):
    gpus = [working(h200()), working(h200(number=1))]
    fake = install(monkeypatch, gpus)
    with Sampler() as sampler:
        sampler.start()
        pause()
        assert all(gpu.lost is None for gpu in sampler.read().gpus)
        gpus[0].fail("NVML_ERROR_GPU_IS_LOST")
        pause()
        lost, other = sampler.read().gpus
        fake.calls.clear()
        sampler.read_slow()
        pause()
        again = sampler.read().gpus[0]
    assert "stopped answering" in lost.lost
    assert lost.util is None
    assert other.util == 97
    assert again.lost == lost.lost
    assert fake.open_count == 0


def test_a_gpu_that_was_lost_before_we_came_is_listed(monkeypatch, pause):
    install(monkeypatch, [lost_gpu(), working(h200(number=1))])
    with Sampler() as sampler:
        sampler.start()
        pause()
        lost, other = sampler.read().gpus
    assert lost.lost is not None
    assert other.util == 97


def test_no_driver_is_one_sentence_and_the_cpu_goes_on(monkeypatch, pause):
    install(monkeypatch, init_error="NVML_ERROR_LIBRARY_NOT_FOUND")
    with Sampler() as sampler:
        sampler.start()
        pause()
        sample = sampler.read()
    assert sampler.problem.startswith("no GPU can be read: ")
    assert sample.gpus == ()
    assert sample.cpu.util is not None


@pytest.mark.parametrize(
    ("wanted", "labels"),
    [
        (["1"], ("1",)),
        (["GPU-4d8f0a1c-52a5-6f0e-9c1b-000000000001", "0"], ("1", "0")),
        (["0", "0"], ("0",)),
        ([], ("0", "1", "2:0", "2:2")),
        (["2:2"], ("2:2",)),
        (["2"], ("2:0", "2:2")),
    ],
)
def test_gpus_are_chosen_by_index_or_uuid(monkeypatch, wanted, labels):
    install(monkeypatch, [h200(), h200(number=1), a100_mig()])
    with Sampler(gpus=wanted) as sampler:
        assert sampler.labels == labels


def test_a_gpu_that_is_not_there_is_refused_with_those_that_are(monkeypatch):
    fake = install(monkeypatch, [h200()])
    with pytest.raises(InputError, match=r"no GPU '3'; there are: 0 \(GPU-4d8f"):
        Sampler(gpus=["3"])
    assert fake.open_count == 0


def test_a_driver_without_gpus_is_a_problem_and_closed_again(monkeypatch):
    fake = install(monkeypatch, [])
    with Sampler() as sampler:
        assert sampler.problem == "no GPU can be read: the NVIDIA driver lists none that can be computed on"
        assert fake.open_count == 0
    with pytest.raises(UnavailableError, match="lists none"):
        Sampler(gpus=["0"])
    assert fake.open_count == 0


def test_a_gpu_wanted_without_a_driver_is_unavailable(monkeypatch):
    install(monkeypatch, init_error="NVML_ERROR_DRIVER_NOT_LOADED")
    with pytest.raises(UnavailableError):
        Sampler(gpus=["0"])


def test_closing_waits_for_the_slow_lane_and_frees_everything(monkeypatch):
    fake = install(monkeypatch, [h200()])
    sampler = Sampler(slow_seconds=0.01)
    sampler.start()
    time.sleep(0.1)
    sampler.close()
    sampler.close()
    assert not fake.samples
    assert fake.open_count == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "fulltilt-slow-readings"]


def test_a_process_and_its_children_are_read(monkeypatch, pause):
    gpu = h200()
    install(monkeypatch, [gpu])
    burn = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    with subprocess.Popen([sys.executable, "-c", burn], start_new_session=True) as tree:
        try:
            gpu.answers["nvmlDeviceGetComputeRunningProcesses"] = lambda: [
                SimpleNamespace(pid=tree.pid, usedGpuMemory=GIB),
                SimpleNamespace(pid=1, usedGpuMemory=7 * GIB),
            ]
            with Sampler(pid=tree.pid, slow_seconds=0.05) as sampler:
                sampler.start()
                process = sampler.read().process
                until = time.monotonic() + 30
                while process.count < 2 or not process.cpu or process.cpu < 5:  # until the child starts and is found
                    assert time.monotonic() < until, f"the child's CPU time doesn't count: {process}"
                    pause()
                    process = sampler.read().process
                assert sampler.ended is None
                os.killpg(tree.pid, 9)
                tree.wait()
                assert sampler.ended == f"process {tree.pid} ({process.name}) has ended"
                sampler.read()  # the end of the process is not the end of the world
        finally:
            if tree.poll() is None:
                os.killpg(tree.pid, 9)
    assert process.count == 2
    assert process.gpu_mem == {"0": GIB}, "another process's memory does not"


def test_a_process_that_is_not_there_is_refused():
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    with pytest.raises(InputError, match=f"no process {gone.pid} is running"):
        Sampler(pid=gone.pid)


def test_a_slow_tick_gets_the_newest_of_the_slow_figures(monkeypatch):
    gpu = h200()
    install(monkeypatch, [gpu])
    with Sampler() as sampler:
        for milliwatts in (500_000, 600_000):
            gpu.answers["nvmlDeviceGetEnforcedPowerLimit"] = milliwatts
            sampler.read_slow()
        assert sampler.read().gpus[0].power_limit_w == 600
        assert sampler.read().gpus[0].power_limit_w is None
