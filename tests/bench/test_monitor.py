"""The monitor's own benchmark and the known loads, as far as a machine without a GPU can tell."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pynvml as real
import pytest
from tests.machine.fake_nvml import h200, install

from fulltilt.bench.loads import LOADS
from fulltilt.bench.monitor import Cost, MonitorBench, Reading, measure_cost, measure_reading, show
from fulltilt.bench.running import cpu_seconds, running_load
from fulltilt.errors import FulltiltError, UnavailableError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("live", [False, True])
def test_the_cost_of_a_real_monitor(live):
    cost = measure_cost(interval=0.2, live=live, seconds=2.0)
    assert 0 < cost.core_percent < 50, "it runs, and sleeps most of the time"
    assert cost.cpu_ms_per_sample > 0.05
    assert cost.measured_seconds >= 2


def test_a_monitor_that_takes_no_sample_has_no_cost(monkeypatch):
    monkeypatch.setattr("fulltilt.bench.monitor._STARTING_SECONDS", 0.0)
    with pytest.raises(FulltiltError, match="took no sample"):
        measure_cost(interval=3600.0, live=False, seconds=0.1)


def test_cpu_time_is_that_of_the_whole_process():
    burn = (
        "import threading, time\n"
        "def burn():\n"
        "    while time.thread_time() < 0.5: pass\n"
        "    print(time.process_time(), flush=True)\n"
        "    time.sleep(60)\n"
        "threading.Thread(target=burn, daemon=True).start()\n"
        "time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", burn], stdout=subprocess.PIPE) as process:
        try:
            told = float(process.stdout.readline())
            assert cpu_seconds(process.pid) == pytest.approx(told, abs=0.1), "as the process itself counts"
        finally:
            process.kill()


def test_loads_run_where_there_is_a_device_and_end_with_their_user():
    with running_load("starved", device="cpu") as pid:
        worker = psutil.Process(pid)
        before, until = cpu_seconds(pid), time.monotonic() + 10
        while cpu_seconds(pid) == before:
            assert time.monotonic() < until, "the load does nothing"
            time.sleep(0.05)
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE


def test_a_load_without_its_device_says_why():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has the device")
    with pytest.raises(UnavailableError, match="the load 'fed' did not start on cuda"):
        measure_reading("fed", seconds=1)


def test_readings_are_means_over_the_load(monkeypatch):
    gpu = h200()
    gpu.gpm[real.NVML_GPM_METRIC_SM_UTIL] = 93.0
    gpu.answers["nvmlDeviceGetUtilizationRates"] = SimpleNamespace(gpu=100, memory=40)
    install(monkeypatch, [gpu])
    reading = measure_reading("idle", seconds=0.7, device="cpu")
    assert (reading.load, reading.util, reading.sm, reading.power_w) == ("idle", 100, 93.0, 76.0)
    assert 1 <= reading.samples <= 4


def test_the_table_shows_what_missed_its_target_and_why_there_are_no_readings(capsys):
    cost = {"interval_seconds": 1.0, "cpu_ms_per_sample": 4.1, "start_cpu_seconds": 0.3}
    costs = (
        Cost(**cost, live_view=False, core_percent=0.41, measured_seconds=20.0),
        Cost(**cost, live_view=True, core_percent=0.61, measured_seconds=20.0),
    )
    show(MonitorBench(machine={}, date="2026-11-15", costs=costs, readings=(), problem="no GPU can be read"))
    said = capsys.readouterr().out
    assert said.count("missed") == 1
    assert "no GPU can be read" in said
    fed = Reading(load="fed", util=100.0, sm=93.0, occupancy=12.0, tensor=80.0, dram=None, power_w=690.0, samples=9)
    show(MonitorBench(machine={}, date="2026-11-15", costs=costs, readings=(fed,)))
    said = capsys.readouterr().out
    assert "93.0 %" in said
    assert "met: fed: SM ≥ 85 %, found 93 %" in said
    assert "missed: 1 s, live view: ≤ 0.5 %, found 0.61 %" in said


def test_a_load_ends_when_the_one_who_started_it_is_killed():
    start = (
        "import sys\n"
        "from fulltilt.bench.running import running_load\n"
        "with running_load('idle', device='cpu') as pid:\n"
        "    print(pid, flush=True)\n"
        "    sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", start], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as user:
        pid = int(user.stdout.readline())
        user.send_signal(signal.SIGKILL)
        user.wait()
    until = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until, "the load outlived its user"
        time.sleep(0.05)


def test_the_json_says_what_was_met_and_leaves_out_what_was_not_measured():
    cost = Cost(
        interval_seconds=1.0,
        live_view=False,
        core_percent=0.41234,
        cpu_ms_per_sample=4.1,
        start_cpu_seconds=0.3,
        measured_seconds=20.0,
    )
    idle = Reading(load="idle", util=0.0, sm=0.0, occupancy=0.0, tensor=None, dram=0.0, power_w=76.0, samples=100)
    flat = json.loads(
        json.dumps(MonitorBench(machine={"cores": 16}, date="x", costs=(cost,), readings=(idle,)).to_json())
    )
    assert flat["costs"][0]["core_percent"] == 0.4123
    assert flat["costs"][0]["targets"][0]["met"] is True
    assert flat["readings"][0]["targets"][0]["at_most"] == 1.0
    assert flat["readings"][0]["sm"] == 0.0
    assert "problem" not in flat


def test_the_loads_are_recorded_small_by_the_script(tmp_path):
    script = ROOT / "benchmarks" / "record_loads.py"
    command = [sys.executable, str(script), str(tmp_path), "--seconds", "1", "--device", "cpu", "--loads", "idle"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("idle: ")
    lines = (tmp_path / "idle.jsonl").read_text().splitlines()
    assert 1 <= len(lines) <= 5
    assert all(isinstance(core, int) for core in json.loads(lines[-1])["cpu"]["cores"])
    assert LOADS == ("idle", "starved", "bursty", "fed")
