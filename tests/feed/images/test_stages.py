"""What each stage takes, which is slowest, and the rates that a cache is decided from."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fulltilt.cache.keys import stamp_of
from fulltilt.cache.policy import Keep, decide
from fulltilt.feed.base import Clock
from fulltilt.feed.images.source import is_in_memory, read_file, seems_cold
from fulltilt.feed.images.stages import Room, Stages, cache_rates
from fulltilt.feed.images.tally import Counts, Tally
from fulltilt.feed.step_clock import StepClock

GB = 10**9
COUNTS = Counts(
    read_samples=1000,
    read_bytes=80e6,
    read_seconds=0.1,
    decode_samples=1000,
    decode_bytes=562.5e6,
    decode_seconds=2.0,
)
STAGES = Stages(counts=COUNTS, workers=4, step_seconds_per_sample=1 / 6000)
ROOM = Room(ram_bytes=64 * GB, disk_bytes=None, copy_bytes_per_second=40e9, cache_bytes_per_second=None)


def rates(stages=STAGES, *, samples=50_000, gpu_share=0.0, wait_share=0.5, room=ROOM):
    return cache_rates(stages, samples=samples, gpu_share=gpu_share, wait_share=wait_share, room=room)


def test_figures_are_of_one_and_of_all():
    figures = STAGES.figures()
    assert figures["decode_seconds_per_sample"] == pytest.approx(0.002)
    assert figures["decode_samples_per_second"] == pytest.approx(2000)
    assert figures["read_samples_per_second"] == pytest.approx(40_000)
    assert figures["step_samples_per_second"] == pytest.approx(6000)
    assert "copy_samples_per_second" not in figures, "what has not happened has no rate"
    assert Stages(counts=Counts(), workers=1).figures() == {}


def test_the_bottleneck_is_where_the_time_goes():
    assert STAGES.bottleneck(0.001) == "step"
    assert STAGES.bottleneck(0.3) == "decoding"
    assert replace(STAGES, counts=replace(COUNTS, read_seconds=5)).bottleneck(0.3) == "reading"
    assert replace(STAGES, counts=replace(COUNTS, copy_seconds=5)).bottleneck(0.3) == "copy"
    assert replace(STAGES, gpu_samples=100, gpu_seconds=1.0).bottleneck(0.3) == "gpu decoding"
    assert replace(STAGES, gpu_samples=100, gpu_seconds=0.4).bottleneck(0.3) == "decoding"
    assert Stages(counts=Counts(), workers=4).bottleneck(0.3) == "feed"


def test_rates_for_the_decision():
    found = rates()
    assert (found.step_rate, found.decode_rate) == (pytest.approx(6000), pytest.approx(2000))
    assert (found.encoded_bytes, found.decoded_bytes) == (80_000, 562_500)
    assert found.source_bytes_per_second is None, "all came from memory"
    assert decide(found).value is Keep.RAM_DECODED
    assert rates(replace(STAGES, step_seconds_per_sample=None)) is None
    assert rates(replace(STAGES, counts=Counts())) is None


def test_cold_reads_are_the_sources_rate():
    cold = replace(COUNTS, read_seconds=8.1, cold_samples=800, cold_seconds=8.0)
    assert rates(replace(STAGES, counts=cold)).source_bytes_per_second == pytest.approx(4 * 80e6 / 8.0)
    slow_step = replace(STAGES, counts=cold, step_seconds_per_sample=1 / 1900)
    assert decide(rates(slow_step)).value is Keep.RAM_ENCODED


def test_what_the_system_keeps_is_not_kept_twice():
    cold = replace(COUNTS, cold_samples=800, cold_seconds=8.0, looked_again=16, there_again=16)
    assert rates(replace(STAGES, counts=cold)).source_bytes_per_second is None
    many = rates(replace(STAGES, counts=cold), samples=10**6)
    assert many.source_bytes_per_second is not None, "there is no room for all of them"
    forgotten = replace(cold, there_again=0)
    assert rates(replace(STAGES, counts=forgotten)).source_bytes_per_second is not None


def test_the_gpus_share_counts_as_decoding():
    stages = replace(STAGES, gpu_samples=1000, gpu_seconds=0.25)
    assert rates(stages, gpu_share=0.5).decode_rate == pytest.approx(4000), "the cores do their half at 2000/s"
    assert rates(stages, gpu_share=0.8).decode_rate == pytest.approx(5000), "the GPU does its 80 % at 4000/s"


def test_counts_outlive_who_made_them():
    tally = Tally.create(2)
    tally.line(0).read(100, 0.5, cold=True)
    tally.line(0).read(50, 0.25, cold=False)  # its successor
    tally.line(1).decoded(1000, 2.0)
    tally.line(1).copied(1.0)
    tally.line(1).looked_again(there=False)
    total = Tally(os.dup(tally.fd)).total()
    assert total == Counts(
        read_samples=2, read_bytes=150, read_seconds=0.75,
        cold_samples=1, cold_seconds=0.5,
        looked_again=1, decode_samples=1, decode_bytes=1000, decode_seconds=2.0,
        copy_samples=1, copy_seconds=1.0,
    )  # fmt: skip
    assert (total - total) == Counts()
    tally.close()


def test_a_stamp_only_for_bytes_that_will_not_change_unseen(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10_000)
    now = path.stat().st_ctime_ns + 1_000_000
    monkeypatch.setattr("fulltilt.cache.keys.time", SimpleNamespace(time_ns=lambda: now))
    assert read_file(str(path), stamped=True).stamp is None, "it was changed a moment ago, and may be again"
    now += 2_000_000_000
    found = read_file(str(path), stamped=True)
    assert found.data == b"x" * 10_000
    assert found.stamp == stamp_of(os.stat(path))
    assert found.cold in (False, None)
    assert is_in_memory(str(path)) in (True, None)
    assert is_in_memory(str(tmp_path / "gone")) is None


def pages_in_memory(path: Path) -> int:
    """Of a file. `is_in_memory` can't be asked first: where it finds nothing, the system begins to read ahead."""
    with path.open("rb") as file:
        mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    found = np.zeros(-(-len(mapped) // mmap.PAGESIZE), np.uint8)
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    assert mincore(mapped.ctypes.data, len(mapped), found.ctypes.data) == 0, os.strerror(ctypes.get_errno())
    return int((found & 1).sum())


@pytest.mark.parametrize("ask", [lambda path: read_file(path).cold, lambda path: is_in_memory(path) is False])
def test_files_that_were_dropped_from_memory_are_cold(tmp_path, ask):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100_000)
    assert not ask(str(path))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if pages_in_memory(path):
        pytest.skip("this file system keeps its files in memory")
    assert ask(str(path))
    assert not read_file(str(path), stamped=True).data.strip(b"x")
    assert is_in_memory(str(path))


def test_where_nobody_can_say_time_tells():
    assert not seems_cold(80_000, 50e-6)
    assert seems_cold(80_000, 5e-3)


def test_the_step_is_timed_by_the_host_without_a_gpu(monkeypatch):
    now = 0.0
    monkeypatch.setattr("fulltilt.feed.step_clock.time", SimpleNamespace(perf_counter=lambda: now))
    clock = StepClock()
    assert clock.seconds_per_sample is None
    for pause in (9.0, 0.08, 0.08):  # the first one warms up
        clock.end()
        clock.prepared(0.04)
        now += 7.0  # waiting for a batch, which is no part of the step
        clock.begin(4)
        now += pause
    clock.end()
    assert clock.seconds_per_sample == pytest.approx((0.08 + 0.04) / 4)
    clock.begin(4)
    clock.forget()
    now += 1.0
    clock.end()
    assert clock.seconds_per_sample == pytest.approx(0.03), "what follows an epoch's end is not a step"


def test_a_slow_start_is_not_held_against_later_epochs(monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    clock = Clock()
    clock.began()
    now += 10  # decoders start, the model is compiled
    clock.waited(9)
    clock.gave(8)
    assert clock.epoch_wait_share == pytest.approx(0.9)
    now += 5  # validation
    clock.began()
    assert clock.epoch_wait_share is None, "nothing has been measured"
    for _ in range(4):
        now += 1
        clock.waited(0.01)
        clock.gave(8)
    now += 5
    assert clock.epoch_wait_share == pytest.approx(0.01)
    assert clock.figures()["wait_share"] > 0.3
