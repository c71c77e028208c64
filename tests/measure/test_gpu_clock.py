"""The GPU's clock on a stand-in for the driver, whose events pass when they are told to; tests/gpu has the real one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fulltilt.measure.gpu_clock import READ_FROM, GpuClock
from fulltilt.measure.timeline import Record


class Gpu:
    """Time in ms; an event is recorded at the current one."""

    def __init__(self) -> None:
        self.now = 0.0
        self.capturing = False
        self.made = 0
        self.passed = True


class Event:
    gpu: Gpu

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.gpu.made += 1
        self.at = -1.0

    def record(self, stream: object) -> None:
        assert not self.gpu.capturing
        self.at = self.gpu.now

    def query(self) -> bool:
        return self.gpu.passed

    def elapsed_time(self, other: Event) -> float:
        return other.at - self.at


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu()
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: gpu.capturing, raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "stream")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "Event", type("Event", (Event,), {"gpu": gpu}))
    return gpu


@pytest.fixture
def clock(gpu: Gpu) -> GpuClock:
    return GpuClock(SimpleNamespace(index=0))


def step(clock: GpuClock, gpu: Gpu, *, wait: float, work: float, beside: bool = False) -> Record:
    record = Record(0, [], beside)
    clock.wait_began()
    gpu.now += wait
    clock.wait_ended()
    gpu.now += work
    clock.step_ended(record)
    return record


def test_steps_and_starvation_on_the_gpus_clock(clock: GpuClock, gpu: Gpu) -> None:
    records = [step(clock, gpu, wait=3, work=5) for _ in range(4)]
    clock.finish()
    assert records[0].gpu_seconds is None  # nothing to count from
    assert [record.gpu_seconds for record in records[1:]] == pytest.approx([0.008] * 3)
    assert [record.starved_seconds for record in records[1:]] == pytest.approx([0.003] * 3)


def test_a_step_with_an_evaluation_beside_it_has_no_figure(clock: GpuClock, gpu: Gpu) -> None:
    records = [step(clock, gpu, wait=0, work=5, beside=place == 2) for place in range(4)]
    clock.finish()
    assert [record.gpu_seconds is None for record in records] == [True, False, True, False]


def test_waits_of_an_evaluation_are_dropped(clock: GpuClock, gpu: Gpu) -> None:
    step(clock, gpu, wait=0, work=1)
    clock.wait_began()
    gpu.now += 50
    clock.wait_ended()
    clock.drop_waits()
    record = step(clock, gpu, wait=2, work=1)
    clock.finish()
    assert record.starved_seconds == pytest.approx(0.002)


def test_nothing_is_put_into_a_stream_that_is_being_captured(clock: GpuClock, gpu: Gpu) -> None:
    step(clock, gpu, wait=0, work=1)
    gpu.capturing = True
    captured = step(clock, gpu, wait=1, work=1)
    gpu.capturing = False
    records = [step(clock, gpu, wait=1, work=1) for _ in range(2)]
    clock.finish()
    assert captured.gpu_seconds is None
    assert records[0].gpu_seconds is None
    assert records[1].gpu_seconds == pytest.approx(0.002)


def test_a_long_run_reads_on_the_way_and_uses_its_events_again(clock: GpuClock, gpu: Gpu) -> None:
    made = gpu.made
    records = [step(clock, gpu, wait=1, work=1) for _ in range(READ_FROM * 5)]
    assert gpu.made == made
    assert records[1].gpu_seconds == pytest.approx(0.002)
    assert records[-1].gpu_seconds is None  # not asked for yet
    clock.finish()
    assert records[-1].gpu_seconds == pytest.approx(0.002)


def test_it_never_waits_for_a_gpu_that_is_behind(clock: GpuClock, gpu: Gpu) -> None:
    gpu.passed = False
    records = [step(clock, gpu, wait=1, work=1) for _ in range(READ_FROM + 50)]
    assert all(record.gpu_seconds is None for record in records)
