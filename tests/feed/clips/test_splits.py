"""Decoders and threads: what is tried, what is chosen, and that it is measured on the clips themselves."""

from __future__ import annotations

import pytest
from tests.decode.video.support import make

from fulltilt.errors import InputError
from fulltilt.feed import VideoClips, feed
from fulltilt.feed.clips import splits
from fulltilt.feed.clips.splits import Split, choose, clip_rate, decoder_split, possible_splits


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    return [make(folder / f"v{number}", count=20, gop=8) for number in range(3)]


def of(*pairs):
    return [Split(decoders=decoders, threads=threads) for decoders, threads in pairs]


@pytest.mark.parametrize(
    ("cores", "workers", "expected"),
    [
        (13, None, [(13, 1), (6, 2), (3, 4), (1, 8)]),
        (1, None, [(1, 1)]),
        (8, 4, [(4, 1), (4, 2)]),
        (8, 8, [(8, 1)]),
        (2, 5, [(5, 1)]),
    ],
)
def test_what_is_tried(cores, workers, expected):
    assert possible_splits(cores, workers) == of(*expected)


def test_the_fastest_with_the_fewest_threads():
    some = of((12, 1), (6, 2), (3, 4))
    assert choose(list(zip(some, (100.0, 103.0, 60.0), strict=True))).value == some[0], "about as fast"
    found = choose(list(zip(some, (100.0, 130.0, 133.0), strict=True)))
    assert found.value == some[1]
    assert found.evidence["clips_per_second"] == [(12, 1, 100.0), (6, 2, 130.0), (3, 4, 133.0)]
    assert "6×2: 130.0/s" in found.reason


def test_measured_on_the_files(paths):
    """On eight cores, whatever there are here."""
    source = VideoClips(paths, length=4, size=(32, 48))
    found = decoder_split(source, range(3), cores=8, ranks=1, workers=None)
    tried = found.evidence["clips_per_second"]
    assert [threads for _, threads, _ in tried] == [1, 2, 4]
    assert all(rate > 0 for *_, rate in tried)
    assert found.value in of(*[pair[:2] for pair in tried])
    assert source.threads == "auto", "the source itself is left alone"
    assert source.frames.given > 0, "clips were decoded, and counted across processes"


def test_as_asked_for(paths):
    source = VideoClips(paths, length=4, size=(32, 48), threads=2)
    found = decoder_split(source, range(3), cores=8, ranks=1, workers=None)
    assert (found.value, found.reason) == (Split(decoders=3, threads=2), "threads as asked for")
    with pytest.raises(InputError, match="threads: expected 1 to 64, or 'auto', found 0"):
        VideoClips(paths, length=4, size=(32, 48), threads=0)


def test_files_that_can_not_be_decoded(tmp_path):
    bad = tmp_path / "bad.mp4"
    bad.write_bytes(b"no video" * 100)
    found = decoder_split(VideoClips([bad], length=4, size=(8, 8)), [0], cores=8, ranks=1, workers=None)
    assert found.value.threads == 1
    assert "not measured (DecodeError" in found.reason


def test_a_feed_begins_with_what_was_found(paths, monkeypatch):
    monkeypatch.setattr(splits, "_measured", lambda _s, _n, some: [(split, 10.0 * split.threads) for split in some[:2]])
    monkeypatch.setattr("fulltilt.feed.build.read_cores", lambda: type("Cores", (), {"usable": 4}))
    with feed(VideoClips(paths, length=4, size=(32, 48)), batch_size=2, worker_kind="threads") as it:
        assert it.split.value.threads == 2
        assert it.hosting.value.workers == 1, "every core but one, in pairs"
        assert it.hosting.value.most == 2
        assert sum(len(images) for images in it) == 3


def test_several_threads_give_the_same(paths):
    one, two = (VideoClips(paths, length=6, size=(64, 96), threads=threads) for threads in (1, 2))
    for number in range(3):
        assert (one[0, number] == two[0, number]).all()
    assert clip_rate(one, [0, 1, 2], Split(decoders=2, threads=1), 0.05) > 0
