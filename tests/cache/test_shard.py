"""The files byte by byte: a build that ended anywhere leaves a beginning that can be used and an end that is cut."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulltilt.cache import Cache, CacheSettings
from fulltilt.cache.keys import Key
from fulltilt.cache.manifest import write_manifest
from fulltilt.cache.shard import HEADER_BYTES, RECORD_BYTES, Record, path_of
from fulltilt.cache.writer import ShardWriter, Subject, open_shard, recover

SETTINGS = CacheSettings()
STAMP = tuple(range(8))


def subject(number: int) -> Subject:
    name = number.to_bytes(16, "little")
    return Subject(name=name, content=name, stamp=STAMP, image=b"/images/%d.jpg" % number, mask=None)


def pixels(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (number % 5 + 1, 7, 3), np.uint8)


def write(folder: Path, numbers: range) -> None:
    writer = ShardWriter(folder, SETTINGS.digest)
    for number in numbers:
        writer.add(subject(number), pixels(number), None)
    writer.close()


def served(folder: Path, count: int) -> list[int]:
    """Which of the samples are found; their pixels must be right."""
    cache = Cache.open(folder)
    found = []
    for number in range(count):
        entry = cache.find(Key(number.to_bytes(16, "little"), STAMP))
        if entry is not None:
            np.testing.assert_array_equal(cache.pixels(entry, check=True), pixels(number))
            found.append(number)
    return found


@given(
    before=st.integers(0, 6),
    half_record=st.binary(max_size=RECORD_BYTES * 2),
    half_pixels=st.binary(max_size=500),
    half_name=st.binary(max_size=50),
)
def test_whatever_follows_the_last_record_is_cut(before, half_record, half_pixels, half_name):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_manifest(folder, SETTINGS)
        write(folder, range(max(before, 1)))
        sizes = {kind: path_of(folder, 0, kind).stat().st_size for kind in ("index", "pixels", "names")}
        for kind, tail in (("index", half_record), ("pixels", half_pixels), ("names", half_name)):
            with path_of(folder, 0, kind).open("ab") as file:
                file.write(tail)
        assert served(folder, 9) == list(range(max(before, 1)))
        recover(folder, SETTINGS.digest)
        assert {kind: path_of(folder, 0, kind).stat().st_size for kind in sizes} == sizes
        write(folder, range(max(before, 1), 9))
        assert served(folder, 9) == list(range(9))


@given(cut=st.integers(0, 5 * RECORD_BYTES))
def test_an_index_cut_anywhere_loses_only_what_is_behind(cut):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_manifest(folder, SETTINGS)
        write(folder, range(5))
        with path_of(folder, 0, "index").open("r+b") as file:
            file.truncate(HEADER_BYTES + cut)
        assert served(folder, 5) == list(range(cut // RECORD_BYTES))
        write(folder, range(cut // RECORD_BYTES, 5))
        assert served(folder, 5) == list(range(5))


def test_a_record_is_refused_with_any_bit_flipped(tmp_path):
    write(tmp_path, range(1))
    data = path_of(tmp_path, 0, "index").read_bytes()[HEADER_BYTES:]
    assert Record.unpack(data) is not None
    for bit in range((RECORD_BYTES - 4) * 8):  # the last four bytes are padding
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert Record.unpack(bytes(damaged)) is None, bit


def test_a_shard_is_written_by_one_at_a_time(tmp_path):
    first = ShardWriter(tmp_path, SETTINGS.digest)
    first.add(subject(0), pixels(0), None)
    second = ShardWriter(tmp_path, SETTINGS.digest)
    second.add(subject(1), pixels(1), None)
    assert len(list(tmp_path.glob("*.pixels"))) == 2
    assert open_shard(tmp_path, 0, SETTINGS.digest, wait=False) is None
    first.close()
    held = open_shard(tmp_path, 0, SETTINGS.digest, wait=False)
    assert held is not None
    held.close()
    second.close()


def test_a_shard_with_room_is_filled_before_a_new_one_is_made(tmp_path):
    write_manifest(tmp_path, SETTINGS)
    for number in range(5):
        write(tmp_path, range(number, number + 1))
    assert len(list(tmp_path.glob("*.pixels"))) == 1
    assert served(tmp_path, 5) == list(range(5))


def test_a_shard_that_was_cut_is_not_appended_to(tmp_path):
    """The gap would be filled with zeros that look like pixels."""
    write_manifest(tmp_path, SETTINGS)
    write(tmp_path, range(3))
    with path_of(tmp_path, 0, "pixels").open("r+b") as file:
        file.truncate(HEADER_BYTES + 10)
    write(tmp_path, range(3, 6))
    assert served(tmp_path, 6) == [3, 4, 5]
    assert path_of(tmp_path, 0, "pixels").stat().st_size == HEADER_BYTES + 10


def test_a_shard_whose_maker_was_killed_at_once_is_removed(tmp_path):
    path_of(tmp_path, 0, "pixels").touch()
    recover(tmp_path, SETTINGS.digest)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fails", ["pixels", "names", "index", "sync"])
def test_an_error_of_the_disk_loses_nothing_that_was_kept(tmp_path, monkeypatch, fails):
    write_manifest(tmp_path, SETTINGS)
    write(tmp_path, range(3))
    writer = ShardWriter(tmp_path, SETTINGS.digest)
    writer.add(subject(3), pixels(3), None)
    real_write, real_sync = os.pwrite, os.fdatasync

    def refuse(fd, data, offset):
        if str(path_of(tmp_path, 0, fails)) == os.readlink(f"/proc/self/fd/{fd}"):
            real_write(fd, bytes(data)[:5], offset)
            raise OSError(28, "No space left on device")
        return real_write(fd, data, offset)

    def refuse_sync(fd):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("fulltilt.cache.writer.os.pwrite", refuse if fails != "sync" else real_write)
    monkeypatch.setattr("fulltilt.cache.writer.os.fdatasync", refuse_sync if fails == "sync" else real_sync)

    def add_and_close():
        writer.add(subject(4), pixels(4), None)
        writer.close()

    with pytest.raises(OSError, match=r"No space left|Input/output"):
        add_and_close()
    monkeypatch.undo()
    expected = [0, 1, 2] if fails in ("index", "sync") else [0, 1, 2, 3]
    assert served(tmp_path, 6) == expected
    assert writer.kept == len(expected) - 3
    writer.close()
    write(tmp_path, range(len(expected), 6))
    assert served(tmp_path, 6) == list(range(6))
