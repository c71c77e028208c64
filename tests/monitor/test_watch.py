"""Pace, ends and what is kept."""

from __future__ import annotations

import os
import signal
import threading
import time
from itertools import pairwise

import pytest
from tests.monitor.samples import series

from fulltilt.machine.sample import Sample
from fulltilt.monitor import watch


class Clock:
    """Time that passes only when someone sleeps; it is also a Stop that nobody asks."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(watch, "time", self)

    def monotonic(self):
        return self.now

    def wait(self, seconds):
        self.now += max(0.0, seconds)
        return False


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


class Machine:
    """A source; `delays` are the seconds that a reading takes, by its number."""

    def __init__(self, clock=time, delays=(), end_after=None):
        self.clock = clock
        self.readings = 0
        self.delays = dict(delays)
        self.end_after = end_after

    @property
    def ended(self):
        return "the process has ended" if self.readings == self.end_after else None

    def start(self):
        self.began = self.clock.monotonic()

    def read(self):
        self.readings += 1
        at = self.clock.monotonic() - self.began
        if self.readings in self.delays:
            self.clock.now += self.delays[self.readings]
        return Sample(t=at)


@pytest.mark.parametrize(
    ("interval", "duration", "count"),
    [(0.1, 0.5, 5), (0.1, 0.1, 1), (0.1, 0.34, 3), (1.0, 300.0, 300), (7.0, 300.0, 43)],
)
def test_as_many_samples_as_fit_into_the_duration(clock, interval, duration, count):
    assert len([*watch.sampled(Machine(clock), clock, interval=interval, duration=duration)]) == count


def test_samples_stay_on_the_beat_after_a_delay(clock):
    source = Machine(clock, delays={2: 0.25})
    times = [sample.t for sample in watch.sampled(source, clock, interval=0.1, duration=0.8)]
    assert times == pytest.approx([0.1, 0.2, 0.5, 0.6, 0.7, 0.8]), "what was missed is left out, not made up for"


def test_a_delay_beyond_the_duration_ends_the_watch(clock):
    source = Machine(clock, delays={2: 0.75})
    times = [sample.t for sample in watch.sampled(source, clock, interval=0.1, duration=0.5)]
    assert times == pytest.approx([0.1, 0.2]), "no sample that nobody asked for, long after the end"


def test_a_process_that_ends_ends_the_watch(clock):
    assert len([*watch.sampled(Machine(clock, end_after=2), clock, interval=0.05, duration=None)]) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_watch_at_once_and_the_handlers_come_back(number):
    before = signal.getsignal(number)
    with watch.Stop() as stop:
        threading.Timer(0.2, os.kill, (os.getpid(), number)).start()
        began = time.monotonic()
        samples = [*watch.sampled(Machine(), stop, interval=30, duration=None)]
        assert time.monotonic() - began < 5
        assert signal.getsignal(number) is before, "a second signal breaks off"
    assert len(samples) == 1, "however early the end, there is a sample"


def test_a_replay_keeps_the_recorded_pace(clock):
    samples = series([1.0] * 5)
    shown = [(clock.now, sample) for sample in watch.replayed(samples, clock, speed=20)]
    assert [sample for _, sample in shown] == samples
    assert [at - 1000 for at, _ in shown] == pytest.approx([(sample.t - samples[0].t) / 20 for sample in samples])


def test_what_is_kept_for_charts_stays_bounded_and_even():
    kept = watch.Kept(most=100)
    for sample in series([1.0] * 1000):
        kept.add(sample)
    times = [sample.t for sample in kept.samples]
    assert 50 <= len(times) <= 100
    assert times[0] == 1.0
    assert len({round(after - before, 6) for before, after in pairwise(times)}) == 1
    kept.cut(times[3])
    assert [sample.t for sample in kept.samples] == times[:4]
