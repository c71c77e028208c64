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
from fulltilt.monitor.watch import Kept, Stop, replayed, sampled


class Machine:
    """A source that takes `slow` seconds for the readings named in `hold`."""

    def __init__(self, hold=(), end_after=None):
        self.readings = 0
        self.hold = hold
        self.end_after = end_after

    @property
    def ended(self):
        return "the process has ended" if self.readings == self.end_after else None

    def start(self):
        self.began = time.monotonic()

    def read(self):
        self.readings += 1
        at = time.monotonic() - self.began
        if self.readings in self.hold:
            time.sleep(0.25)
        return Sample(t=at)


@pytest.mark.parametrize(("interval", "duration", "count"), [(0.1, 0.5, 5), (0.1, 0.1, 1), (0.1, 0.34, 3)])
def test_as_many_samples_as_fit_into_the_duration(interval, duration, count):
    with Stop() as stop:
        assert len([*sampled(Machine(), stop, interval=interval, duration=duration)]) == count


def test_samples_stay_on_the_beat_after_a_delay():
    with Stop() as stop:
        times = [sample.t for sample in sampled(Machine(hold=[2]), stop, interval=0.1, duration=0.8)]
    beats = [round(t / 0.1) for t in times]
    assert beats[:2] == [1, 2]
    assert len(beats) == len({*beats}), "none is made up for"
    assert all(abs(t - beat * 0.1) < 0.05 for t, beat in zip(times, beats, strict=True))
    assert beats[-1] == 8


def test_a_process_that_ends_ends_the_watch():
    with Stop() as stop:
        assert len([*sampled(Machine(end_after=2), stop, interval=0.05, duration=None)]) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_watch_at_once_and_the_handlers_come_back(number):
    before = signal.getsignal(number)
    with Stop() as stop:
        threading.Timer(0.2, os.kill, (os.getpid(), number)).start()
        began = time.monotonic()
        samples = [*sampled(Machine(), stop, interval=30, duration=None)]
        assert time.monotonic() - began < 5
        assert signal.getsignal(number) is before, "a second signal breaks off"
    assert len(samples) == 1, "however early the end, there is a sample"


def test_a_replay_keeps_the_recorded_pace():
    began = time.monotonic()
    with Stop() as stop:
        assert [*replayed(series([1.0] * 5), stop, speed=20)] == series([1.0] * 5)
    assert 0.15 < time.monotonic() - began < 2


def test_what_is_kept_for_charts_stays_bounded_and_even():
    kept = Kept(most=100)
    for sample in series([1.0] * 1000):
        kept.add(sample)
    times = [sample.t for sample in kept.samples]
    assert 50 <= len(times) <= 100
    assert times[0] == 1.0
    assert len({round(after - before, 6) for before, after in pairwise(times)}) == 1
