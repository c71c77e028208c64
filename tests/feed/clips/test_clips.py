"""Clips: the frames that were drawn, with their labels, the same however they are fed."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tests.decode.video.support import make, sequential

from fulltilt.augment import GPUAugmentation
from fulltilt.cache import CacheSettings
from fulltilt.decode.video import Video, open_video
from fulltilt.errors import DecodeError, InputError
from fulltilt.feed import VideoClips, build, feed
from fulltilt.feed.clips import knowledge as clip_knowledge
from fulltilt.feed.clips import open_videos
from fulltilt.feed.clips.clips import _cover


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two classes of three videos each."""
    folder = tmp_path_factory.mktemp("videos")
    for number in range(6):
        home = folder / ("run" if number % 2 else "jump")
        home.mkdir(exist_ok=True)
        make(home / f"v{number}", count=30 + number, gop=8)
    return folder


def clips(folder, **options):
    return VideoClips(folder, **{"length": 4, "size": (64, 96), "stride": 2, "clips": 2, **options})


def test_a_clip_is_its_frames(folder):
    source = clips(folder)
    assert len(source) == 12
    assert source.classes == ["jump", "run"]
    for number in range(12):
        pixels, label = source[3, number]
        entry = source.entries[number // 2]
        assert int(label) == int("run" in entry.path)
        video = source._videos().get(entry.path)
        frames = source.frames_of(entry, video, 3, number)
        assert np.array_equal(np.diff(frames), [2, 2, 2])
        assert np.array_equal(pixels.numpy(), sequential(entry.path)[frames])
        half = len(video) // 2
        assert (frames < half).all() if number % 2 == 0 else (frames >= half).all(), "each from its own part"


def test_draws_follow_from_seed_epoch_and_number_alone(folder):
    source, again, other = clips(folder), clips(folder), clips(folder, seed=1)
    starts = {}
    for epoch in range(20):
        pixels = source[epoch, 5][0]
        assert torch.equal(pixels, again.__getitems__([(epoch, 2), (epoch, 5)])[1][0])
        starts.setdefault(pixels.numpy().tobytes(), epoch)
    assert len(starts) > 4, "drawn anew in each epoch"
    assert any(not torch.equal(source[epoch, 5][0], other[epoch, 5][0]) for epoch in range(5))
    steady = clips(folder, jitter=False)
    assert torch.equal(steady[0, 5][0], steady[9, 5][0])


def test_clips_of_one_video_are_one_pass(folder, monkeypatch):
    source = clips(folder)
    video, calls = source._videos().get(source.entries[0].path), []
    inner = video.frames
    monkeypatch.setattr(video, "frames", lambda *a, **k: (calls.append(1), inner(*a, **k))[1])
    source.__getitems__([(0, 0), (0, 1), (1, 0)])
    assert len(calls) == 1


def test_frames_decoded_are_counted_whoever_decodes(folder):
    """In this thread, in workers that are threads, and in processes."""
    for workers, kind in ((0, "threads"), (2, "threads"), (2, "processes")):
        source = clips(folder, stride=1)
        with feed(source, batch_size=3, num_workers=workers, worker_kind=kind) as it:
            list(it)
            decoded, given = source.frames
            assert given >= 48, "four frames of twelve clips"
            assert 1 <= decoded / given < 3
            assert it.stats()["frames_decoded_per_frame"] > 1


def test_worker_processes_give_way_to_the_trainer(folder):
    with feed(clips(folder), batch_size=3, num_workers=2, worker_kind="processes") as it:
        list(it)
        workers = [psutil.Process(pid).nice() for pid in it._crew.legs.pids]
    ours = psutil.Process().nice()
    assert workers == [max(10, ours)] * 2


def test_clips_in_order_go_on_from_where_the_decoder_stands(tmp_path):
    """A long group of pictures: only the second clip begins at its key frame again, then the order is known."""
    path = make(tmp_path / "v", count=60, gop=60)
    source = VideoClips([path], length=6, size=(32, 48), clips=10, jitter=False)
    for number in range(10):
        source[0, number]
    decoded, given = source.frames
    assert decoded / given < 1.5
    shuffled = VideoClips([path], length=6, size=(32, 48), clips=10, jitter=False)
    for number in (5, 2, 9, 0, 7, 4, 8, 1, 6, 3):
        shuffled[0, number]
    assert shuffled.frames.decoded > 2 * decoded


def test_together_means_fewer_frames_decoded(tmp_path):
    """The same clips in the same epoch, in fewer passes."""
    paths = [make(tmp_path / f"v{number}", count=64, gop=64) for number in range(4)]
    ratios, seen = [], []
    for together in (1, 8):
        source = VideoClips(paths, length=4, size=(32, 48), clips=8, together=together)
        with feed(source, batch_size=8, shuffle=True, num_workers=0) as it:
            given = {int(n): one for batch in it for n, one in zip(it.indices, batch, strict=True)}
            assert (it.state_dict().get("together") == together) is (together > 1)
        seen.append(given)
        ratios.append(source.frames.decoded / source.frames.given)
    assert sorted(seen[0]) == sorted(seen[1]) == list(range(32))
    assert all(torch.equal(seen[0][number], seen[1][number]) for number in range(32))
    assert ratios[1] < 0.45 * ratios[0]  # how many clips of the next epoch are made by now differs, and changes little


def test_a_short_video_repeats_its_last_frame(tmp_path):
    path = make(tmp_path / "v", count=3)
    pixels = VideoClips([path], length=6, size=(64, 96))[0]
    assert np.array_equal(pixels.numpy(), sequential(path)[[0, 1, 2, 2, 2, 2]])


def test_scaled_to_cover_and_cut_in_the_middle(tmp_path):
    path = make(tmp_path / "v", size=(160, 64))
    whole = VideoClips([path], length=2, size=(64, 160), jitter=False)[0]
    middle = VideoClips([path], length=2, size=(64, 64), jitter=False)[0]
    assert torch.equal(middle, whole[:, :, 48:112])


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_fed_with_one_draw_per_clip(folder, kind):
    source = clips(folder)
    augment = GPUAugmentation(1.0, 0, 0, 0)
    batches = [[], []]
    for workers, found in zip((1, 2), batches, strict=True):
        with feed(source, batch_size=5, shuffle=True, num_workers=workers, worker_kind=kind, augment=augment) as it:
            for _ in range(2):
                found += [(images.clone(), labels.clone(), it.indices.copy()) for images, labels in it]
    assert [len(images) for images, _, _ in batches[0]] == [5, 5, 2] * 2
    for (a, la, ia), (b, lb, ib) in zip(*batches, strict=True):
        assert a.shape[1:] == (4, 3, 64, 96)
        assert torch.equal(a, b)
        assert torch.equal(la, lb)
        assert np.array_equal(ia, ib)
    images, _, indices = batches[0][0]
    plain = source[0, int(indices[0])][0].permute(0, 3, 1, 2).float() / 255
    assert torch.allclose(images[0], plain.flip(-1), atol=0.01), "every frame of the clip is flipped"


def test_segments_as_labels_of_frames(tmp_path):
    path = make(tmp_path / "v", count=50)  # 25 a second
    (tmp_path / "s.csv").write_text(f"path,label,start,end\n{path.name},run,0.4,0.8\n{path.name},jump,1.2,1.6\n")
    source = VideoClips(tmp_path / "s.csv", length=50, size=(32, 48), temporal=True)
    assert len(source) == 1
    assert source.classes == ["jump", "run"]
    _, labels = source[0]
    expected = np.zeros(50, int)
    expected[10:20], expected[30:40] = 2, 1
    assert labels.tolist() == expected.tolist()


@given(st.sampled_from([32, 112, 160, 224]), st.integers(224, 2200), st.integers(224, 4100))
@example(112, 640, 1300)
@example(112, 650, 320)
def test_what_a_square_clip_needs_is_what_a_cache_keeps(size, height, width):
    (tall, wide), top, left = _cover((height, width), (size, size))
    assert (tall, wide) == CacheSettings(size=size).target(height, width)
    assert min(tall, wide) == size
    assert (top, left) == ((tall - size) // 2, (wide - size) // 2)


@given(*[st.integers(1, 300)] * 4)
def test_a_clip_is_covered(height, width, rows, columns):
    (tall, wide), top, left = _cover((height, width), (rows, columns))
    assert tall == rows or wide == columns
    assert 0 <= top <= tall - rows
    assert 0 <= left <= wide - columns


class TestLabels:
    def read(self, tmp_path, *lines, **given):
        (tmp_path / "s.csv").write_text("path,label\n" + "".join(f"{line}\n" for line in lines))
        source = VideoClips(tmp_path / "s.csv", length=2, size=(8, 8), **given)
        return [entry.label for entry in source.entries], source.classes

    def test_numbers_among_names_are_names(self, tmp_path):
        assert self.read(tmp_path, "a.mp4,0", "b.mp4,cat", "c.mp4,07") == ([0, 2, 1], ["0", "07", "cat"])
        assert self.read(tmp_path, "a.mp4,--5") == ([0], ["--5"])

    def test_what_only_looks_like_a_number_is_a_name(self, tmp_path):
        assert self.read(tmp_path, "a.mp4,007", "b.mp4,7") == ([0, 1], ["007", "7"])
        assert self.read(tmp_path, "a.mp4,1_0", "b.mp4,1_1") == ([0, 1], ["1_0", "1_1"])

    def test_whole_numbers_stay_what_they_are(self, tmp_path):
        assert self.read(tmp_path, "a.mp4,0.0", "b.mp4,3.0") == ([0, 3], None), "as tables with gaps were written"

    def test_given_ones_come_first(self, tmp_path):
        assert self.read(tmp_path, "a.mp4,0", "b.mp4,1", labels=torch.tensor([4, 0])) == ([4, 0], None)

    def test_one_that_is_missing(self, tmp_path):
        with pytest.raises(InputError, match=r"s\.csv, line 3: no label, where 1 others have one"):
            self.read(tmp_path, "a.mp4,0", "b.mp4,")
        assert self.read(tmp_path, "a.mp4,", "b.mp4,") == ([None, None], None)

    def test_a_video_in_which_nothing_happens(self, tmp_path):
        path = make(tmp_path / "v")
        (tmp_path / "s.csv").write_text(f"path,label,start,end\nw.mp4,run,0,1\n{path.name},,,\n")
        source = VideoClips(tmp_path / "s.csv", length=4, size=(8, 8), temporal=True)
        assert len(source) == 2
        assert source[1][1].tolist() == [0, 0, 0, 0]

    def test_a_folder_that_has_both_says_what_it_leaves_out(self, tmp_path, caplog):
        (tmp_path / "more").mkdir()
        (tmp_path / "v.mp4").touch()
        assert len(VideoClips(tmp_path, length=2, size=(8, 8))) == 1
        assert "1 videos beside 1 subfolders, which are not looked into" in caplog.text


def test_parts_of_videos(tmp_path):
    path = make(tmp_path / "v", count=50)
    (tmp_path / "s.csv").write_text(f"path,label,start,end\n{path.name},7,0.4,0.8\n")
    source = VideoClips(tmp_path / "s.csv", length=4, size=(32, 48))
    for epoch in range(10):
        frames = source.frames_of(source.entries[0], source._videos().get(str(path)), epoch, 0)
        assert frames.min() >= 10
        assert frames.max() < 20
    assert int(source[0][1]) == 7


class TestBad:
    def test_a_damaged_video_is_named(self, folder, tmp_path):
        bad = tmp_path / "bad.mp4"
        bad.write_bytes(b"no video" * 100)
        paths = [entry.path for entry in clips(folder).entries[:2]] + [str(bad)]
        with pytest.raises(DecodeError, match=r"bad\.mp4.*\. on_error='skip' goes on without such clips$"):
            VideoClips(paths, length=2, size=(32, 48))[2]

    @pytest.mark.parametrize("workers", [0, 2])
    def test_left_out_is_counted_and_told_once(self, folder, tmp_path, monkeypatch, workers):
        told = tmp_path / "log"
        handler = logging.FileHandler(told)
        monkeypatch.setattr(logging.getLogger("fulltilt.feed.clips.clips"), "handlers", [handler])
        bad = tmp_path / "bad.mp4"
        bad.write_bytes(b"no video" * 100)
        paths = [entry.path for entry in clips(folder).entries[:2]] + [str(bad)] * 2
        source = VideoClips(paths, length=2, size=(32, 48), clips=2, on_error="skip")
        with feed(source, batch_size=3, num_workers=workers) as it:
            assert it.stats()["skipped"] == 0
            for epoch in range(1, 4):
                # The last batch has not one that is good: the loop does without it, and the epoch ends.
                assert [len(images) for images in it] == [3, 1]
                assert it.stats()["skipped"] == 4 * epoch
        handler.close()
        lines = told.read_text().splitlines()
        assert len(lines) == 2, "once for each of the two rows, however many workers met it"
        assert "bad.mp4: can't be opened as a video" in lines[0]

    def test_a_damaged_frame_costs_the_clips_that_have_it(self, tmp_path, monkeypatch):
        """And not all clips of its video that fall into the same batch."""
        path = make(tmp_path / "v", count=48, gop=4)
        source = VideoClips([path], length=2, size=(32, 48), clips=6, jitter=False, on_error="skip")
        expected = source.__getitems__(range(6))
        inner = Video.frames

        def frames(video, numbers, **options):
            if 19 in numbers:
                raise DecodeError(f"{path}: frame 19 of 48 can't be decoded")
            return inner(video, numbers, **options)

        monkeypatch.setattr(Video, "frames", frames)
        found = source.__getitems__(range(6))
        assert [clip is None for clip in found] == [False, False, True, False, False, False]
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True) if one is not None)

    def test_what_is_left_is_told_and_augmented_as_ever(self, folder, tmp_path):
        """Numbers are those of the batch's own clips, and a clip's draw does not depend on others in its batch."""
        bad = tmp_path / "bad.mp4"
        bad.write_bytes(b"no video" * 100)
        first, second = (entry.path for entry in clips(folder).entries[:2])
        source = VideoClips([first, bad, second], length=2, size=(32, 48), clips=2, on_error="skip")
        found = []
        for batch_size in (6, 3):
            augment = GPUAugmentation(rotation_degrees=30)
            with feed(source, batch_size=batch_size, num_workers=0, augment=augment) as it:
                batches = [(images.clone(), it.indices.tolist()) for images in it]
            assert [number for _, numbers in batches for number in numbers] == [0, 1, 4, 5]
            found.append(torch.cat([images for images, _ in batches]))
        assert torch.equal(*found)

    def test_ranks_stay_in_step(self, folder, tmp_path, monkeypatch):
        """One that passed over a batch would leave the others waiting for it."""
        bad = tmp_path / "bad.mp4"
        bad.write_bytes(b"no video" * 100)
        paths = [entry.path for entry in clips(folder).entries[:2]]
        source = VideoClips([bad, *paths, bad], length=2, size=(32, 48), labels=[0, 1, 2, 3], on_error="skip")
        for rank, expected in ((0, [1, 2]), (1, [1, 1])):
            monkeypatch.setattr(build, "rank", lambda rank=rank: rank)
            monkeypatch.setattr(build, "world", lambda: 2)
            with feed(source, batch_size=1, num_workers=0) as it:
                given = [(labels.tolist(), it.indices.tolist()) for _, labels in it]
                assert it.stats()["skipped"] == 1
            assert len(given) == len(it) == 2
            assert [numbers for _, numbers in given] == [labels for labels, _ in given]
            assert sorted(label for labels, _ in given for label in labels) == sorted(expected)
        with pytest.raises(InputError, match="not one of 2 videos has a clip that can be decoded"):
            VideoClips([bad, bad], length=2, size=(8, 8), on_error="skip").instead_of(0, 0)

    def test_not_one_good_clip(self, tmp_path):
        bad = tmp_path / "bad.mp4"
        bad.write_bytes(b"no video" * 100)
        with feed(VideoClips([bad], length=2, size=(8, 8), on_error="skip"), batch_size=1, num_workers=0) as it:
            assert list(it) == []
            assert it.stats()["skipped"] == 1

    def test_what_is_not_there(self, tmp_path):
        with pytest.raises(InputError, match="no videos in"):
            VideoClips(tmp_path, length=2, size=(8, 8))
        with pytest.raises(InputError, match="length: expected 1 or more, found 0"):
            VideoClips(["a.mp4"], length=0, size=(8, 8))
        (tmp_path / "s.csv").write_text("path,start,end\nv.mp4,soon,2\n")
        with pytest.raises(InputError, match="line 2: a time in seconds was expected, found 'soon'"):
            VideoClips(tmp_path / "s.csv", length=2, size=(8, 8))

    @pytest.mark.parametrize("temporal", [True, False])
    @pytest.mark.parametrize(
        ("times", "says"),
        [
            ("2,1", "from 2 s to 1 s"), ("1,1", "from 1 s to 1 s"), ("-1,1", "from -1 s to 1 s"),
            ("nan,1", "from nan s to 1 s"), (",0", "from 0 s to 0 s"), ("-1,", "from -1 s to the end"),
        ],
    )  # fmt: skip
    def test_segments_that_run_backwards(self, tmp_path, times, says, temporal):
        (tmp_path / "s.csv").write_text(f"path,label,start,end\nv.mp4,run,0,1\nv.mp4,run,{times}\n")
        with pytest.raises(InputError, match=f"line 3: {says}; a segment has to begin at 0 or later"):
            VideoClips(tmp_path / "s.csv", length=2, size=(8, 8), temporal=temporal)

    def test_segments_behind_the_end_are_told_of_once(self, tmp_path, caplog):
        path = make(tmp_path / "v", count=50)
        (tmp_path / "s.csv").write_text(f"path,label,start,end\n{path.name},run,0.4,9\n{path.name},run,30,40\n")
        source = VideoClips(tmp_path / "s.csv", length=2, size=(8, 8), temporal=True)
        for epoch in range(3):
            source[epoch, 0]
        (record,) = caplog.records
        assert "1 of 2 segments begin behind its last frame at 1.96 s, first at 30 s" in record.getMessage()

    @pytest.mark.parametrize("label", ["0", "-1", "0.0"])
    def test_an_action_that_would_be_none(self, tmp_path, label):
        (tmp_path / "s.csv").write_text(f"path,label,start,end\nv.mp4,1,0,1\nv.mp4,{label},1,2\n")
        with pytest.raises(InputError, match=r"s\.csv, line 3: label .*number actions from 1 on, or give them names"):
            VideoClips(tmp_path / "s.csv", length=2, size=(8, 8), temporal=True)

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({"length": 2.5}, "length: expected 1 or more, found 2.5"), ({"stride": "2"}, "stride: expected 1 or more"),
            ({"size": 32}, "size: expected"), ({"size": (0, 8)}, "size: expected"),
            ({"threads": 65}, "expected 1 to 64"), ({"threads": "4"}, "expected 1 to 64"),
            ({"labels": [0.5]}, "labels: expected whole numbers"), ({"labels": [0, 1]}, "2 labels for 1 videos"),
        ],
    )  # fmt: skip
    def test_settings_that_mean_nothing(self, given, says):
        with pytest.raises(InputError, match=says):
            VideoClips(["v.mp4"], **{"length": 2, "size": (8, 8), **given})

    def test_numbers_from_1_on_are_told_of_unless_0_means_that_nothing_happens(self, tmp_path, caplog):
        (tmp_path / "s.csv").write_text("path,class,start,end\nv.mp4,1,0,1\nv.mp4,2,1,2\n")
        clips = VideoClips(tmp_path / "s.csv", length=2, size=(8, 8), temporal=True)
        assert [one.label for one in clips.entries[0].segments] == [1, 2]
        assert not caplog.records
        assert [one.label for one in VideoClips(tmp_path / "s.csv", length=2, size=(8, 8)).entries] == [1, 2]
        assert "labels are 1 to 2 and none is 0" in caplog.text


def test_memory_and_handles_stay_flat_over_10000_clips(tmp_path):
    """Five videos and room for two: most clips open one and close another."""
    paths = [make(tmp_path / f"v{number}", count=6, size=(32, 32), gop=3) for number in range(5)]
    source = VideoClips(paths, length=2, size=(16, 16), open_videos=2)
    process, draw, seen = psutil.Process(os.getpid()), np.random.default_rng(0), []
    for epoch in range(1000):  # in each, two videos of five
        numbers = np.repeat(draw.permutation(5)[:2], 5)
        assert len(source.__getitems__([(epoch, int(number)) for number in numbers])) == 10
        if epoch in (399, 999):
            seen.append((process.num_fds(), process.memory_info().rss))
    (handles, memory), (handles_later, memory_later) = seen
    assert handles_later <= handles
    assert memory_later - memory < 10e6
    assert len(source._videos()) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_a_feed_that_is_closed_leaves_no_file_open(folder, workers):
    """Also before the garbage collector comes by."""
    source = clips(folder)

    def still_open():
        return [file.path for file in psutil.Process().open_files() if file.path.startswith(str(folder))]

    gc.collect()
    gc.disable()
    try:
        with feed(source, batch_size=4, num_workers=workers, worker_kind="threads" if workers else "auto") as it:
            for _ in it:
                pass
            assert still_open()
        assert not still_open()
        source[0]
        assert still_open()
        del source
        assert not still_open()
    finally:
        gc.enable()


def test_a_closed_video_keeps_no_decoder(tmp_path):
    """More videos than are open: what is known of them stays, their pictures go."""
    first = make(tmp_path / "v", count=12, size=(640, 360))
    paths = [first, *(Path(shutil.copy(first, tmp_path / f"{number}.mp4")) for number in range(39))]
    source, process, seen = VideoClips(paths, length=4, size=(36, 64), open_videos=2), psutil.Process(), []
    for number in range(40):
        source[0, number]
        if number in (9, 39):
            seen.append((process.num_fds(), process.memory_info().rss))
    (handles, memory), (handles_later, memory_later) = seen
    assert handles_later <= handles
    assert memory_later - memory < 20e6, "thirty decoders of 640×360 hold more than 60 MB"


def test_what_one_thread_knows_of_a_file_others_need_not_read(folder, monkeypatch):
    source, read = clips(folder), []
    inner = Video._read
    monkeypatch.setattr(Video, "_read", lambda video: (read.append(video.path), inner(video))[1])
    expected = source[0, 5][0]
    found = []
    for _ in range(3):
        thread = threading.Thread(target=lambda: found.append(source[0, 5][0]))
        thread.start()
        thread.join()
    assert all(torch.equal(one, expected) for one in found)
    assert len(found) == 3
    assert len(read) == 1


def test_what_is_known_of_files_is_kept_within_limits(tmp_path, monkeypatch):
    monkeypatch.setattr(open_videos, "KNOWN_FRAMES", 50)
    monkeypatch.setattr(clip_knowledge, "KNOWN_FRAMES", 50)
    monkeypatch.setattr(clip_knowledge, "LOG_BYTES", -1)  # what others have found would be known, too
    paths = [str(make(tmp_path / f"v{number}", count=20)) for number in range(4)]
    opened = []

    def open_one(path, known):
        opened.append((path, known is not None))
        return open_video(path, known=known)

    videos = open_videos.OpenVideos(1, open_one)
    for path in [*paths[:2], paths[0], *paths[2:], paths[0], paths[3]]:
        videos.outline(path)
        videos.get(path)
    assert [known for _, known in opened[:5]] == [False, False, True, False, False]
    assert not all(known for _, known in opened[5:]), "of sixty frames not all are kept"
    assert videos._frames <= 50 + 20
    videos.close()


def test_fewer_large_videos_are_kept_open(tmp_path, monkeypatch):
    """Their decoders are what takes memory."""
    monkeypatch.setattr(open_videos, "PIXELS", 64 * 64)
    small = [str(make(tmp_path / f"s{number}", count=4, size=(64, 64))) for number in range(4)]
    large = [str(make(tmp_path / f"l{number}", count=4, size=(128, 64))) for number in range(2)]
    videos = open_videos.OpenVideos(3, lambda path, known: open_video(path, known=known))
    kept = []
    for path in [*small, *large, small[0]]:
        videos.get(path)
        kept.append(len(videos))
    assert kept == [1, 2, 3, 3, 2, 1, 2]
    videos.close()


def test_processes_are_forked_while_others_decode(folder):
    """Each feed looks at its source in a forked process, while threads of the one before may still be ending."""
    began = time.monotonic()
    for _ in range(8):
        with feed(clips(folder), batch_size=3, num_workers=1, worker_kind="threads") as it:
            assert sum(len(images) for images, _ in it) == 12
    assert time.monotonic() - began < 25, "one that hangs is given up after 30 s"


def test_sent_to_a_process_without_its_open_files(folder):
    source = clips(folder)
    expected = source[1, 3][0]
    assert torch.equal(pickle.loads(pickle.dumps(source))[1, 3][0], expected)
