"""One open video in several threads, in forks, in other processes, and after it was closed."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import av
import numpy as np
import pytest
from tests.decode.video.support import make, sequential

from fulltilt.decode.video import open_video
from fulltilt.errors import InputError


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Much more than FFmpeg reads of a file at a time, so that every pass has to read on in it."""
    path, draw = tmp_path_factory.mktemp("large") / "v.mp4", np.random.default_rng(0)
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=25, options={"preset": "ultrafast", "bf": "2"})
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = 320, 240, "yuv420p", 20
        for _ in range(80):
            noise = draw.integers(0, 256, (240, 320, 3), dtype=np.uint8)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(noise, "rgb24")))
        out.mux(stream.encode(None))
    assert path.stat().st_size > 1 << 20
    return path, sequential(path)


def test_threads_take_turns(large):
    path, reference = large
    wrong = []
    with open_video(path) as video:

        def read(seed):
            draw = np.random.default_rng(seed)
            for _ in range(10):
                wanted = draw.integers(0, 80, 3)
                if not np.array_equal(video.frames(wanted), reference[wanted]):
                    wrong.append(wanted)

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of Python 3.12, where threads are about
@pytest.mark.parametrize("threads", [1, 2])
def test_forks_do_not_read_in_their_parents_file(large, threads):
    """One place in a file for all of them would give each the others' packets; a decoder's threads are not forked."""
    path, reference = large
    with open_video(path, threads=threads) as video, open_video(path, threads=threads) as unused:
        assert np.array_equal(video.frames([5, 30]), reference[[5, 30]])
        unused.frames([7])
        children = [forked(video, unused, reference, seed) for seed in (2, 3)]
        assert right(video, reference, seed=0)
        assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
        assert right(video, reference, seed=1)


def forked(video, unused, reference, seed):
    child = os.fork()
    if child:
        return child
    signal.alarm(30)  # rather than for ever
    status = 1
    try:
        unused.close()
        status = int(not right(video, reference, seed=seed))
    except BaseException:
        traceback.print_exc()
    os._exit(status)


def right(video, reference, *, seed):
    draw = np.random.default_rng(seed)
    asked = [draw.integers(0, 80, 3) for _ in range(12)]
    return all(np.array_equal(video.frames(wanted), reference[wanted]) for wanted in asked)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("where", ["the same thread", "another thread"])
def test_forks_leave_pyavs_own_converters_alone(tmp_path, where):
    """From 19 on it keeps one for each thread, whose threads are not forked; another thread's is ended by the fork."""
    path = make(tmp_path / "v", count=12)
    reference = sequential(path)

    def converted():
        picture = av.VideoFrame.from_ndarray(np.full((96, 64), 128, np.uint8), "yuv420p")
        return picture.to_ndarray(format="rgb24", threads=2)  # where there is one core, "auto" would start none

    before = converted()
    with open_video(path) as video, ThreadPoolExecutor(1) as other:

        def right():
            return np.array_equal(converted(), before) and np.array_equal(video.frames([7]), reference[[7]])

        fork = partial(within, right, seconds=30)
        assert (fork() if where == "the same thread" else other.submit(fork).result()) == 0
        assert right()


def within(task, *, seconds):
    """Exit status of a child that does it. It may hang before its first instruction, where no alarm is set yet."""
    child = os.fork()
    if not child:
        try:
            os._exit(int(not task()))
        finally:
            os._exit(2)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def test_pickled_it_is_opened_again(tmp_path):
    path = make(tmp_path / "v")
    reference = sequential(path)
    with open_video(path, quality="fast") as video:
        with copy.copy(video) as other:
            assert other.known == video.known
            assert np.array_equal(other.frames([3]), video.frames([3]))
        data = pickle.dumps(video)
        assert np.array_equal(video.frames([4]), reference[[4]]), "the copy's end is not this one's"
    path.unlink()
    with pytest.raises(InputError, match=r"v\.mp4: no such file"):
        pickle.loads(data)


def test_closed_it_says_so(tmp_path):
    video = open_video(make(tmp_path / "v"))
    video.frames([3])
    video.close()
    video.close()
    assert len(video) == 40
    for wanted in ([0], [30]):
        with pytest.raises(InputError, match=r"v\.mp4 is closed: open it again"):
            video.frames(wanted)
