"""The feed of image files: order, content, resume, errors, and decoders that die, with real processes."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from itertools import count, islice
from pathlib import Path

import numpy as np
import psutil
import pytest
import simplejpeg
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.feed.shared_memory import in_shared_memory
from tests.waiting import until

from fulltilt.augment import GPUAugmentation
from fulltilt.errors import InputError, SampleError, WorkerError
from fulltilt.feed import ImageFiles, feed
from fulltilt.machine.cores import Cores

COUNT = 37


def number_of(images) -> list[int]:
    """The numbers of the samples in a batch of uint8 images N×3×H×W."""
    return [round(float(value)) // 6 for value in images.float().mean((1, 2, 3))]


@pytest.fixture(scope="session")
def photos(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    paths = []
    for number in range(COUNT):
        height, width = random.integers(20, 50, 2)
        pixels = np.full((height, width, 3), number * 6, np.uint8)
        path = folder / f"{number:03d}.jpg"
        path.write_bytes(simplejpeg.encode_jpeg(pixels, quality=95))
        paths.append(str(path))
    return paths


@pytest.fixture
def own_photos(photos, tmp_path) -> list[str]:
    """A copy that a test may damage."""
    copies = []
    for path in photos:
        copy = tmp_path / Path(path).name
        copy.write_bytes(Path(path).read_bytes())
        copies.append(str(copy))
    return copies


def options(**more):
    return {"batch_size": 8, "size": 16, "device": "cpu", "num_workers": 2} | more


def numbers(batches) -> list[int]:
    return [number for images, *_ in batches for number in number_of(images)]


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batch_size=st.integers(1, COUNT + 3),
    workers=st.integers(1, 3),
    drop_last=st.booleans(),
    seed=st.integers(0, 5),
    cut=st.integers(1, COUNT),
)
def test_order_content_and_count_are_those_of_the_permutation(photos, batch_size, workers, drop_last, seed, cut):
    paths = photos[:cut]
    if drop_last and batch_size > cut:
        return
    wish = options(batch_size=batch_size, num_workers=workers, drop_last=drop_last, shuffle=True, seed=seed)
    with feed(ImageFiles(paths), **wish) as it:
        for epoch in range(2):
            batches = list(it)
            expected = it.order.permutation(epoch)
            kept = len(expected) // batch_size * batch_size if drop_last else len(expected)
            assert numbers(batches) == expected[:kept].tolist()
            assert len(batches) == len(it)
            assert all(len(images) == batch_size for (images,) in batches[:-1])


@pytest.mark.parametrize("done", [0, 1, 3, 4])
@pytest.mark.parametrize("batch_size", [8, 5])
def test_a_resume_gives_exactly_the_rest(photos, done, batch_size):
    with feed(ImageFiles(photos), **options(shuffle=True, seed=3)) as first:
        loop = iter(first)
        before = numbers(next(loop) for _ in range(done))
        state = first.state_dict()
    with feed(ImageFiles(photos), **options(shuffle=True, seed=3, batch_size=batch_size)) as again:
        again.load_state_dict(state)
        after = numbers(again)
        assert before + after == again.order.permutation(0).tolist()
        assert numbers(again) == again.order.permutation(1).tolist(), "and the next epoch is whole"


def test_a_state_of_another_source_is_refused(photos):
    with feed(ImageFiles(photos), **options()) as it:
        state = it.state_dict()
    with feed(ImageFiles(photos[:9]), **options()) as other, pytest.raises(InputError, match="length=9"):
        other.load_state_dict(state)


def test_a_loop_that_was_broken_off_is_followed_by_the_next_epoch(photos):
    with feed(ImageFiles(photos), **options(shuffle=True)) as it:
        next(iter(it))
        assert numbers(it) == it.order.permutation(1).tolist()
        it.set_epoch(0)
        assert numbers(it) == it.order.permutation(0).tolist()


def test_labels_and_masks_come_with_their_images(photos, tmp_path):
    from PIL import Image

    masks = []
    for number, path in enumerate(photos):
        with Image.open(path) as image:
            mask = Image.fromarray(np.full((image.height, image.width), number, np.uint8))
        masks.append(str(tmp_path / f"{number}.png"))
        mask.save(masks[-1])
    source = ImageFiles(photos, labels=list(range(100, 100 + COUNT)), masks=masks)
    with feed(source, **options(shuffle=True)) as it:
        seen = []
        for images, labels_at, numbers_at in it:
            assert labels_at.shape == (len(images), 16, 16)
            assert [int(mask.unique()) for mask in labels_at] == number_of(images)
            assert (numbers_at - 100).tolist() == number_of(images)
            seen += number_of(images)
    assert sorted(seen) == list(range(COUNT))


def test_that_a_mask_is_damaged_is_said(photos, tmp_path):
    damaged = tmp_path / "0.png"
    damaged.write_text("not a mask at all")
    with (
        feed(ImageFiles(photos[:1], masks=[damaged]), **options(batch_size=1)) as it,
        pytest.raises(SampleError, match=r"\.jpg: its mask: not an image"),
    ):
        next(iter(it))


def test_augmentation_is_drawn_by_sample_and_epoch_not_by_batch(photos):
    def run(batch_size):
        augment = GPUAugmentation(0.5, 30, 0.5, 0.5, size=16, dtype=torch.uint8, channels_last=True)
        with feed(ImageFiles(photos), **options(batch_size=batch_size, size=None, augment=augment)) as it:
            return [torch.cat([images for (images,) in it]) for _ in range(2)]

    first, second = run(8), run(5)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert not torch.equal(first[0], first[1])


def test_order_may_be_relaxed(photos):
    with feed(ImageFiles(photos), **options(in_order=False, batch_size=2)) as it:
        assert sorted(numbers(it)) == list(range(COUNT))


def test_an_epoch_out_of_order_is_whole_before_the_next_begins(photos):
    """A batch that takes long comes late, not in another epoch, and a place saved before it has come is before it."""
    with feed(ImageFiles(photos), **options(in_order=False, batch_size=4)) as it:
        finished, late = it._reader.finished, []
        it._reader.finished = lambda f: late.append(f) if f.step.start == 0 and f.step.epoch == 0 else finished(f)
        loop = iter(it)
        seen = numbers(next(loop) for _ in range(3))
        place = it.state_dict()
        for _ in range(6):
            seen += numbers([next(loop)])
        assert sorted(seen) == list(range(4, COUNT))
        finished(late[0])
        assert numbers(loop) == [0, 1, 2, 3]
        assert sorted(numbers(it)) == list(range(COUNT))
    assert (place["epoch"], place["position"]) == (0, 0)
    with feed(ImageFiles(photos), **options(batch_size=4)) as again:
        again.load_state_dict(place)
        assert numbers(again) == list(range(COUNT))


def damage(paths: list[str]) -> dict[str, str]:
    """Bad files, and what is to be said of each."""
    Path(paths[3]).write_bytes(b"")
    Path(paths[10]).write_text("this is no picture")
    Path(paths[17]).write_bytes(Path(paths[17]).read_bytes()[:200])
    os.remove(paths[30])
    return {paths[3]: "empty", paths[10]: "text", paths[17]: "truncated", paths[30]: "No such file"}


def test_a_bad_file_is_named_with_its_cause(own_photos):
    damage(own_photos)
    with feed(ImageFiles(own_photos), **options()) as it, pytest.raises(SampleError, match=r"003\.jpg.*empty.*skip"):
        list(it)


def test_bad_files_can_be_skipped_and_are_listed(own_photos, caplog):
    expected = damage(own_photos)
    with feed(ImageFiles(own_photos), **options(on_error="skip")) as it:
        for _ in range(2):
            assert numbers(it) == [n for n in range(COUNT) if own_photos[n] not in expected]
            assert len(it.skipped) == len(expected)
            for line in it.skipped:
                path, reason = line.split(": ", 1)
                assert expected[path].lower() in reason.lower()
                assert path not in reason, "named once"
        assert it.stats()["samples"] == 2 * (COUNT - len(expected))
        (images,) = next(iter(it))
        assert it.indices.tolist() == number_of(images) == [0, 1, 2, 4, 5, 6, 7], "what the batch holds"
    assert "4 samples skipped" in caplog.text


def test_a_file_deleted_in_the_middle_of_an_epoch_is_named(own_photos):
    with feed(ImageFiles(own_photos), **options(batch_size=2, prefetch=2)) as it:
        loop = iter(it)
        next(loop)
        os.remove(own_photos[-1])
        with pytest.raises(SampleError, match=r"036\.jpg.*No such file"):
            list(loop)


def test_images_larger_than_expected_make_the_slot_grow(own_photos):
    large = np.full((900, 1200, 3), 60, np.uint8)
    for number in (20, 21, 22):  # not among the headers that are probed for the expectation
        Path(own_photos[number]).write_bytes(simplejpeg.encode_jpeg(large))
    with feed(ImageFiles(own_photos[:1] * 200 + own_photos), **options(batch_size=16)) as it:
        room = it._reader.slots[0].capacity
        assert numbers(it)[200:][:20] == list(range(20))
        assert max(slot.capacity for slot in it._reader.slots) > room


def test_a_killed_decoder_is_named_and_nothing_is_lost(photos, caplog):
    with feed(ImageFiles(photos), **options(batch_size=2)) as it:
        seen = []
        for number, (images,) in enumerate(it):
            seen += number_of(images)
            if number in (1, 4):
                os.kill(it._reader.pool.pids[0], signal.SIGKILL)
                until(lambda: "SIGKILL" in caplog.text)
        assert seen == list(range(COUNT))
        assert numbers(it) == list(range(COUNT))
        assert len(it._reader.pool.pids) == 2, "the dead are replaced"


def open_now() -> set[int]:
    return {int(number) for number in os.listdir("/proc/self/fd")}


@pytest.fixture
def files_of_a_feed(photos) -> int:
    """That one with a decoder has open."""
    before = len(open_now())
    with feed(ImageFiles(photos), **options(num_workers=1)):
        return len(open_now()) - before


@contextlib.contextmanager
def at_most_open(more: int):
    """So many more than there are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    had = open_now()
    free = (number for number in count() if number not in had)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(islice(free, more, None)), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_fewer_decoders_go_on_where_no_more_can_be_started(photos, caplog, files_of_a_feed):
    with at_most_open(files_of_a_feed + 3), feed(ImageFiles(photos), **options(num_workers=8)) as it:
        assert 1 <= len(it._reader.pool.pids) < 8
        assert numbers(it) == list(range(COUNT))
    assert "a decoder process can't be started (Too many open files): is there a limit" in caplog.text


def test_where_no_decoder_can_be_started_nothing_is_left(photos, files_of_a_feed):
    before, children = open_now(), psutil.Process().children()
    # The decoder's own one would be enough; to start it takes more.
    with pytest.raises(WorkerError, match="can't be started"), at_most_open(files_of_a_feed):
        feed(ImageFiles(photos), **options(num_workers=8))
    assert open_now() == before
    assert psutil.Process().children() == children


def test_a_decoder_that_is_stopped_is_told_of(photos, caplog, monkeypatch):
    with feed(ImageFiles(photos), **options(num_workers=1, prefetch=1)) as it:
        loop = iter(it)
        next(loop)
        monkeypatch.setattr("fulltilt.feed.waiting.FIRST_SECONDS", 0.2)
        (decoder,) = it._reader.pool.pids
        os.kill(decoder, signal.SIGSTOP)
        waiter = threading.Thread(target=numbers, args=(loop,))
        waiter.start()
        until(lambda: "no batch has come" in caplog.text)
        os.kill(decoder, signal.SIGCONT)
        waiter.join()
    assert f"no batch has come for 0.2 s; waiting for process {decoder} (stopped: kill -CONT {decoder}" in caplog.text


def test_a_file_that_kills_its_decoder_is_given_up(own_photos, monkeypatch):
    # A decoder that dies as a broken native library would: through an environment that only it obeys.
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "killer"))
    monkeypatch.setenv("FULLTILT_TEST_KILLER", own_photos[5])
    with feed(ImageFiles(own_photos), **options(on_error="skip")) as it:
        assert numbers(it) == [n for n in range(COUNT) if n != 5]
        assert len(it.skipped) == 1
        assert "ended its process 2 times (signal SIGKILL)" in it.skipped[0]


def test_a_task_wakes_one_decoder(photos):
    def wakes(pids) -> int:
        lines = [line for pid in pids for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
        return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))

    with feed(ImageFiles(photos), **options(batch_size=1, num_workers=8)) as it:
        numbers(it)  # all of them have started
        pids = it._reader.pool.pids
        before = wakes(pids)
        for _ in it:
            time.sleep(0.02)  # the next file is read meanwhile, and all are waiting again
        assert wakes(pids) - before < 4 * COUNT


def test_the_number_of_decoders_changes_while_running(photos):
    with feed(ImageFiles(photos), **options(batch_size=3, num_workers=3)) as it:
        loop = iter(it)
        seen = numbers(next(loop) for _ in range(3))
        it.resize(1)
        seen += numbers(loop)
        assert seen == list(range(COUNT))
        until(lambda: len(it._reader.pool.pids) == 1)
        it.resize(3)
        assert numbers(it) == list(range(COUNT))
        assert len(it._reader.pool.pids) == 3


def test_the_number_of_decoders_is_the_last_one_asked_for(photos):
    with feed(ImageFiles(photos), **options(num_workers=4)) as it:
        for _ in range(3):
            it.resize(1)  # before those that are to leave have heard of it
        assert numbers(it) == list(range(COUNT))
        until(lambda: len(it._reader.pool.pids) == 1)
        it.resize(4)
        it.resize(2)
        it.resize(4)
        assert numbers(it) == list(range(COUNT))
        until(lambda: len(it._reader.pool.pids) == 4 and it._reader.pool._leaving == 0)
    with pytest.raises(InputError, match="this feed is closed"):
        it.resize(2)


def test_slots_are_given_back_when_a_batch_can_not_be_augmented(photos):
    with feed(ImageFiles(photos), **options(prefetch=2)) as it:
        augment = it._stage._augment

        def fails(*_, **__):
            raise torch.OutOfMemoryError("no memory left")

        fails.set_epoch = augment.set_epoch
        it._stage._augment = fails
        for _ in range(3):
            with pytest.raises(torch.OutOfMemoryError):
                list(it)
        it._stage._augment = augment
        assert numbers(it) == list(range(COUNT))


def test_a_batch_size_beyond_the_samples_takes_no_more_memory_than_they_do(photos):
    with feed(ImageFiles(photos), **options(batch_size=10**9)) as it:
        assert numbers(it) == list(range(COUNT))
        assert it._reader.slots[0].samples == COUNT


def test_a_feed_that_can_not_be_made_leaves_nothing_open(photos, monkeypatch):
    monkeypatch.setattr("fulltilt.feed.images.reader._SPARE", 1e12)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(InputError, match="lower batch_size"):
        feed(ImageFiles(photos), **options())
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_number_of_decoders_is_found_by_trying(photos, monkeypatch):
    for name, value in {"SETTLE_SECONDS": 0.02, "MEASURE_SECONDS": 0.1, "MEASURE_BATCHES": 4}.items():
        monkeypatch.setattr(f"fulltilt.feed.tuner.{name}", value)
    four = Cores(count=4, usable=4, bound_by="count", reason="so it is")
    monkeypatch.setattr("fulltilt.feed.build.read_cores", lambda: four)
    with feed(ImageFiles(photos), **options(num_workers="auto", batch_size=4)) as it:
        assert it._reader.pool.wanted == 3
        end = time.monotonic() + 60
        while it.decision is None and time.monotonic() < end:
            assert numbers(it) == list(range(COUNT)), "nothing is lost while numbers change"
            time.sleep(0.01)
        assert it.decision is not None
        assert it._reader.pool.wanted == it.decision.value
        assert "tried 3:" in it.decision.reason
        chosen = it.decision
        for wrong in (0, 17):
            with pytest.raises(InputError, match=rf"resize\({wrong}\): this feed can have 1 to 16 decoders"):
                it.resize(wrong)
        assert (it.decision, it._reader.pool.wanted) == (chosen, chosen.value), "what was found stays"
        it.resize(2)
        assert it.decision is None
        assert it._reader.pool.wanted == 2


@pytest.mark.parametrize("size", [None, 18])
def test_a_cache_gives_the_same_samples_without_their_files_being_decoded(own_photos, tmp_path, size):
    def build():
        command = [
            "cache",
            "build",
            str(Path(own_photos[0]).parent),
            str(tmp_path / "kept"),
            *(["--size", str(size)] if size else []),
        ]
        subprocess.run([sys.executable, "-m", "fulltilt", *command], check=True, capture_output=True)

    with feed(ImageFiles(own_photos), **options()) as it:
        plain = torch.cat([images for (images,) in it]).float()
    command = ["cache", "build", str(Path(own_photos[0]).parent), str(tmp_path / "kept")]
    command += ["--size", str(size)] if size else []
    subprocess.run([sys.executable, "-m", "fulltilt", *command], check=True, capture_output=True)
    changed = own_photos[4]
    Path(changed).write_bytes(simplejpeg.encode_jpeg(np.full((40, 30, 3), 240, np.uint8)))
    with feed(ImageFiles(own_photos), **options(cache=tmp_path / "kept")) as it:
        kept = torch.cat([images for (images,) in it]).float()
    assert float(kept[4].mean()) == pytest.approx(240, abs=1), "a file that has changed is not served from the cache"
    same = [n for n in range(COUNT) if n != 4]
    assert (kept[same] - plain[same]).abs().max() <= (0 if size is None else 2)
    with pytest.raises(InputError, match="quality='exact'"):
        feed(ImageFiles(own_photos), **options(cache=tmp_path / "kept", quality="fast"))


def test_figures_say_who_is_slowest(photos):
    with feed(ImageFiles(photos), **options()) as it:
        list(it)
        figures = it.stats()
        assert figures["samples"] == COUNT
        assert figures["samples_per_second"] > 0
        assert 0.0 <= figures["decoder_busy_share"] <= 1.0
        assert figures["workers"] == 2
        for stage in ("read", "decode"):
            each, all_of_them = figures[f"{stage}_seconds_per_sample"], figures[f"{stage}_samples_per_second"]
            assert all_of_them == pytest.approx(2 / each)
        assert 0 < figures["step_seconds_per_sample"] < 1
        assert figures["read_bytes_per_sample"] == pytest.approx(np.mean([os.path.getsize(p) for p in photos]), rel=0.1)
        assert figures["bottleneck"] in ("step", "decoding", "reading")
    assert it.stats()["samples"] == COUNT, "also when it is closed"


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"


SCRIPT = """
import sys
from fulltilt.feed import ImageFiles, feed
it = feed(ImageFiles(sys.argv[2:]), batch_size=4, size=16, device="cpu", num_workers=2)
loop = iter(it)
next(loop)
print(*it._reader.pool.pids, flush=True)
input()
if sys.argv[1] == "raise": raise RuntimeError("something else went wrong")
"""


@pytest.mark.parametrize("end", ["exit", "raise", "kill", "interrupt"])
def test_nothing_is_left_however_the_trainer_ends(photos, end):
    trainer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), end, *photos],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    pids = [int(pid) for pid in trainer.stdout.readline().split()]
    assert len(pids) == 2
    shared = in_shared_memory(trainer.pid, *pids)
    if end == "kill":
        trainer.kill()
    if end == "interrupt":
        os.killpg(trainer.pid, signal.SIGINT)  # as a terminal does: to every process in the foreground
    if end in ("kill", "interrupt"):
        trainer.wait(60)  # before its standard input ends, which would be an error of its own
    _, errors = trainer.communicate("go on\n" if end in ("exit", "raise") else None, timeout=60)
    until(lambda: not any(alive(pid) for pid in pids))
    assert not [name for name in shared if os.path.exists(name)]
    expected = {"exit": None, "kill": None, "raise": "something else", "interrupt": "KeyboardInterrupt"}[end]
    assert expected is None or expected in errors
    assert errors.count("Traceback") == (0 if expected is None else 1), errors


def test_decoders_import_nothing_from_where_the_trainer_was_started(photos, tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise RuntimeError('not meant')")
    monkeypatch.chdir(tmp_path)
    with feed(ImageFiles(photos), **options(num_workers=1)) as it:
        assert numbers(it) == list(range(COUNT))


def test_decoders_load_no_torch():
    code = "import sys, fulltilt.feed.images.decoder; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"size": None}, "output size"),
        ({"on_error": "ignore"}, "on_error='ignore'"),
        ({"quality": "best"}, "quality='best'"),
        ({"num_workers": 0}, "num_workers=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"device_prefetch": -1}, "device_prefetch=-1"),
        ({"device_prefetch": "1"}, "device_prefetch='1' must be a whole number"),
        ({"device": "gpu"}, "device='gpu' is unknown; allowed: 'auto', 'cpu'"),
        ({"channels": 2}, "channels=2 must be 1 or 3 or 4"),
        ({"cache": True}, "cache=True must be 'auto' or the folder of a cache"),
        ({"collate": list}, "collate: image files are decoded by processes"),
        ({"worker_kind": "threads"}, "worker_kind: image files are decoded by processes"),
    ],
)
def test_wishes_that_can_not_be_met_are_named(photos, wish, message):
    with pytest.raises(InputError, match=message):
        feed(ImageFiles(photos), **options(**wish))


def test_a_closed_feed_says_so(photos):
    it = feed(ImageFiles(photos), **options())
    it.close()
    it.close()
    with pytest.raises(InputError, match="closed"):
        next(iter(it))


def test_decoders_killed_at_any_moment_take_no_task_with_them(photos):
    """Also between taking a task and noting it: what is neither in the pipe nor on a desk is sent again."""
    with feed(ImageFiles(photos), **options(batch_size=4, shuffle=True, on_error="skip")) as it:
        for _ in range(25):
            seen = 0
            for place, (images,) in enumerate(it):
                seen += len(images)
                if place in (2, 6) and (pids := it._reader.pool.pids):
                    os.kill(pids[place % len(pids)], signal.SIGKILL)
            assert seen + len(it.skipped) == COUNT
