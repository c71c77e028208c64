"""RAM as the search sees it: peaks, also where the kernel can't be asked for them."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from fulltilt.machine.memory import read_memory
from fulltilt.tune import memory
from fulltilt.tune.memory import RamGauge, gauge_for

MIB = 1024**2


def fill(mib):
    return torch.full((mib * MIB,), 1, dtype=torch.uint8)


@pytest.mark.parametrize("resets", [True, False], ids=["kernel", "thread"])
def test_a_peak_is_seen_although_it_has_passed(resets, monkeypatch):
    monkeypatch.setattr(memory, "_can_reset", lambda: resets)
    gauge = RamGauge()
    big = fill(200)
    del big
    gauge.release()
    held = gauge.held_bytes()
    gauge.begin()
    passing = fill(64)
    time.sleep(0.05)
    del passing
    peak = gauge.peak_bytes()
    assert 60 * MIB < peak - held < 120 * MIB  # and not the 200 of before
    gauge.release()


def test_a_thread_that_looks_ends_with_the_trial(monkeypatch):
    monkeypatch.setattr(memory, "_can_reset", lambda: False)
    gauge = RamGauge()
    gauge.begin()
    assert any(thread.name == "fulltilt-peak" for thread in threading.enumerate())
    gauge.release()  # after a failure nobody asks for the peak
    assert not any(thread.name == "fulltilt-peak" for thread in threading.enumerate())


def test_room_is_what_is_free_and_what_is_held():
    gauge = gauge_for(torch.device("cpu"))
    assert gauge.room_bytes() == pytest.approx(read_memory().available_bytes + gauge.held_bytes(), rel=0.2)
    assert gauge.held_bytes() > 50 * MIB
