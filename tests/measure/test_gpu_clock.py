"""The GPU's clock on a stand-in for the driver, whose events pass when they are told to; tests/gpu has the real one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fulltilt.measure.gpu_clock import READ_FROM, GpuClock, window_steps
from fulltilt.measure.timeline import Record


class Gpu:
    """Time in ms; an event is recorded at the current one."""

    def __init__(self) -> None:
        self.now = 0.0
        self.capturing = False
        self.made = 0
        self.recorded = 0
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
        self.gpu.recorded += 1

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
    return GpuClock(SimpleNamespace(index=0), lambda: round(gpu.now * 1e6))


def step(clock: GpuClock, gpu: Gpu, *, wait: float, work: float, beside: bool = False) -> Record:
    record = Record(0, [], beside)
    clock.wait_began()
    gpu.now += wait
    clock.wait_ended()
    gpu.now += work
    clock.step_ended(record)
    return record


def test_steps_and_starvation_on_the_gpus_clock(clock: GpuClock, gpu: Gpu) -> None:
    records = [step(clock, gpu, wait=30, work=50) for _ in range(4)]
    clock.finish()
    assert records[0].gpu_seconds is None  # nothing to count from
    assert [record.gpu_seconds for record in records[1:]] == pytest.approx([0.08] * 3)
    assert [record.starved_seconds for record in records[1:]] == pytest.approx([0.03] * 3)


def test_a_step_with_an_evaluation_beside_it_has_no_figure(clock: GpuClock, gpu: Gpu) -> None:
    records = [step(clock, gpu, wait=0, work=50, beside=place == 2) for place in range(4)]
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
    step(clock, gpu, wait=0, work=10)
    gpu.capturing = True
    captured = step(clock, gpu, wait=10, work=10)
    gpu.capturing = False
    records = [step(clock, gpu, wait=10, work=10) for _ in range(2)]
    clock.finish()
    assert captured.gpu_seconds is None
    assert records[0].gpu_seconds is None
    assert records[1].gpu_seconds == pytest.approx(0.02)


def test_a_long_run_reads_on_the_way_and_uses_its_events_again(clock: GpuClock, gpu: Gpu) -> None:
    made = gpu.made
    records = [step(clock, gpu, wait=10, work=10) for _ in range(READ_FROM * 5)]
    assert gpu.made == made
    assert records[1].gpu_seconds == pytest.approx(0.02)
    assert records[-1].gpu_seconds is None  # not asked for yet
    clock.finish()
    assert records[-1].gpu_seconds == pytest.approx(0.02)


def test_it_never_waits_for_a_gpu_that_is_behind(clock: GpuClock, gpu: Gpu) -> None:
    gpu.passed = False
    records = [step(clock, gpu, wait=10, work=10) for _ in range(READ_FROM + 50)]
    assert all(record.gpu_seconds is None for record in records)


@pytest.mark.parametrize(
    ("step_ms", "steps"), [(0.0, 16), (0.1, 16), (1.0, 10), (2.5, 4), (9.0, 2), (10.0, 1), (500, 1)]
)
def test_events_cost_a_quarter_of_a_percent_or_come_every_sixteen_steps(step_ms: float, steps: int) -> None:
    assert window_steps(step_ms * 1e6) == steps


def test_short_steps_share_their_events(clock: GpuClock, gpu: Gpu) -> None:
    """Of 1 ms: three events for ten steps, not thirty; all time is given out, and waits are a fair sample."""
    waits = [0.0, 0.0, 0.0, 2.0] * 500  # four workers that hand over together
    for wait in waits[:8]:
        step(clock, gpu, wait=wait, work=0.5)
    recorded = gpu.recorded
    records = [step(clock, gpu, wait=wait, work=0.5) for wait in waits]
    assert (gpu.recorded - recorded) / len(records) == pytest.approx(0.3, abs=0.05)
    clock.finish()
    last = max(place for place, record in enumerate(records) if record.gpu_seconds is not None)
    assert len(records) - last < 40  # the last window was not whole
    timed = records[20 : last + 1]
    assert all(record.gpu_seconds is not None for record in timed)
    assert sum(record.gpu_seconds or 0.0 for record in timed) == pytest.approx(len(timed) * 0.001, rel=0.02)
    starved = [record.starved_seconds for record in timed if record.starved_seconds is not None]
    assert sum(starved) / len(starved) == pytest.approx(0.0005, rel=0.25)


def test_one_slow_step_is_soon_forgotten(clock: GpuClock, gpu: Gpu) -> None:
    for work in (1, 5000, *[1] * 20):  # the second step tunes its kernels, say
        step(clock, gpu, wait=0, work=work)
    recorded = gpu.recorded
    for _ in range(200):
        step(clock, gpu, wait=0, work=1)
    assert gpu.recorded - recorded < 0.5 * 200


def test_an_evaluation_ends_a_window_early(clock: GpuClock, gpu: Gpu) -> None:
    for _ in range(100):
        step(clock, gpu, wait=0, work=0.5)
    beside = step(clock, gpu, wait=0, work=300, beside=True)
    records = [step(clock, gpu, wait=0, work=0.5) for _ in range(100)]
    clock.finish()
    assert beside.gpu_seconds is None
    assert records[0].gpu_seconds == pytest.approx(0.0005)  # none of the evaluation's time


def test_steps_after_the_end_are_no_part_of_a_window_before_it(clock: GpuClock, gpu: Gpu) -> None:
    """Kernels are counted in them, which takes long."""
    records = [step(clock, gpu, wait=0, work=0.5) for _ in range(100)]
    clock.finish()
    clocked = [record.gpu_seconds for record in records if record.gpu_seconds is not None]
    for _ in range(40):
        step(clock, gpu, wait=0, work=400)
    clock.finish()
    assert [record.gpu_seconds for record in records if record.gpu_seconds is not None] == clocked


def test_steps_that_are_passed_by_are_in_no_window(clock: GpuClock, gpu: Gpu) -> None:
    for _ in range(100):
        step(clock, gpu, wait=0, work=0.5)
    clock.pause()
    gpu.now += 700
    clock.resume()
    records = [step(clock, gpu, wait=0, work=0.5) for _ in range(8)]
    clock.pause()  # ends the last one's window at the last one's end
    gpu.now += 700
    clock.resume()
    clock.finish()
    assert [record.gpu_seconds for record in records] == pytest.approx([0.0005] * 8)
