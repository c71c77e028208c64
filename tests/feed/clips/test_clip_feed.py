"""Clips that workers and the GPU's engines decode together, with engines that FFmpeg plays."""

from __future__ import annotations

import gc
import logging
import threading
import time
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.decode.video.fake_nvdec import engines_on_the_cpu
from tests.decode.video.support import make

from fulltilt.errors import DecodeError, InputError, UnavailableError
from fulltilt.feed import VideoClips, build, feed
from fulltilt.feed.balance import Balance
from fulltilt.feed.clips import side as clip_side
from fulltilt.feed.clips.batch import for_the_gpu
from fulltilt.feed.clips.sharing import Sharing
from fulltilt.feed.clips.side import OPEN
from fulltilt.feed.share import ShareTuner
from fulltilt.feed.tuner import Tuner

SIZE = (64, 96)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    return [make(folder / f"v{number}", count=30, gop=8) for number in range(6)]


@pytest.fixture
def engines(monkeypatch):
    made = engines_on_the_cpu(monkeypatch)
    monkeypatch.setattr(clip_side, "library", lambda: None)
    return made


@pytest.fixture
def told(monkeypatch):
    """Lines of the feed's log."""
    lines = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())
    monkeypatch.setattr(logging.getLogger("fulltilt.feed"), "handlers", [handler])
    return lines


def clips(paths, **options):
    given = {"length": 4, "size": SIZE, "stride": 2, "clips": 2, "labels": range(len(paths))}
    return VideoClips(paths, **(given | options))


def shared(monkeypatch, source, share, **options):
    """A feed with this share, which a CPU is not given otherwise."""
    monkeypatch.setattr(build, "clip_share_of", lambda *_, **__: share)
    return feed(source, **({"batch_size": 5, "shuffle": True, "num_workers": 1, "worker_kind": "threads"} | options))


def apart(ours, theirs):
    return (ours.int() - theirs.int()).abs().max()


def test_who_decodes_what_is_split_by_videos():
    assert for_the_gpu([1, 1, 2, 3, 3, 3], 3, lambda _: True) == [0, 1, 2]
    assert for_the_gpu([1, 2, 1, 3], 3, lambda _: True) == [0, 1, 2]
    assert for_the_gpu([1, 1, 1], 2, lambda _: True) == [0, 1], "one that is too much is split"
    assert for_the_gpu([1, 2, 3, 2], 3, lambda video: video == 2) == [1, 3], "the others are not taken"


@given(st.lists(st.integers(0, 5), max_size=20), st.integers(0, 20))
def test_as_many_as_wanted(videos, wanted):
    chosen = for_the_gpu(videos, wanted, lambda video: video != 3)
    assert len(chosen) == min(wanted, sum(video != 3 for video in videos))
    assert chosen == sorted(set(chosen))


@pytest.mark.parametrize(("share", "kind"), [(0.5, "threads"), (1.0, "threads"), (0.4, "processes")])
def test_batches_are_those_of_the_cpu(paths, engines, monkeypatch, share, kind):
    with feed(clips(paths), batch_size=5, shuffle=True, num_workers=1, worker_kind="threads") as it:
        expected = [(*batch, it.indices.copy()) for _ in range(2) for batch in it]
    with shared(monkeypatch, clips(paths), share, worker_kind=kind) as it:
        found = [(*batch, it.indices.copy()) for _ in range(2) for batch in it]
        stats = it.stats()
    assert stats["gpu_share"] == share
    assert stats["gpu_samples"] >= 24 * share - 1
    assert engines.packets, "the engines did something"
    assert len(found) == len(expected) == 6
    for (ours, labels, indices), (theirs, their_labels, their_indices) in zip(found, expected, strict=True):
        assert np.array_equal(indices, their_indices)
        assert torch.equal(labels, their_labels)
        assert ours.shape == theirs.shape
        assert apart(ours, theirs) <= 3


def test_resumed_in_the_middle(paths, engines, monkeypatch):
    with shared(monkeypatch, clips(paths), 0.5) as it:
        batches = iter(it)
        next(batches)
        state = it.state_dict()
        rest = [(images.clone(), labels) for images, labels in batches]
    assert rest
    with shared(monkeypatch, clips(paths), 0.5) as it:
        it.load_state_dict(state)
        for (ours, labels), (theirs, their_labels) in zip(it, rest, strict=True):
            assert torch.equal(labels, their_labels)
            assert apart(ours, theirs) <= 3


def test_sessions_are_used_again(paths, engines, monkeypatch):
    """More videos than are kept open: each would need a session of its own."""
    side = clip_side.ClipSide(clips(paths), torch.device("cpu"), threads=2)
    parts = [side.submit([(epoch, number) for number in range(12)], range(12)) for epoch in range(5)]
    for part in parts:
        part.wait()
        side.release(part)
        assert all(sample is not None for sample in part.samples)
    assert engines.count <= 2 * OPEN + 2, "of 60 clips and 30 openings"
    assert side._sessions.used_again >= 10
    assert len(engines.threads) == 2
    side.close()
    assert len(side._sessions) == 0


def test_no_more_is_decoded_ahead_than_there_is_room_for(paths, engines):
    side = clip_side.ClipSide(clips(paths), torch.device("cpu"), threads=2)
    parts = [side.submit([(epoch, number) for number in range(4)], range(4)) for epoch in range(5)]
    parts[0].wait()
    time.sleep(0.5)
    assert side.samples <= 4 + 2 * 2, "the first part, and what the others may take beside it"
    for number, part in enumerate(parts):
        part.wait()
        side.release(part)
        assert side.samples >= 4 * (number + 1) - 2, "counted a moment after it is given"
    waiting = [side.submit([(0, number) for number in range(12)], range(12)) for _ in range(4)]
    waiting[-1].dropped = True
    side.close()  # does not wait for room
    assert all(part._done.is_set() for part in waiting)


def test_handles_and_memory_stay_flat(paths, engines, monkeypatch):
    process, seen = psutil.Process(), []
    side = clip_side.ClipSide(clips(paths, size=(16, 24)), torch.device("cpu"), threads=2)
    for epoch in range(60):  # 720 clips
        part = side.submit([(epoch, number) for number in range(12)], range(12))
        part.wait()
        side.release(part)
        if epoch in (19, 59):
            seen.append((process.num_fds(), process.memory_info().rss))
    side.close()
    (handles, memory), (handles_later, memory_later) = seen
    assert handles_later <= handles + 2 * OPEN, "as many as happen to be open"
    assert memory_later - memory < 20e6


def test_files_that_the_engines_refuse(paths, engines, monkeypatch, told, tmp_path):
    others = [make(tmp_path / f"o{number}", "mpeg4", count=30, gop=8) for number in range(3)]
    source = clips([*paths[:3], *others])
    with feed(source, batch_size=6, num_workers=1) as it:
        expected = [batch for _ in range(3) for batch in it]
    with shared(monkeypatch, source, 1.0, batch_size=6, shuffle=False) as it:
        found = [batch for _ in range(3) for batch in it]
        assert it.stats()["gpu_share"] == 1.0
    for (ours, labels), (theirs, their_labels) in zip(found, expected, strict=True):
        assert torch.equal(labels, their_labels)
        assert apart(ours, theirs) <= 3
    assert len(told) == 1, told
    assert "NVDEC is not used for mpeg4: the CPU decodes it" in told[0]


def test_engines_that_refuse_everything_are_given_no_more(engines, monkeypatch, told, tmp_path):
    others = [make(tmp_path / f"o{number}", "mpeg4", count=12) for number in range(3)]
    with shared(monkeypatch, clips(others), 1.0, batch_size=2) as it:
        for _ in range(4):
            assert sum(len(images) for images, _ in it) == 6
        assert it.stats()["gpu_share"] == 0.0
        decoded = it.stats()["gpu_samples"]
        list(it)
        assert it.stats()["gpu_samples"] == decoded
    assert sum("the CPU decodes all from now on" in line for line in told) == 1


def test_without_the_library(paths, monkeypatch, told):
    def missing():
        raise UnavailableError("NVDEC needs PyNvVideoCodec (no driver)")

    monkeypatch.setattr(clip_side, "library", missing)
    with shared(monkeypatch, clips(paths), 0.5) as it:
        assert sum(len(images) for images, _ in it) == 12
        assert it.stats()["gpu_share"] == 0.0
    assert told == ["NVDEC needs PyNvVideoCodec (no driver): the CPU decodes all"]


def test_an_engine_that_fails_on_the_way(paths, engines, monkeypatch, told):
    engines.broken = (20,)
    with feed(clips(paths), batch_size=6, num_workers=1) as it:
        expected = [batch for _ in range(2) for batch in it]
    with shared(monkeypatch, clips(paths), 1.0, batch_size=6, shuffle=False) as it:
        for (ours, _), (theirs, _) in zip((batch for _ in range(2) for batch in it), expected, strict=True):
            assert apart(ours, theirs) <= 3
    assert told
    assert "HW decoder faced error" in told[0]


def test_no_memory_left_on_the_gpu(paths, engines, monkeypatch, told):
    source = clips(paths)
    monkeypatch.setattr(VideoClips, "samples", _full(VideoClips.samples))
    with shared(monkeypatch, source, 0.5) as it:
        assert sum(len(images) for _ in range(3) for images, _ in it) == 36
        assert it.stats()["gpu_share"] == 0.0
    assert told == ["there is no GPU memory left for decoding videos: the CPU decodes all from now on"]


def _full(samples):
    def fails(self, keys, videos):
        if threading.current_thread().name.startswith("fulltilt-nvdec") and videos is not self._videos():
            raise torch.OutOfMemoryError("CUDA out of memory")
        return samples(self, keys, videos)

    return fails


class TestBad:
    @pytest.fixture
    def damaged(self, paths, tmp_path):
        bad = tmp_path / "bad.mp4"
        bad.write_bytes(b"no video" * 100)
        return [*paths[:2], str(bad), paths[2]]

    @pytest.mark.parametrize("share", [0.5, 1.0])
    def test_left_out(self, damaged, engines, monkeypatch, share):
        with shared(monkeypatch, clips(damaged, on_error="skip"), share, batch_size=4, shuffle=False) as it:
            batches, numbers = [], []
            for batch in it:
                batches.append(batch)
                numbers.append(it.indices.tolist())
            assert numbers == [[0, 1, 2, 3], [6, 7]]
            assert [labels.tolist() for _, labels in batches] == [[0, 0, 1, 1], [3, 3]]
            assert it.stats()["skipped"] == 2
        expected = clips(damaged)[0, 7][0]
        assert apart(batches[1][0][1], expected) <= 3

    def test_named_in_its_batch(self, damaged, engines, monkeypatch):
        with shared(monkeypatch, clips(damaged), 1.0, batch_size=4, shuffle=False) as it:
            batches = iter(it)
            assert len(next(batches)[0]) == 4
            with pytest.raises(DecodeError, match=r"bad\.mp4"):
                next(batches)

    def test_a_share_that_can_not_be(self, paths):
        with pytest.raises(InputError, match=r"gpu_share=0\.5: cpu has no video engines"):
            feed(clips(paths), batch_size=2, device="cpu", gpu_share=0.5)


def test_clips_without_labels(paths, engines, monkeypatch):
    source = clips(paths, labels=None)
    with shared(monkeypatch, source, 0.5, shuffle=False) as it:
        for batch, first in zip(it, (0, 5, 10), strict=True):
            assert isinstance(batch, torch.Tensor)
            assert apart(batch[0], source[0, first]) <= 3


def test_labels_are_shown_before_they_are_sent(paths, engines, monkeypatch):
    seen = []
    with shared(monkeypatch, clips(paths), 0.5) as it:
        assert it.inspect_with(seen.append)
        given = [labels for _, labels in it]
    assert all(pixels is None for pixels, _ in seen[:3])
    assert [labels.tolist() for _, labels in seen[:3]] == [labels.tolist() for labels in given]


def test_broken_off_and_forgotten(paths, engines, monkeypatch):
    monkeypatch.setattr(clip_side, "sessions_of", lambda _: 3)
    it = shared(monkeypatch, clips(paths), 0.5)
    next(iter(it))
    it.set_epoch(3)
    assert sum(len(images) for images, _ in it) == 12
    assert sum(thread.name.startswith("fulltilt-nvdec") for thread in threading.enumerate()) == 3
    del it
    gc.collect()
    until = time.monotonic() + 10
    while any(thread.name.startswith("fulltilt-nvdec") for thread in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("cores", "engines_rate", "least", "most"),
    [(100.0, 60.0, 0.25, 0.5), (1000.0, 60.0, 0.0, 0.0), (20.0, 1000.0, 0.75, 1.0)],
    ids=["both are needed", "the cores keep up", "hardly any cores"],
)
def test_the_share_is_looked_for(cores, engines_rate, least, most):
    """A loop that could take 150 clips a second, workers and engines of these rates, and a clock of our own."""
    now = [0.0]
    legs = SimpleNamespace(steady=True, pids=[], tids=[], resize=lambda _: None)
    balance = Balance(workers=4, tuner=lambda start: Tuner(start, 4), share=ShareTuner(), most_workers=4)
    sharing = Sharing(balance, legs, threads=None, clock=lambda: now[0])
    changes = set()
    for _ in range(20_000):
        share = sharing.share
        rate = min(150.0, cores / max(1 - share, 1e-9), engines_rate / max(share, 1e-9))
        seconds = 8 / rate
        now[0] += seconds
        sharing.saw(8, max(0.0, seconds - 8 / 150), share)
        changes.add(share)
        if balance.state == "settled":
            break
    assert balance.state == "settled"
    assert least <= sharing.share <= most
    assert sharing.decisions[0].evidence["trials"]


def test_a_change_is_not_judged_before_it_arrives():
    now = [0.0]
    legs = SimpleNamespace(steady=True, pids=[], tids=[], resize=lambda _: None)
    balance = Balance(workers=1, tuner=None, share=ShareTuner(), most_workers=1)
    sharing = Sharing(balance, legs, threads=None, clock=lambda: now[0])

    def give(batches, share):
        for _ in range(batches):
            now[0] += 0.5
            sharing.saw(8, 0.4, share)

    give(30, 0.0)
    tried = sharing.share
    assert tried > 0
    give(200, 0.0)  # begun before the change
    assert sharing.share == tried
    give(60, tried)
    assert sharing.share != tried or sharing.decisions[0] is not None


def test_a_search_that_is_ended_by_hand(paths, engines, monkeypatch):
    with shared(monkeypatch, clips(paths), None) as batches:
        given = iter(batches)
        next(given)
        batches._sharing.balance.share_tuner.observe(10.0, 0.9)  # the first share, of the CPU alone
        batches._sharing.balance.share_tuner.observe(5.0, 0.9)
        assert not batches.is_settled
        batches.settle()
        assert batches.is_settled
        assert batches.stats()["gpu_share"] == batches.share_decision.value == 0.0
        assert len([next(given)]) == 1
