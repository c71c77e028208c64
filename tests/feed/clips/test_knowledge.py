"""What one process knows of a video the others know too, and nothing that is half written is believed."""

from __future__ import annotations

import gc
import os
import threading

import psutil
import pytest
from tests.decode.video.support import make

from fulltilt.decode.video.index import FrameIndex
from fulltilt.decode.video.reader import Known
from fulltilt.feed import VideoClips, feed
from fulltilt.feed.clips import knowledge as clip_knowledge
from fulltilt.feed.clips.knowledge import Knowledge, Log
from fulltilt.feed.clips.open_videos import stamp_of

STAMP = (1000, 1_700_000_000_000_000_000)


def known(count):
    index = FrameIndex(times=tuple(range(0, 512 * count, 512)), keys=(0,), count=count)
    return Known(index=index, turn=1, height=64, width=96, pixels="yuv420p", colours=(1, False))


def as_forked(log):
    """Another process's: the same file, and nothing read of it."""
    other = Log()
    other._file = log._file
    return other


def test_what_workers_have_found_the_trainer_knows(tmp_path, monkeypatch):
    paths = [make(tmp_path / f"v{number}", count=12 + number) for number in range(4)]
    source = VideoClips(paths, length=4, size=(32, 48), clips=2)
    with feed(source, batch_size=2, num_workers=2, worker_kind="processes") as it:
        assert len(list(it)) == 4
    monkeypatch.setattr(source.knowledge, "_found", {})
    for number, path in enumerate(paths):
        found = source.knowledge.of(str(path), stamp_of(str(path)))
        assert found is not None
        assert found.index.count == 12 + number


def test_the_last_word_on_a_file_counts():
    log = Log()
    for path, stamp, count in [("a", STAMP, 3), ("b/ü", STAMP, 4), ("a", (1001, STAMP[1]), 5)]:
        log.add(path, stamp, known(count))
    other = as_forked(log)
    assert other.find("a", STAMP) is None, "the file has changed since"
    assert other.find("a", (1001, STAMP[1])) == known(5)
    assert other.find("b/ü", STAMP) == known(4)
    assert other.find("c", STAMP) is None
    log.add("c", STAMP, known(6))
    assert other.find("c", STAMP) == known(6)


def test_nothing_is_written_twice():
    log, size = Log(), []
    for writer in (log, log, as_forked(log)):
        writer.add("a", STAMP, known(3))
        size.append(os.fstat(log._file).st_size)
    assert size[0] == size[1] == size[2] > 0


@pytest.mark.parametrize("kept", [3, 40, -1], ids=["of the head", "of the path", "all but a byte"])
def test_a_writer_that_was_ended_in_the_middle(kept):
    whole = Log()
    whole.add("a" * 20, STAMP, known(3))
    record = os.pread(whole._file, 1 << 20, 0)
    log = Log()
    log.add("before", STAMP, known(2))
    os.write(log._file, record[:kept])
    assert as_forked(log).find("a" * 20, STAMP) is None
    as_forked(log).add("after", STAMP, known(9))
    other = as_forked(log)
    assert other.find("before", STAMP) == known(2)
    for path in ("a" * 20, "after"):
        assert other.find(path, STAMP) in (None, known(9)), "not what it isn't"


def test_no_more_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr(clip_knowledge, "LOG_BYTES", 1000)
    knowledge = Knowledge()
    for number in range(50):
        knowledge.add(str(number), STAMP, known(20))
    assert os.fstat(knowledge._log._file).st_size < 1500
    assert knowledge.of("49", STAMP) == known(20), "what was found here is known here"


def test_many_threads_at_once():
    knowledge, wrong = Knowledge(), []

    def work(first):
        for number in range(first, first + 100):
            path = str(number % 120)
            if knowledge.of(path, STAMP) not in (None, known(int(path) + 1)):
                wrong.append(path)
            knowledge.add(path, STAMP, known(int(path) + 1))

    threads = [threading.Thread(target=work, args=(17 * number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    other = as_forked(knowledge._log)
    assert all(other.find(str(number), STAMP) == known(number + 1) for number in range(120))


def test_no_handle_is_left():
    gc.collect()
    before = psutil.Process().num_fds()
    for _ in range(5):
        Knowledge()
    gc.collect()
    assert psutil.Process().num_fds() <= before
