"""`cache="auto"`: what is decided from real measurements, and that samples stay what they are, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
import torch
from PIL import Image
from tests.feed.shared_memory import in_shared_memory
from tests.feed.slow.starving import starving_rates

from fulltilt.cache import Cache
from fulltilt.cache.manifest import MANIFEST, clear
from fulltilt.cache.policy import Keep
from fulltilt.errors import InputError, SampleError
from fulltilt.feed import ImageFiles, feed
from fulltilt.feed.images import caching
from fulltilt.feed.images.kept import Mode
from fulltilt.feed.images.stages import cache_rates
from fulltilt.machine.memory import read_memory

COUNT = 60
SLOW = str(Path(__file__).parents[1] / "slow")


@pytest.fixture
def photos(tmp_path) -> list[str]:
    random = np.random.default_rng(0)
    folder = tmp_path / "photos"
    folder.mkdir()
    paths = []
    for number in range(COUNT):
        coarse = Image.fromarray(random.integers(0, 256, (6, 8, 3), np.uint8))
        pixels = np.asarray(coarse.resize((20 + number % 5, 18 + number % 7), Image.Resampling.BICUBIC))
        paths.append(str(folder / f"{number:03d}.jpg"))
        Path(paths[-1]).write_bytes(simplejpeg.encode_jpeg(pixels, quality=90))
    time.sleep(0.06)  # what has just been written is not kept yet: it may be changed in the same tick
    return paths


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    for name, value in {"SETTLE_SECONDS": 0.01, "MEASURE_SECONDS": 0.03, "MEASURE_BATCHES": 4}.items():
        monkeypatch.setattr(f"fulltilt.feed.tuner.{name}", value)
    monkeypatch.setattr("fulltilt.feed.images.file_feed.ENOUGH_SAMPLES", 40)
    monkeypatch.setattr(caching, "_SCRATCH_BYTES", 1 << 22)
    monkeypatch.setenv("FULLTILT_CACHE_DIR", str(tmp_path / "caches"))
    monkeypatch.setenv("PYTHONPATH", SLOW)
    monkeypatch.setattr("fulltilt.feed.images.file_feed.cache_rates", starving_rates)


@pytest.fixture
def measured(monkeypatch):
    """What is decided follows from what happens.

    The sleeps of these tests are so much longer than the little that is computed that a busy machine changes nothing.
    """
    monkeypatch.setattr("fulltilt.feed.images.file_feed.cache_rates", cache_rates)


@pytest.fixture
def no_ram(monkeypatch):
    """No memory to keep anything in, so that the disk is all that is left."""
    monkeypatch.setattr(caching, "read_memory", lambda: replace(read_memory(), available_bytes=1000))


def options(**more):
    return {"batch_size": 8, "size": 16, "device": "cpu", "num_workers": 2, "shuffle": True, "cache": "auto"} | more


def epoch(it):
    return [batch for (batch,) in it]


def same(a, b):
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def until(it, happened, seconds=120.0):
    """Go through epochs until it happens; each as it would be without a cache."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, f"it did not happen: {it.cache_decision}"
        epoch(it)


@pytest.fixture
def plain(photos):
    """Epochs as they are without a cache."""
    it = feed(ImageFiles(photos), **options(cache=None))

    def of(number):
        it.set_epoch(number)
        return epoch(it)

    yield of
    it.close()


def test_pixels_are_kept_in_memory_and_are_the_same(photos, plain, measured, monkeypatch, caplog):
    monkeypatch.setenv("FULLTILT_TEST_SLOW_DECODE", "0.08")
    caplog.set_level("INFO", "fulltilt.feed")
    before = in_shared_memory(os.getpid())
    with feed(ImageFiles(photos), **options()) as it:
        assert it.cache_decision is None
        until(it, lambda: it.stats()["kept_samples"] == COUNT)
        assert it.cache_decision.value is Keep.RAM_DECODED
        assert it.cache_decision.reason in caplog.text
        assert in_shared_memory(os.getpid(), *it._reader.pool.pids) <= before
        copied = it.stats()
        for _ in range(2):
            number = it.state_dict()["epoch"]
            assert same(epoch(it), plain(number))
        now = it.stats()
        assert now["copy_samples_per_second"] > 0
        counts = it._reader.pool.counts
        assert counts.decode_samples == pytest.approx(counts.read_samples)
        assert counts.copy_samples >= COUNT
        assert copied["kept_bytes"] == now["kept_bytes"], "nothing is written twice"


def test_masks_are_kept_along(photos, tmp_path):
    masks = []
    for number, path in enumerate(photos):
        with Image.open(path) as image:
            labels = np.random.default_rng(number).integers(0, 9, (image.height, image.width), np.uint8)
        masks.append(str(tmp_path / f"{number:03d}.png"))
        Image.fromarray(labels).save(masks[-1])
    source = ImageFiles(photos, masks=masks)
    with feed(source, **options()) as it, feed(source, **options(cache=None)) as other:
        until_both = time.monotonic() + 120
        while it.stats()["kept_samples"] < COUNT:
            assert time.monotonic() < until_both
            list(it)
        other.set_epoch(it.state_dict()["epoch"])
        seen = 0
        for ours, theirs in zip(it, other, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
            seen += len(ours[0])
    assert seen == COUNT


def test_bytes_are_kept_where_files_come_slowly(photos, plain, measured, monkeypatch):
    monkeypatch.setenv("FULLTILT_TEST_SLOW_OPEN", "0.08")
    with feed(ImageFiles(photos), **options()) as it:
        end = time.monotonic() + 120
        while it.stats()["kept_samples"] < COUNT:
            assert time.monotonic() < end, it.cache_decision
            for _ in it:
                time.sleep(0.04)  # a step that decoding keeps up with, and reading does not
        assert it.cache_decision.value is Keep.RAM_ENCODED
        figures = it.stats()
        assert figures["bottleneck"] == "reading"
        assert figures["read_cold_share"] > 0.9
        assert 0.04 / 8 <= figures["step_seconds_per_sample"] < 0.08 / 2, "without the waiting for files"
        reads = it._reader.pool.counts.read_samples
        number = it.state_dict()["epoch"]
        assert same(epoch(it), plain(number))
        assert it._reader.pool.counts.read_samples == reads


def test_nothing_is_kept_where_training_does_not_wait(photos, measured):
    with feed(ImageFiles(photos), **options()) as it:
        end = time.monotonic() + 120
        while it.cache_decision is None:
            assert time.monotonic() < end
            for _ in it:
                time.sleep(0.15)
        assert it.cache_decision.value is Keep.NOTHING
        assert it.stats()["kept_samples"] == 0


def test_a_cache_on_disk_is_built_beside_training_and_used_when_complete(photos, plain, no_ram, caplog):
    caplog.set_level("INFO", "fulltilt.feed")
    with feed(ImageFiles(photos), **options()) as it:
        meanwhile = []
        while it._auto.mode is not Mode.DISK:
            assert not it._auto.settled, it.cache_decision
            meanwhile.append(epoch(it))
        assert all(same(batches, plain(number)) for number, batches in enumerate(meanwhile))
        assert it.cache_decision.value is Keep.DISK_DECODED
        folder = it._auto.folder
        assert "is complete" in caplog.text
        assert len(Cache.open(folder)) == COUNT
        epoch(it)  # begun before
        epoch(it)
        decoded = it._reader.pool.counts.decode_samples
        number = it.state_dict()["epoch"]
        assert same(epoch(it), plain(number))
        assert it._reader.pool.counts.decode_samples == decoded
    with feed(ImageFiles(photos), **options()) as again:
        assert again.cache_decision.value is Keep.DISK_DECODED, "it is found by the next run"
        assert same(epoch(again), plain(0))
        assert again._reader.pool.counts.decode_samples == 0


def test_another_folder_may_be_named(photos, no_ram, tmp_path):
    with feed(ImageFiles(photos), **options(cache_folder=tmp_path / "elsewhere")) as it:
        assert it._auto.folder.parent == tmp_path / "elsewhere"
    with pytest.raises(InputError, match="goes with cache='auto'"):
        feed(ImageFiles(photos), **options(cache=None, cache_folder=tmp_path))
    with pytest.raises(InputError, match="only ImageFiles"):
        feed(torch.zeros(4), batch_size=2, cache="auto")


@pytest.mark.parametrize("keep", [Keep.RAM_DECODED, Keep.DISK_DECODED])
def test_a_file_that_changes_is_given_out_as_it_is(photos, keep, request):
    if keep is Keep.DISK_DECODED:
        request.getfixturevalue("no_ram")
    with feed(ImageFiles(photos), **options(shuffle=False)) as it:
        until(it, lambda: it._auto.mode is Mode.DISK or it.stats()["kept_samples"] == COUNT)
        assert it.cache_decision.value is keep
        for value in (250, 10):
            Path(photos[7]).write_bytes(simplejpeg.encode_jpeg(np.full((18, 20, 3), value, np.uint8)))
            time.sleep(0.06)
            it.set_epoch(it.state_dict()["epoch"] + 1)  # what was prepared before the change is dropped
            for _ in range(2):
                assert float(torch.cat(epoch(it))[7].float().mean()) == pytest.approx(value, abs=1)


def test_decoders_killed_while_they_fill(photos, plain, caplog):
    with feed(ImageFiles(photos), **options(batch_size=4)) as it:
        until(it, lambda: it._auto.mode is Mode.DECODED)
        kills = 0
        end = time.monotonic() + 120
        while it.stats()["kept_samples"] < COUNT or kills < 4:
            assert time.monotonic() < end
            seen = []
            it.set_epoch(it.state_dict()["epoch"] + 1)
            number = it.state_dict()["epoch"]
            for place, (batch,) in enumerate(it):
                seen.append(batch)
                if place in (2, 9) and kills < 4:
                    os.kill(it._reader.pool.pids[place % 2], signal.SIGKILL)
                    kills += 1
            assert torch.equal(torch.cat(seen), torch.cat(plain(number)))
        number = it.state_dict()["epoch"]
        assert torch.equal(torch.cat(epoch(it)), torch.cat(plain(number)))
    assert "SIGKILL" in caplog.text


def test_what_does_not_fit_is_decoded_as_before(photos, plain, monkeypatch):
    room = 4096 + COUNT * 14 * 8 + 20 * 24 * 20 * 3
    memory = read_memory()  # once: other processes come and go, and with them what is available
    monkeypatch.setattr(caching, "read_memory", lambda: memory)
    monkeypatch.setattr(caching, "RAM_SHARE", room / memory.available_bytes)
    with feed(ImageFiles(photos), **options()) as it:
        until(it, lambda: it._auto.mode is Mode.DECODED)
        for _ in range(3):
            number = it.state_dict()["epoch"]
            assert same(epoch(it), plain(number))
        assert 5 < it.stats()["kept_samples"] < 40
        assert it.stats()["kept_bytes"] <= room


def test_a_resume_gives_exactly_the_rest(photos, plain):
    with feed(ImageFiles(photos), **options()) as first:
        until(first, lambda: first.stats()["kept_samples"] == COUNT)
        first.set_epoch(3)
        loop = iter(first)
        before = [next(loop)[0] for _ in range(3)]
        state = first.state_dict()
    with feed(ImageFiles(photos), **options()) as again:
        again.load_state_dict(state)
        assert same(before + epoch(again), plain(3))


def test_errors_are_told_as_without_a_cache(photos):
    with feed(ImageFiles(photos), **options(shuffle=False, on_error="skip")) as it:
        until(it, lambda: it.stats()["kept_samples"] == COUNT)
        Path(photos[5]).write_bytes(b"")
        os.remove(photos[6])
        it.set_epoch(it.state_dict()["epoch"] + 1)
        for _ in range(2):
            assert sum(map(len, epoch(it))) == COUNT - 2
            assert [Path(line.split(": ")[0]).name for line in it.skipped] == ["005.jpg", "006.jpg"]
    with feed(ImageFiles(photos), **options(shuffle=False)) as it, pytest.raises(SampleError, match=r"005\.jpg.*empty"):
        epoch(it)


def test_a_disk_that_can_not_be_written_is_told_and_training_goes_on(photos, plain, no_ram, monkeypatch, caplog):
    monkeypatch.setattr(caching, "DISK_SHARE", 0.0)  # the build has no budget, though the policy saw room
    with feed(ImageFiles(photos), **options()) as it:
        until(it, lambda: it._auto.settled)
        assert it._auto.mode is Mode.NOTHING
        number = it.state_dict()["epoch"]
        assert same(epoch(it), plain(number))
    assert "could not be built" in caplog.text
    assert "budget" in caplog.text


def test_a_build_that_is_killed_is_told_and_training_goes_on(photos, plain, no_ram, monkeypatch, caplog):
    monkeypatch.setenv("FULLTILT_TEST_SLOW_OPEN", "0.5")
    monkeypatch.setenv("FULLTILT_TEST_SLOW_MODULE", "fulltilt.cache.worker")
    with feed(ImageFiles(photos), **options()) as it:
        until(it, lambda: it._auto._builder is not None)
        os.kill(it._auto._builder.pid, signal.SIGKILL)
        until(it, lambda: it._auto.settled)
        number = it.state_dict()["epoch"]
        assert same(epoch(it), plain(number))
    assert "could not be built, files are decoded as before: its process ended with status -9" in caplog.text


def test_any_other_mistake_in_deciding_is_told_once_and_training_goes_on(photos, plain, monkeypatch, caplog):
    def divide(*_, **__):
        return 1 / 0

    monkeypatch.setattr(caching, "decide", divide)
    with feed(ImageFiles(photos), **options()) as it:
        until(it, lambda: it._auto.settled)
        number = it.state_dict()["epoch"]
        assert same(epoch(it), plain(number))
        assert it.cache_decision.value is Keep.NOTHING
        assert "division by zero" in it.cache_decision.reason
    (told,) = (record for record in caplog.records if "no cache" in record.message)
    assert "ZeroDivisionError" in told.message
    assert told.exc_info is not None, "a mistake is told with the place where it was made"


def test_any_other_mistake_in_building_ends_the_build(photos, plain, no_ram, monkeypatch, caplog):
    def nonsense(text):
        raise RecursionError("too deep")

    with feed(ImageFiles(photos), **options()) as it:
        with monkeypatch.context() as broken:
            broken.setattr(caching.json, "loads", nonsense)
            until(it, lambda: it._auto.settled)
        assert it._auto._builder.returncode is not None
        number = it.state_dict()["epoch"]
        assert same(epoch(it), plain(number))
    assert caplog.text.count("RecursionError") == 1 + 2, "one line, and the traceback's"


def test_a_cache_that_is_cleared_while_it_is_used(photos, plain, no_ram):
    with feed(ImageFiles(photos), **options()) as it:
        until(it, lambda: it._auto.mode is Mode.DISK)
        epoch(it)
        clear(it._auto.folder)
        for pid in it._reader.pool.pids:
            os.kill(pid, signal.SIGKILL)  # those that follow find no cache
        epoch(it)
        number = it.state_dict()["epoch"]
        assert same(epoch(it), plain(number))


SCRIPT = """
import sys, time
from dataclasses import replace
from fulltilt.feed import ImageFiles, feed, tuner
from fulltilt.feed.images import caching, file_feed
from fulltilt.machine.memory import read_memory
from starving import starving_rates
caching.read_memory = lambda: replace(read_memory(), available_bytes=1000)
file_feed.cache_rates = starving_rates
file_feed.ENOUGH_SAMPLES, tuner.SETTLE_SECONDS, tuner.MEASURE_SECONDS = 40, 0.01, 0.03
it = feed(ImageFiles(sys.argv[2:]), batch_size=4, size=16, device="cpu", num_workers=2, cache="auto")
while it._auto._builder is None:
    for _ in it: pass
print(it._auto._builder.pid, flush=True)
if sys.argv[1] == "exit": sys.exit(0)
time.sleep(60)
"""


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_a_build_ends_with_the_trainer(photos, end, monkeypatch, tmp_path):
    monkeypatch.setenv("FULLTILT_TEST_SLOW_OPEN", "0.5")
    monkeypatch.setenv("FULLTILT_TEST_SLOW_MODULE", "fulltilt.cache.worker")
    trainer = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, end, *photos], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    builder = int(trainer.stdout.readline())
    if end == "kill":
        deadline = time.monotonic() + 60
        while len(group_of(builder)) < 2:
            assert time.monotonic() < deadline, "the build has started no workers"
            time.sleep(0.05)
        trainer.kill()
    _, errors = trainer.communicate(timeout=60)
    deadline = time.monotonic() + 60
    while group_of(builder):
        assert time.monotonic() < deadline, "a process of the build is still there"
        time.sleep(0.05)
    made = sum(len(Cache.open(manifest.parent)) for manifest in tmp_path.glob(f"caches/*/{MANIFEST}"))
    assert made < COUNT, "the build went on without its trainer"
    assert "Traceback" not in errors


def group_of(pid: int) -> list[int]:
    """Living processes of a process group: the builder and its workers."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except OSError:
                continue
            if int(group) == pid and state != "Z":
                found.append(int(entry.name))
    return found
