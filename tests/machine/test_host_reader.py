"""The host's figures: against made-up counters, and against a core that is really busy."""

from __future__ import annotations

import time
from collections import namedtuple

import psutil
import pytest

from fulltilt.machine.host_reader import HostReader

Times = namedtuple("Times", "user nice system idle iowait irq softirq steal guest guest_nice")


def at(user=0.0, idle=0.0, iowait=0.0, guest=0.0):
    return Times(user, 0, 0, idle, iowait, 0, 0, 0, guest, 0)


@pytest.fixture
def readings(monkeypatch):
    """Makes psutil answer with the given counters, one after the other."""

    def answer(*counters):
        left = iter(counters)
        monkeypatch.setattr(psutil, "cpu_times", lambda percpu: next(left))
        reader = HostReader()
        reader._cores = None
        return reader

    return answer


def test_busy_and_waiting_are_shares_of_the_time_that_passed(readings):
    reader = readings([at(), at()], [at(user=8, idle=2), at(idle=5, iowait=5)])
    reader.prime(0.0)
    cpu = reader.read(1.0)
    assert cpu.cores == (80.0, 0.0)
    assert cpu.util == 40.0
    assert cpu.iowait == 25.0


def test_guest_time_is_not_counted_twice(readings):
    reader = readings([at()], [at(user=5, guest=5, idle=5)])
    reader.prime(0.0)
    assert reader.read(1.0).cores == (50.0,)


def test_counters_that_stand_still_or_fall_back_measure_nothing_wrong(readings):
    reader = readings([at(idle=5, iowait=3)], [at(idle=5, iowait=3)], [at(user=1, idle=6, iowait=2)])
    reader.prime(0.0)
    assert reader.read(1.0).cores is None
    cpu = reader.read(2.0)
    assert 0 <= cpu.cores[0] <= 100  # iowait may run backwards (proc(5))
    assert cpu.iowait == 0.0


def test_a_busy_core_reads_busy():
    reader = HostReader()
    reader.prime(time.monotonic())
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        pass
    cpu = reader.read(time.monotonic())
    assert sum(cpu.cores) > 60, "somebody's work on one core at least: ours, or what kept us waiting"
    assert 0 < cpu.ram_used <= cpu.ram_total


def test_ram_and_disks_are_looked_at_no_more_than_once_a_second():
    reader = HostReader()
    reader.prime(0.0)
    seen = [reader.read(0.2 * tick).ram_used is not None for tick in range(1, 11)]
    assert seen == [True, False, False, False, False, True, False, False, False, False]
