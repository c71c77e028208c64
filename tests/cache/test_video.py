"""Frames of videos in a cache: those that a decoder gives, found only while the file is the one they came from."""

from __future__ import annotations

import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.decode.video.support import make

from fulltilt.cache import Cache, CacheSettings, keys
from fulltilt.cache.build import Failure
from fulltilt.cache.shard import path_of
from fulltilt.cache.verify import verify
from fulltilt.cache.video import PART, build_videos, cached_frames
from fulltilt.decode.video import Video, open_video
from fulltilt.errors import CacheError, DecodeError, InputError
from fulltilt.feed import VideoClips, feed

SETTINGS = CacheSettings(size=32)
COUNT = PART + 20


@pytest.fixture
def videos(tmp_path):
    folder = tmp_path / "videos"
    folder.mkdir()
    return [str(make(folder / f"v{number}", count=COUNT, gop=8)) for number in range(2)]


@pytest.fixture
def folder(tmp_path, videos):
    report = build_videos(tmp_path / "cache", videos, settings=SETTINGS, workers=2)
    assert (report.videos, report.present, report.frames, report.failures) == (2, 0, 2 * COUNT, ())
    assert report.bytes == 2 * COUNT * 32 * 48 * 3
    return tmp_path / "cache"


def frames(folder, path, numbers, size=(32, 48)):
    return cached_frames(Cache.open(folder), path, numbers, count=COUNT, size=size)


def test_the_same_frames_as_a_decoder(folder, videos):
    numbers = [0, 70, 3, 3, COUNT - 1, PART]
    for path in videos:
        with open_video(path) as video:
            assert np.array_equal(frames(folder, path, numbers), video.frames(numbers, size=(32, 48)))
        assert frames(folder, path, [1], size=(30, 48)) is None, "another size"


def test_a_file_that_has_changed_is_not_served(folder, videos):
    shutil.copyfile(videos[1], videos[0])
    assert frames(folder, videos[0], [1]) is None
    assert frames(folder, videos[1], [1]) is not None
    os.unlink(videos[1])
    assert frames(folder, videos[1], [1]) is None


def test_a_second_build_does_what_is_left(folder, videos, tmp_path):
    again = build_videos(folder, videos, settings=SETTINGS)
    assert (again.present, again.frames) == (2, 0)
    path_of(folder, 0, "index").write_bytes(path_of(folder, 0, "index").read_bytes()[:-1])  # as if it had been killed
    more = build_videos(folder, videos, settings=SETTINGS)
    assert more.frames in (20, PART)
    assert all(frames(folder, path, range(COUNT)) is not None for path in videos)


def test_the_size_is_said_before(folder, videos, tmp_path):
    """Exactly, where all are opened; of what is there in part, the rest."""
    seen = []
    build_videos(tmp_path / "new", videos, settings=SETTINGS, planned=seen.append)
    build_videos(tmp_path / "new", videos, settings=SETTINGS, planned=seen.append)
    path_of(folder, 0, "index").write_bytes(path_of(folder, 0, "index").read_bytes()[:-1])  # the last part is lost
    left = build_videos(folder, videos, settings=SETTINGS, planned=seen.append)
    new, whole, rest = seen
    written = sum(path.stat().st_size for path in (tmp_path / "new").glob("shard-*"))
    assert (new.samples, new.present, new.margin_bytes) == (2, 0, 0)
    assert abs(new.bytes - written) <= 64 * 4
    assert (whole.samples, whole.present, whole.bytes) == (0, 2, 0)
    assert (rest.samples, rest.present) == (1, 1)
    assert left.bytes < rest.bytes < left.bytes + 1000


def test_of_many_videos_some_are_opened(videos, tmp_path, monkeypatch):
    monkeypatch.setattr("fulltilt.cache.video._OPENED", 3)
    more = [str(make(tmp_path / f"short{number}", count=10)) for number in range(4)]
    seen = []
    report = build_videos(tmp_path / "cache", [*videos, *more], settings=SETTINGS, planned=seen.append)
    assert (seen[0].probed, seen[0].samples) == (3, 6)
    assert abs(seen[0].bytes - report.bytes) <= seen[0].margin_bytes + 2000


def test_nothing_is_written_where_it_does_not_fit(videos, tmp_path, monkeypatch):
    monkeypatch.setattr("fulltilt.cache.predict.shutil.disk_usage", lambda _: SimpleNamespace(free=500_000))
    with pytest.raises(CacheError, match=r"2 videos need about 775 kB; the disk of .* has 500 kB free.*was written"):
        build_videos(tmp_path / "cache", videos, settings=SETTINGS)
    assert not (tmp_path / "cache").exists()


def test_verified_as_images_are(folder, videos):
    report = verify(folder)
    assert (report.entries, report.damage) == (4, ())
    assert report.sources["same"] == 4
    pixels = path_of(folder, 0, "pixels")
    data = bytearray(pixels.read_bytes())
    data[len(data) // 2] ^= 1
    pixels.write_bytes(data)
    report = verify(folder, drop=True)
    assert [one.path for one in report.damage] in ([videos[0]], [videos[1]])
    assert build_videos(folder, videos, settings=SETTINGS).frames in (20, PART)
    assert verify(folder).damage == ()


def test_what_is_wrong_is_told(tmp_path, videos, folder):
    bad = tmp_path / "bad.mp4"
    bad.write_bytes(b"no video" * 100)
    report = build_videos(folder, [*videos, bad, tmp_path / "none.mp4"], settings=SETTINGS)
    assert report.present == 2
    damaged, gone = report.failures
    assert damaged.path == str(bad)
    assert damaged.error.startswith("can't be opened as a video")
    assert gone == Failure(path=str(tmp_path / "none.mp4"), error="no such file")
    with pytest.raises(CacheError, match="size 32 instead of 16"):
        build_videos(folder, videos, settings=CacheSettings(size=16))
    with pytest.raises(CacheError, match="holds other files and no cache"):
        build_videos(tmp_path / "videos", videos, settings=SETTINGS)
    with pytest.raises(InputError, match="channels=3"):
        build_videos(folder, videos, settings=CacheSettings(channels=1))


def test_clips_from_it(folder, videos, monkeypatch):
    options = {"length": 4, "size": (32, 32), "stride": 2, "clips": 3}
    plain, cached = VideoClips(videos, **options), VideoClips(videos, cache=folder, **options)
    expected = [plain[epoch, number] for epoch in range(3) for number in range(6)]
    cached[0, 0], cached[0, 3]  # what the files are is known from here on
    monkeypatch.setattr("fulltilt.decode.video.reader.Video.frames", None)  # nothing is decoded
    given = [cached[epoch, number] for epoch in range(3) for number in range(6)]
    assert all(torch.equal(a, b) for a, b in zip(expected, given, strict=True))


def test_clips_of_what_it_lacks(folder, videos, tmp_path, caplog):
    """A size that it does not have, which is told once, and a file that has changed: decoded as ever."""
    shutil.copyfile(videos[1], videos[0])
    for size in ((32, 32), (40, 40)):
        options = {"length": 4, "size": size, "clips": 2}
        plain, cached = VideoClips(videos, **options), VideoClips(videos, cache=folder, **options)
        assert all(torch.equal(plain[number], cached[number]) for number in range(4))
        assert len(caplog.records) == (size == (40, 40))
    assert "as 32×48, and clips of 40×40 need 40×60: they are decoded" in caplog.text


def test_fed_by_processes(folder, videos):
    source = VideoClips(videos, length=4, size=(32, 32), clips=3, cache=folder)
    with feed(source, batch_size=3, num_workers=2, worker_kind="processes") as it:
        assert [len(images) for images in it] == [3, 3]


def test_no_cache_there(tmp_path, videos):
    with pytest.raises(CacheError, match=r"nothing holds no cache; make one with `fulltilt video cache SOURCE "):
        VideoClips(videos, length=4, size=(32, 32), cache=tmp_path / "nothing")


def test_damage_spares_the_parts_behind_it(tmp_path, videos, monkeypatch):
    inner = Video.frames

    def frames_of(video, numbers, **options):
        if 5 in numbers:
            raise DecodeError(f"{video.path}: frame 5 of {COUNT} can't be decoded")
        return inner(video, numbers, **options)

    monkeypatch.setattr(Video, "frames", frames_of)
    report = build_videos(tmp_path / "cache", videos[:1], settings=SETTINGS)
    assert report.frames == COUNT - PART
    (failure,) = report.failures
    assert failure.path == videos[0]
    assert failure.error.startswith("frame 5 of")
    assert frames(tmp_path / "cache", videos[0], range(PART, COUNT)) is not None


def test_a_video_is_not_read_again_for_each_of_its_parts(folder, videos, monkeypatch):
    read, inner = [], keys._steadily
    monkeypatch.setattr(keys, "_steadily", lambda path, how: (read.append(path), inner(path, how))[1])
    monkeypatch.setattr("fulltilt.cache.verify.read_cores", lambda: SimpleNamespace(usable=1))
    assert verify(folder).sources["same"] == 4
    assert sorted(read) == sorted(videos)


def test_hashed_piece_by_piece(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 10)
    data, stamp = keys.read_steadily(path)
    for piece in (100, 256, 4096):
        monkeypatch.setattr(keys, "_PIECE", piece)
        assert keys.hash_steadily(path, b"settings") == (keys.content_of(data, None, b"settings"), stamp)
