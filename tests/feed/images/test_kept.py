"""Samples kept in shared memory."""

from __future__ import annotations

import multiprocessing
import os
import signal

import numpy as np
import pytest

from fulltilt.feed.images import kept as module
from fulltilt.feed.images.kept import Kept, Mode

STAMP = (1, 2, 3, 4, 5, 6, 7, (1 << 64) - 1)


@pytest.fixture
def kept():
    kept = Kept.create(10)
    kept.begin(Mode.DECODED, budget_bytes=1 << 20)
    yield kept
    kept.close()


def pixels(seed, size=1000):
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def test_what_one_process_writes_another_reads(kept):
    image, mask = pixels(0), pixels(1, 300)
    writer = multiprocessing.get_context("fork").Process(
        target=lambda: Kept(kept.fd, 10).keep(3, image, mask, (10, 30), STAMP)
    )
    writer.start()
    writer.join()
    found = kept.find(3, STAMP)
    assert (found.height, found.width) == (10, 30)
    parts = np.zeros(1000, np.uint8), np.zeros(300, np.uint8)
    kept.read_into(found, parts)
    assert (parts[0] == image).all()
    assert (parts[1] == mask).all()
    assert kept.read(found) == (image.tobytes(), mask.tobytes())
    assert kept.samples == 1
    assert kept.find(4, STAMP) is None


def test_other_stamps_are_not_served_and_the_newest_content_is(kept):
    changed = (9, *STAMP[1:])
    assert kept.keep(0, pixels(0), None, (1, 1), STAMP)
    assert kept.find(0, changed) is None
    assert kept.keep(0, pixels(1), None, (1, 1), changed)
    assert kept.find(0, STAMP) is None
    assert kept.read(kept.find(0, changed)) == (pixels(1).tobytes(), None)
    assert kept.samples == 1


def test_what_two_decoders_had_at_once_is_written_once(kept):
    assert kept.keep(0, pixels(0), None, (1, 1), STAMP)
    used = kept.used_bytes
    assert kept.keep(0, pixels(0), None, (1, 1), STAMP)
    assert (kept.used_bytes, kept.samples) == (used, 1)


def test_the_budget_is_kept_to(kept):
    room = (1 << 20) - kept.used_bytes
    took = [kept.keep(n % 10, pixels(n, 100_000), None, (1, 1), (n, *STAMP[1:])) for n in range(20)]
    assert took == [n < room // 100_032 for n in range(20)]
    assert kept.used_bytes <= 1 << 20
    assert os.fstat(kept.fd).st_blocks * 512 <= (1 << 20) + 4096


def test_nothing_is_taken_when_the_machine_runs_short(kept):
    kept.begin(Mode.DECODED, budget_bytes=1 << 20, floor_bytes=1 << 62)
    assert not kept.keep(0, pixels(0), None, (1, 1), STAMP)


@pytest.mark.parametrize("at", ["pwritev", "sum"])
def test_a_writer_killed_in_the_middle_leaves_no_entry_and_no_lock(kept, at):
    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    def write():
        if at == "pwritev":
            written = os.pwritev
            os.pwritev = lambda fd, parts, offset: (written(fd, [parts[0][:500]], offset), die())
        else:  # with the lock held, the record half written
            mine._records[0, :7] = (4096, 1000, 0, 1, 1, *STAMP[:2])
            module.fcntl.lockf(mine.fd, module.fcntl.LOCK_EX, 8)
            die()
        mine.keep(0, pixels(0), None, (1, 1), STAMP)

    mine = Kept(os.dup(kept.fd), 10)
    writer = multiprocessing.get_context("fork").Process(target=write)
    writer.start()
    writer.join()
    assert writer.exitcode == -signal.SIGKILL
    assert kept.find(0, STAMP) is None
    assert kept.keep(0, pixels(2), None, (1, 1), STAMP)
    assert kept.read(kept.find(0, STAMP))[0] == pixels(2).tobytes()
    mine.close()
