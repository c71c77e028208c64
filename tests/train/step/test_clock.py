"""Figures from events that are read only when the device has passed them."""

from __future__ import annotations

import pytest
import torch

from fulltilt.train.step import clock
from fulltilt.train.step.clock import StepClock


class Device:
    """A clock on a device that can be held back."""

    def __init__(self):
        self.now_ms, self.passed = 0.0, True
        self.made = 0

    def event(self):
        self.made += 1
        return Event(self)


class Event:
    def __init__(self, device):
        self.device, self.at = device, None

    def record(self, stream):
        assert stream == "the stream of cuda:1", "not the current device's"
        self.at = self.device.now_ms

    def query(self):
        return self.device.passed

    def elapsed_time(self, other):
        assert self.device.passed, "read before the device had passed it"
        return other.at - self.at

    def synchronize(self):
        pytest.fail("waited")


@pytest.fixture
def device(monkeypatch):
    made = Device()
    monkeypatch.setattr(clock, "_event", made.event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: f"the stream of {device}")
    peak = {"reserved_bytes": {"all": {"current": 1 << 20, "peak": 1 << 30}}}
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda _: peak)
    return made


@pytest.fixture
def host(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(clock, "perf_counter", lambda: now[0])
    return now


def steps(it, device, host, count, *, copies=True, every_ms=10.0):
    for _ in range(count):
        it.begin()
        if copies:
            device.now_ms += 1.0
            it.copied()
        device.now_ms += 6.0
        host[0] += 0.002
        it.end(samples=32)
        host[0] += every_ms / 1e3 - 0.002


def test_busy_share_copies_and_rates(device, host):
    it = StepClock(torch.device("cuda", 1))
    it.waited(0.25)
    steps(it, device, host, 50)
    found = it.figures()
    assert found == {
        "avg_cpu_time": pytest.approx(0.002), "avg_gpu_time": pytest.approx(0.006),
        "gpu_utilization": pytest.approx(60.0), "cpu_ratio": pytest.approx(0.25), "data_wait_seconds": 0.25,
        "copy_seconds": pytest.approx(0.001), "step_p50": pytest.approx(0.01), "step_p99": pytest.approx(0.01),
        "samples_per_second": pytest.approx(3200.0), "gpu_memory_bytes": float(1 << 30),
    }  # fmt: skip


def test_the_time_of_a_validation_is_no_steps(device, host):
    it = StepClock(torch.device("cuda", 1))
    steps(it, device, host, 5)
    it.pause()
    host[0] += 60.0
    steps(it, device, host, 5)
    found = it.figures()
    assert (found["step_p99"], found["gpu_utilization"]) == (pytest.approx(0.01), pytest.approx(60.0))


def test_nothing_is_read_before_the_device_has_passed_it(device, host):
    it = StepClock(torch.device("cuda", 1))
    device.passed = False
    steps(it, device, host, 200)
    assert "avg_gpu_time" not in it.figures()
    assert device.made == 3 * 64, "a device far behind is not followed by ever more events"
    device.passed = True
    assert it.figures()["avg_gpu_time"] == pytest.approx(0.006)
    steps(it, device, host, 200)
    assert device.made == 3 * 64, "events are used again"


def test_short_steps_are_marked_now_and_then(device, host):
    it = StepClock(torch.device("cuda", 1))
    marked = []
    for _ in range(160):
        before = device.now_ms
        it.begin()
        marked.append(it._marks is not None)
        device.now_ms = before + 0.1
        host[0] += 0.0002
        it.end(32)
    assert 10 <= sum(marked) <= 13


def test_on_the_cpu_there_is_no_device_to_speak_of(host):
    it = StepClock(torch.device("cpu"))
    assert it.figures() == {}
    it.begin()
    host[0] += 0.5
    it.end(8)
    assert it.figures() == {"avg_cpu_time": 0.5}
    it.restart()
    assert it.figures() == {}


def test_memory_of_the_trials_is_not_the_steps(device, host, monkeypatch):
    reset = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset.append)
    it = StepClock(torch.device("cuda", 1))
    assert reset == [], "a program's own figures are left alone until there is something to forget"
    it.restart()
    assert reset == [torch.device("cuda", 1)]
