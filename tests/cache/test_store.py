"""What is served is what the files give; what has changed is not served."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.cache.support import SMALL_SHARDS, assert_serves, make_images, make_masks

from fulltilt.cache import Cache, CacheSettings
from fulltilt.cache.build import build
from fulltilt.cache.keys import read_steadily, stamp_of
from fulltilt.cache.verify import verify
from fulltilt.errors import CacheError, InputError


@pytest.fixture
def mine(tmp_path):
    """Three images that the test may change."""
    return make_images(tmp_path / "images", 3)


@pytest.mark.parametrize(
    "settings",
    [
        CacheSettings(),
        CacheSettings(size=96),
        CacheSettings(size=96, quality="fast", channels=1),
        CacheSettings(size=1000, channels=4),
    ],
    ids=lambda s: f"{s.size}-{s.channels}-{s.quality}",
)
def test_pixels_and_masks_are_what_decoding_gives(images, masks, tmp_path, settings):
    report = build(tmp_path / "c", images[:9], masks[:9], settings=settings, workers=2, shard_bytes=SMALL_SHARDS)
    assert (report.made, report.failures) == (9, ())
    assert_serves(tmp_path / "c", images[:9], masks[:9])


def test_resizing_goes_to_the_shorter_side_and_keeps_labels(images, masks, tmp_path):
    build(tmp_path / "c", images[:4], masks[:4], settings=CacheSettings(size=60), workers=1)
    cache = Cache.open(tmp_path / "c")
    for image, mask in zip(images[:4], masks[:4], strict=True):
        entry = cache.find(cache.key(image, mask))
        with Image.open(image) as whole:
            assert (entry.height, entry.width) == (60, round(whole.width * 60 / whole.height))
            small = np.asarray(whole.resize((entry.width, entry.height), Image.Resampling.BILINEAR), np.float32)
        assert np.abs(cache.pixels(entry) - small).mean() < 3
        with Image.open(mask) as labels:
            nearest = np.asarray(labels.resize((entry.width, entry.height), Image.Resampling.NEAREST))
        assert np.mean(cache.mask(entry) == nearest) > 0.99


def test_images_lie_on_cache_lines_and_are_views(images, masks, tmp_path):
    build(tmp_path / "c", images[:5], masks[:5], workers=1)
    cache = Cache.open(tmp_path / "c")
    for image, mask in zip(images[:5], masks[:5], strict=True):
        entry = cache.find(cache.key(image, mask))
        assert entry.offset % 64 == 0
        assert entry.mask_offset % 64 == 0
        for view in (cache.pixels(entry), cache.mask(entry)):
            assert view.ctypes.data % 64 == 0
            assert not view.flags.owndata
            assert not view.flags.writeable


def test_a_shard_is_no_larger_than_asked(images, tmp_path):
    build(tmp_path / "c", images, workers=2, shard_bytes=SMALL_SHARDS)
    sizes = [path.stat().st_size for path in (tmp_path / "c").glob("*.pixels")]
    assert len(sizes) > 5
    assert max(sizes) <= SMALL_SHARDS
    assert_serves(tmp_path / "c", images)


def test_an_image_larger_than_a_shard_has_one_of_its_own(images, tmp_path):
    build(tmp_path / "c", images[:4], workers=1, shard_bytes=1000)
    assert len(list((tmp_path / "c").glob("*.pixels"))) == 4
    assert_serves(tmp_path / "c", images[:4])


def test_more_shards_than_open_files(images, tmp_path):
    build(tmp_path / "c", images, workers=1, shard_bytes=1000)
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))\n"
        "from fulltilt.cache import Cache\n"
        "cache = Cache.open(sys.argv[1])\n"
        "print(sum(int(cache.pixels(cache.find(cache.key(path)), check=True)[0, 0, 0]) >= 0 for path in sys.argv[2:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "c", *images], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == len(images)


def test_the_reader_imports_no_torch():
    code = "import sys, fulltilt.cache, fulltilt.cache.worker; print({'torch', 'rich', 'pydantic'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def rewrite(path: str) -> None:
    """Other content of the same length and mtime, in the same inode: what a careless stamp would miss."""
    status, data = os.stat(path), bytearray(Path(path).read_bytes())
    data[-3] ^= 1
    with open(path, "r+b") as file:
        file.write(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    after = os.stat(path)
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (status.st_size, status.st_mtime_ns, status.st_ino)


def replace(path: str) -> None:
    """By another file of the same length and mtime, renamed over it."""
    status, data = os.stat(path), bytearray(Path(path).read_bytes())
    data[-3] ^= 1
    Path(path + ".new").write_bytes(data)
    os.utime(path + ".new", ns=(status.st_atime_ns, status.st_mtime_ns))
    os.rename(path + ".new", path)


@pytest.mark.parametrize("change", [rewrite, replace, lambda path: Path(path).write_bytes(b"x")])
@pytest.mark.parametrize("which", ["image", "mask"])
def test_a_changed_file_is_not_served(mine, tmp_path, change, which):
    masks = make_masks(tmp_path / "masks", mine)
    build(tmp_path / "c", mine, masks, workers=1)
    change(mine[0] if which == "image" else masks[0])
    cache = Cache.open(tmp_path / "c")
    assert cache.find(cache.key(mine[0], masks[0])) is None
    assert cache.find(cache.key(mine[1], masks[1])) is not None


def test_a_changed_file_is_made_again(mine, tmp_path):
    build(tmp_path / "c", mine, workers=1)
    shutil.copy(mine[1], mine[0])
    make_images(tmp_path / "images", 1, seed=5)
    report = build(tmp_path / "c", mine, workers=1)
    assert (report.present, report.made) == (2, 1)
    assert_serves(tmp_path / "c", mine)


def test_a_file_changed_right_after_it_was_read_bears_another_stamp(tmp_path):
    """Times move in ticks; without waiting one out, the second version could have the first one's."""
    path = tmp_path / "file"
    for _ in range(10):
        path.write_bytes(b"one")
        data, stamp = read_steadily(path)
        with path.open("r+b") as file:
            file.write(b"two")
        os.utime(path, ns=(stamp[1], stamp[1]))
        assert data == b"one"
        assert stamp_of(os.stat(path)) != stamp


def test_a_touched_or_moved_file_is_known_by_its_content(mine, tmp_path):
    build(tmp_path / "c", mine, workers=1)
    os.utime(mine[0])
    moved = mine[1] + ".moved.jpg"
    os.rename(mine[1], moved)
    cache = Cache.open(tmp_path / "c")
    assert cache.find(cache.key(mine[0])) is None
    assert cache.find(cache.key(moved)) is None
    report = build(tmp_path / "c", [mine[0], moved, mine[2]], workers=1)
    assert (report.present, report.known, report.made, report.bytes) == (1, 2, 0, 0)
    assert_serves(tmp_path / "c", [mine[0], moved, mine[2]])


def test_equal_files_are_kept_once(mine, tmp_path):
    shutil.copy(mine[0], mine[1])
    report = build(tmp_path / "c", [*mine, mine[2]], workers=1)
    assert (report.samples, report.made, report.known) == (3, 2, 1)
    assert_serves(tmp_path / "c", mine)


def test_the_same_image_with_and_without_a_mask_are_two_samples(images, masks, tmp_path):
    build(tmp_path / "c", images[:2], workers=1)
    cache = Cache.open(tmp_path / "c")
    assert cache.find(cache.key(images[0], masks[0])) is None
    build(tmp_path / "c", images[:2], masks[:2], workers=1)
    assert_serves(tmp_path / "c", images[:2])
    assert_serves(tmp_path / "c", images[:2], masks[:2])


OTHERS = [
    CacheSettings(size=64),
    CacheSettings(channels=1),
    CacheSettings(quality="fast"),
    CacheSettings(decode_version=2),
]


@pytest.mark.parametrize("other", OTHERS, ids=lambda s: str(s.to_json()))
def test_other_settings_are_never_served(images, tmp_path, other):
    build(tmp_path / "c", images[:2], workers=1)
    with pytest.raises(CacheError, match="instead of"):
        Cache.open(tmp_path / "c", other)
    with pytest.raises(CacheError, match="instead of"):
        build(tmp_path / "c", images[:2], settings=other, workers=1)
    cache = Cache(tmp_path / "c", other)  # even by force: shards say what they are
    assert cache.find(cache.key(images[0])) is None


def test_paths_are_absolute(images, tmp_path, monkeypatch):
    monkeypatch.chdir(Path(images[0]).parent)
    build(tmp_path / "c", [Path(images[0]).name], workers=1)
    monkeypatch.chdir(tmp_path)
    assert_serves(tmp_path / "c", images[:1])


def test_builders_import_nothing_from_where_the_command_was_given(images, tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise RuntimeError('not meant')")
    monkeypatch.chdir(tmp_path)
    assert build(tmp_path / "cache", images[:2], workers=1).made == 2


def test_names_that_are_no_text(images, tmp_path):
    odd = os.path.join(tmp_path, os.fsdecode(b"\xff\n\xe4 name.jpg"))
    shutil.copy(images[0], odd)
    assert build(tmp_path / "c", [odd], workers=1).made == 1
    assert_serves(tmp_path / "c", [odd])
    cache = Cache.open(tmp_path / "c")
    shard, _, record = next(cache.records())
    assert cache.paths(shard, record) == (odd, None)


def test_what_is_no_cache_is_said(tmp_path):
    with pytest.raises(CacheError, match="holds no cache"):
        Cache.open(tmp_path)
    (tmp_path / "manifest.json").write_text('{"name": "another program"}')
    with pytest.raises(CacheError, match="not the manifest of a fulltilt cache"):
        Cache.open(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": "fulltilt cache", "version": 9, "settings": {}}')
    with pytest.raises(CacheError, match="format 9"):
        Cache.open(tmp_path)


@pytest.mark.parametrize("kind", ["index", "pixels"])
def test_a_shard_that_can_not_be_opened_is_named_and_not_dropped(images, tmp_path, monkeypatch, kind):
    build(tmp_path / "cache", images, workers=1)
    opened = os.open

    def refuse(path, *rest, **more):  # the superuser, who may run this, is refused nothing
        if str(path).endswith(f".{kind}") and rest[0] & os.O_ACCMODE == os.O_RDONLY:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *rest, **more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        with pytest.raises(
            InputError, match=rf"shard-00000\.{kind} can't be opened \(Permission denied\): make it readable"
        ):
            verify(tmp_path / "cache", drop=True)
    assert_serves(tmp_path / "cache", images)


def test_a_folder_with_other_files_is_not_built_into(images, tmp_path):
    (tmp_path / "thesis.tex").write_text("my only copy")
    with pytest.raises(CacheError, match="holds other files"):
        build(tmp_path, images[:1], workers=1)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("wrong", [{"size": 0}, {"channels": 2}, {"quality": "best"}])
def test_wrong_settings_name_the_value(wrong):
    with pytest.raises(InputError, match=str(next(iter(wrong.values())))):
        CacheSettings(**wrong)
