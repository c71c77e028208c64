"""The size said before a build is the size that it has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.cache.support import make_images

from fulltilt.cache import CacheSettings
from fulltilt.cache.build import build
from fulltilt.cache.predict import Sample, folder_bytes, predict
from fulltilt.errors import CacheError


@pytest.mark.parametrize("size", [None, 100])
@pytest.mark.parametrize("masked", [False, True])
def test_all_headers_read_give_the_size_exactly(images, masks, tmp_path, size, masked):
    folder = tmp_path / "c"
    seen = []
    settings = CacheSettings(size=size)
    build(folder, images, masks if masked else None, settings=settings, workers=1, planned=seen.append)
    (prediction,) = seen
    written = sum(path.stat().st_size for path in folder.glob("shard-*"))
    assert prediction.margin_bytes == 0
    assert prediction.samples == len(images)
    assert abs(prediction.bytes - written) <= 64 * 4  # the headers, and the last image's alignment
    assert folder_bytes(folder) >= written


def test_some_headers_give_it_within_the_margin(images, tmp_path):
    small = make_images(tmp_path / "small", 40, width=80, height=60)
    mixed = [Sample(path, None) for path in [*images, *small]]
    exact = predict(tmp_path / "c", mixed, CacheSettings(), present=0)
    sampled = predict(tmp_path / "c", mixed, CacheSettings(), present=0, probed=25)
    assert sampled.probed == 25
    assert sampled.margin_bytes > 0
    assert abs(sampled.bytes - exact.bytes) <= sampled.margin_bytes
    again = predict(tmp_path / "c", mixed, CacheSettings(), present=0, probed=25)
    assert replace(again, free_bytes=sampled.free_bytes) == sampled  # others write to the disk, too


def test_unreadable_files_take_no_room(images, tmp_path):
    (tmp_path / "bad.jpg").write_text("no")
    good = predict(tmp_path / "c", [Sample(path, None) for path in images], CacheSettings(), present=0)
    bad = [Sample(str(tmp_path / "bad.jpg"), None), Sample(str(tmp_path / "none.jpg"), None)]
    both = predict(tmp_path / "c", [*(Sample(path, None) for path in images), *bad], CacheSettings(), present=0)
    assert both.unreadable == 2
    assert abs(both.bytes - good.bytes) < 100


def test_a_header_behind_a_long_preview_is_found(tmp_path):
    (path,) = make_images(tmp_path, 1)
    data = Path(path).read_bytes()
    comment = b"\xff\xfe\xff\xff" + bytes(65533)
    Path(path).write_bytes(data[:2] + comment * 6 + data[2:])
    assert predict(tmp_path / "c", [Sample(path, None)], CacheSettings(), present=0).unreadable == 0


def test_the_budget_counts_what_is_there(images, tmp_path):
    build(tmp_path / "c", images[:30], workers=1, budget_bytes=8_000_000)
    with pytest.raises(CacheError, match=r"30 samples need about 7 MB beside the 7 MB there; the budget is 8"):
        build(tmp_path / "c", images, workers=1, budget_bytes=8_000_000)
    assert build(tmp_path / "c", images, workers=1, budget_bytes=15_000_000).made == 30


def test_over_budget_writes_nothing(images, tmp_path):
    with pytest.raises(CacheError, match="nothing was written"):
        build(tmp_path / "c", images, workers=1, budget_bytes=1_000_000)
    assert not (tmp_path / "c").exists()
