"""Real processes, signals, disks: however a build ends, nothing is lost that was kept and nothing wrong is served."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tests.cache.support import SMALL_SHARDS, assert_serves, make_images, make_masks, start

from fulltilt.cache import Cache, CacheSettings
from fulltilt.cache.build import build
from fulltilt.cache.manifest import LOCK, MANIFEST, clear
from fulltilt.cache.shard import path_of
from fulltilt.cache.verify import verify
from fulltilt.errors import CacheError


def contents(folder: Path) -> set[tuple[bytes, bytes, int, int, int]]:
    """What the cache holds, wherever it lies."""
    records = [record for _, _, record in Cache.open(folder).records()]
    assert None not in records
    return {(r.name, r.content, r.height, r.width, r.checksum) for r in records}


@pytest.mark.parametrize("whole_group", [False, True], ids=["builder", "builder-and-workers"])
def test_killed_at_any_moment_and_resumed(tmp_path, whole_group):
    images = make_images(tmp_path / "images", 150)
    masks = make_masks(tmp_path / "masks", images)
    build(tmp_path / "plain", images, masks, workers=2, shard_bytes=SMALL_SHARDS)
    chance = random.Random(whole_group)
    kept = []
    for _ in range(6):
        process = start(tmp_path / "c", images, masks, led=True)
        steps = chance.randrange(30)
        process.stdin.write("." * (steps + 5))  # so many at most, however fast it is
        process.stdin.flush()
        for _ in range(steps):
            process.stdout.readline()
        time.sleep(chance.uniform(0, 0.02))
        (os.killpg if whole_group else os.kill)(process.pid, signal.SIGKILL)
        process.communicate()
        kept.append(len(Cache.open(tmp_path / "c")) if (tmp_path / "c" / MANIFEST).exists() else 0)
    report = build(tmp_path / "c", images, masks, workers=2, shard_bytes=SMALL_SHARDS)
    assert kept == sorted(kept)
    assert any(0 < count < len(images) for count in kept), kept
    assert report.present >= kept[-1]
    assert report.failures == ()
    assert_serves(tmp_path / "c", images, masks)
    assert contents(tmp_path / "c") == contents(tmp_path / "plain")
    assert verify(tmp_path / "c").damage == ()


def test_two_builders_at_once(images, tmp_path):
    first = start(tmp_path / "c", images)
    while not (tmp_path / "c" / LOCK).exists() and first.poll() is None:
        time.sleep(0.001)
    second = start(tmp_path / "c", images)
    outputs = [process.communicate(timeout=60) for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], outputs
    assert sum("waiting for it to end" in out for out, _ in outputs) <= 1
    assert sum(int(out.split("made ")[1].split()[0]) for out, _ in outputs) == len(images)
    assert len(Cache.open(tmp_path / "c")) == len(images)
    assert_serves(tmp_path / "c", images)


def test_the_second_builder_says_that_it_waits(images, tmp_path):
    first = start(tmp_path / "c", images)
    first.stdout.readline()
    os.kill(first.pid, signal.SIGSTOP)
    try:
        second = start(tmp_path / "c", images)
        line = second.stdout.readline()
        assert f"another build (process {first.pid}) is at work" in line
        with pytest.raises(CacheError, match=f"process {first.pid}"):
            clear(tmp_path / "c")
    finally:
        os.kill(first.pid, signal.SIGCONT)
    for process in (first, second):
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert_serves(tmp_path / "c", images)


def test_cleared_while_a_builder_waits(images, tmp_path):
    first = start(tmp_path / "c", images[:20])
    first.stdout.readline()
    os.kill(first.pid, signal.SIGSTOP)
    second = start(tmp_path / "c", images[:20])
    second.stdout.readline()  # it waits
    for worker in psutil.Process(first.pid).children(recursive=True):
        worker.kill()  # one that outlived its builder would finish its sample, into the folder that is there again
    shutil.rmtree(tmp_path / "c")
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    out, err = second.communicate(timeout=60)
    assert second.returncode == 0, err
    assert "made 20" in out
    assert_serves(tmp_path / "c", images[:20])


def test_a_killed_worker_is_replaced(images, tmp_path):
    workers, killed = [], []

    def kill_one(progress):
        if len(workers) < 2:  # the second may start later
            children = subprocess.run(
                ["ps", "-o", "pid=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=True
            )
            workers[:] = [int(pid) for pid in children.stdout.split() if is_worker(int(pid))]
        if len(workers) == 2 and len(killed) < 2 and progress.done >= (5, 20)[len(killed)]:
            # Not the one that took the first one's place: it has the same sample, which is given up after two deaths.
            killed.append(workers[len(killed)])
            os.kill(killed[-1], signal.SIGKILL)

    report = build(tmp_path / "c", images, workers=2, shard_bytes=SMALL_SHARDS, progress=kill_one)
    assert len(killed) == 2
    assert (report.made + report.known, report.failures) == (len(images), ())
    assert_serves(tmp_path / "c", images)


def is_worker(pid: int) -> bool:
    try:
        return b"fulltilt.cache.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_no_process_is_left_when_the_builder_is_killed(images, tmp_path):
    process = start(tmp_path / "c", images)
    process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    until = time.monotonic() + 10
    while any(is_worker(int(p.name)) and str(tmp_path).encode() in (p / "cmdline").read_bytes() for p in _processes()):
        assert time.monotonic() < until
        time.sleep(0.02)


def test_ctrl_c_while_workers_begin_is_the_builders_alone(images, tmp_path, monkeypatch, capfd):
    hears = "import os, signal, sys\nif 'fulltilt.cache.worker' in sys.orig_argv: os.kill(os.getpid(), signal.SIGINT)\n"
    (tmp_path / "sitecustomize.py").write_text(hears)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    report = build(tmp_path / "c", images[:20], workers=2)
    assert (report.made, report.failures) == (20, ())
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("files", "some"), [(6, False), (12, True)])
def test_processes_that_can_not_be_started(images, tmp_path, files, some):
    """Some: they do the work of the others. None: what there may be a limit on is said."""
    had = {int(number) for number in os.listdir("/proc/self/fd")}
    free = [number for number in range(max(had) + 20) if number not in had]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    seen, made, told = [], 0, ""
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[files], hard))
    try:
        report = build(
            tmp_path / "c", images[:20], workers=16, progress=lambda _: seen.append(psutil.Process().children())
        )
        made = report.made
    except CacheError as error:
        told = str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert made == 20 * some
    assert not some or 1 <= len(seen[0]) < 16
    assert ("no worker process can be started (Too many open files): is there a limit" in told) != some
    assert {int(number) for number in os.listdir("/proc/self/fd")} == had


def _processes() -> list[Path]:
    return [path for path in Path("/proc").iterdir() if path.name.isdigit()]


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 8 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"mounting a small disk needs root: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_disk_that_fills_up(images, small_disk):
    """Room is there at the start; then somebody else takes it."""
    folder, ballast = small_disk / "c", small_disk / "ballast"
    some = images[:25]

    def fill(progress):
        if not ballast.exists():
            with ballast.open("wb", buffering=0) as file:
                file.write(bytes(3 << 20))

    with pytest.raises(
        CacheError, match=r"No space left on device.*Make room for about .*B, then run the same"
    ) as told:
        build(folder, some, workers=2, shard_bytes=SMALL_SHARDS, progress=fill)
    cache = Cache.open(folder)
    served = [path for path in some if cache.find(cache.key(path)) is not None]
    assert 5 < len(served) < len(some)
    assert f"{len(served)} of 25 samples were added and stay" in str(told.value)
    assert_serves(folder, served)
    assert verify(folder).damage == ()
    ballast.unlink()
    report = build(folder, some, workers=2, shard_bytes=SMALL_SHARDS)
    assert report.present == len(served)
    assert report.made == len(some) - len(served)
    assert_serves(folder, some)


def test_too_large_for_the_disk_is_said_before_anything_is_written(images, small_disk):
    with pytest.raises(
        CacheError, match=r"need about 14(\.\d)? MB; the disk of .* has 8\.4 MB free.*nothing was written"
    ):
        build(small_disk / "c", images, workers=1)
    assert list(small_disk.iterdir()) == []


def test_a_limit_on_file_sizes_is_like_a_full_disk(images, tmp_path):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL_SHARDS, resource.RLIM_INFINITY))

    command = [sys.executable, "-m", "fulltilt", "cache", "build", str(Path(images[0]).parent), str(tmp_path / "c")]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit, check=False)
    assert done.returncode == 2
    assert "can't be written to any more (File too large)" in done.stderr
    assert "Traceback" not in done.stderr
    report = build(tmp_path / "c", images, workers=2)
    assert 0 < report.present < len(images)
    assert_serves(tmp_path / "c", images)


def test_a_flipped_byte_is_found_named_and_dropped(images, tmp_path):
    build(tmp_path / "c", images[:20], workers=2, shard_bytes=SMALL_SHARDS)
    cache = Cache.open(tmp_path / "c")
    entry = cache.find(cache.key(images[7]))
    shard = path_of(tmp_path / "c", entry.shard, "pixels")
    flip(shard, entry.offset + 12345)

    cache = Cache.open(tmp_path / "c")
    with pytest.raises(CacheError, match=f"{shard.name} is damaged at byte {entry.offset:,}"):
        cache.pixels(entry, check=True)
    report = verify(tmp_path / "c")
    assert [damage.path for damage in report.damage] == [images[7]]
    assert f"shard {entry.shard}" in report.damage[0].what
    assert report.sources["same"] == 20

    assert verify(tmp_path / "c", drop=True).dropped == 1
    assert verify(tmp_path / "c").damage == ()
    assert build(tmp_path / "c", images[:20], workers=1).made == 1
    assert_serves(tmp_path / "c", images[:20])


def test_a_flipped_byte_in_an_index_is_never_served(images, tmp_path):
    build(tmp_path / "c", images[:10], workers=1)
    index = path_of(tmp_path / "c", 0, "index")
    size = index.stat().st_size
    for at in random.Random(0).sample(range(64, size), 40):
        flip(index, at)
        cache = Cache.open(tmp_path / "c")
        served = [path for path in images[:10] if cache.find(cache.key(path)) is not None]
        for path in served:
            assert_serves(tmp_path / "c", [path])
        damage = verify(tmp_path / "c", sources=False).damage
        assert len(served) == 10 - len(damage)
        assert len(damage) <= 1
        flip(index, at)
    assert verify(tmp_path / "c").damage == ()


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 16]))


def test_a_shard_cut_short_is_found_and_made_again(images, tmp_path):
    build(tmp_path / "c", images[:20], workers=1, shard_bytes=SMALL_SHARDS)
    before = Cache.open(tmp_path / "c")
    entries = {path: before.find(before.key(path)) for path in images[:20]}
    victim = path_of(tmp_path / "c", entries[images[3]].shard, "pixels")
    os.truncate(victim, entries[images[3]].offset + 100)

    cache = Cache.open(tmp_path / "c")
    lost = [path for path, entry in entries.items() if cache.find(cache.key(path)) is None]
    assert images[3] in lost
    with pytest.raises(CacheError, match=f"{victim.name} is cut short"):
        cache.pixels(entries[images[3]])
    assert {damage.path for damage in verify(tmp_path / "c").damage} == set(lost)
    assert build(tmp_path / "c", images[:20], workers=1, shard_bytes=SMALL_SHARDS).made == len(lost)
    assert_serves(tmp_path / "c", images[:20])


@pytest.mark.parametrize("kind", ["pixels", "index", "names"])
def test_a_shards_file_that_is_gone(images, tmp_path, kind):
    build(tmp_path / "c", images[:20], workers=1, shard_bytes=SMALL_SHARDS)
    path_of(tmp_path / "c", 2, kind).unlink()
    cache = Cache.open(tmp_path / "c")
    lost = [path for path in images[:20] if cache.find(cache.key(path)) is None]
    assert len(lost) == (0 if kind == "names" else 4)
    if kind != "names":
        assert verify(tmp_path / "c").damage
    verify(tmp_path / "c", drop=True)
    assert build(tmp_path / "c", images[:20], workers=1, shard_bytes=SMALL_SHARDS).made == len(lost)
    assert_serves(tmp_path / "c", images[:20])


def test_damaged_sources_are_left_out_and_listed(images, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(Path(images[0]).parent, source)
    paths = [str(source / Path(path).name) for path in images]
    Path(paths[2]).write_bytes(b"")
    Path(paths[5]).write_bytes(Path(paths[5]).read_bytes()[:900])
    Path(paths[9]).write_text("not an image at all")
    os.unlink(paths[11])
    report = build(tmp_path / "c", paths, workers=2)
    assert [failure.path for failure in report.failures] == [paths[i] for i in (2, 5, 9, 11)]
    for failure, words in zip(report.failures, ("empty", "truncated", "not an image", "No such file"), strict=True):
        assert words in failure.error
    good = [path for i, path in enumerate(paths) if i not in (2, 5, 9, 11)]
    assert report.made == len(good)
    assert_serves(tmp_path / "c", good)


def test_that_a_mask_is_damaged_is_said(images, tmp_path):
    masks = [tmp_path / f"{number}.png" for number in range(3)]
    masks[0].write_text("not a mask at all")
    masks[1].write_bytes(Path(images[1]).read_bytes())
    report = build(tmp_path / "c", images[:3], [str(mask) for mask in masks], workers=1)
    words = ("its mask: not an image", "its mask: a mask", f"No such file or directory: '{masks[2]}'")
    assert [failure.path for failure in report.failures] == images[:3]
    for failure, said in zip(report.failures, words, strict=True):
        assert said in failure.error


def test_files_that_go_or_change_during_the_build(tmp_path):
    paths = make_images(tmp_path / "images", 40)
    other = Path(make_images(tmp_path / "other", 1, seed=9)[0]).read_bytes()

    def meddle(progress):
        if progress.done == 3 and Path(paths[30]).exists():
            os.unlink(paths[30])
            Path(paths[35]).write_bytes(other)

    report = build(tmp_path / "c", paths, workers=1, progress=meddle)
    assert [(failure.path, failure.error) for failure in report.failures] == [(paths[30], "No such file or directory")]
    assert_serves(tmp_path / "c", [path for path in paths if path != paths[30]])


def test_a_file_that_changes_all_the_time_is_left_out(tmp_path, monkeypatch):
    # A machine that is taken away for a tick makes any file look settled: here a tick is a second, for workers, too.
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("from fulltilt.cache import keys\nkeys._TICK_NS = 10**9\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")]))
    paths = make_images(tmp_path / "images", 2)
    code = "import sys, os\nos.write(1, b'.')\nwhile True: os.utime(sys.argv[1])"
    # Several, and all of them at it: one alone may wait for a core longer than a file needs to look settled.
    command = [sys.executable, "-c", code, paths[0]]
    restless = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(4)]
    try:
        for one in restless:
            assert one.stdout.read(1) == b"."
        report = build(tmp_path / "c", paths, workers=1, settings=CacheSettings(size=50))
    finally:
        for one in restless:
            one.kill()
            one.communicate()
    assert [failure.path for failure in report.failures] == [paths[0]]
    assert "is it still being written" in report.failures[0].error


def test_a_mask_of_another_size_is_named(images, masks, tmp_path):
    from PIL import Image

    Image.new("L", (5, 5)).save(tmp_path / "small.png")
    report = build(tmp_path / "c", images[:2], [masks[0], str(tmp_path / "small.png")], workers=1)
    assert report.made == 1
    assert "5×5" in report.failures[0].error


def test_content_behind_an_unchanged_stamp_is_found_by_verify(images, tmp_path, monkeypatch):
    """Only a clock that was set back can do this; here the index is told so."""
    paths = make_images(tmp_path / "images", 3)
    build(tmp_path / "c", paths, workers=1)
    stamps = {path: os.stat(path) for path in paths}
    Path(paths[1]).write_bytes(Path(images[0]).read_bytes())
    real = os.fstat
    by_inode = {status.st_ino: status for status in stamps.values()}
    monkeypatch.setattr("fulltilt.cache.keys.stamp_of", lambda s: tuple(_stamp(by_inode.get(s.st_ino, s))))
    monkeypatch.setattr("fulltilt.cache.keys.os.fstat", real)
    report = verify(tmp_path / "c")
    assert [damage.path for damage in report.damage] == [paths[1]]
    assert "other content" in report.damage[0].what


def _stamp(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
