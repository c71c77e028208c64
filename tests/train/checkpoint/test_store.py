"""A folder of checkpoints: kept, replaced, damaged, cut off, out of room."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import resource
import signal
import subprocess
import threading

import pytest
import torch

from fulltilt.errors import CheckpointError, FulltiltError, InputError
from fulltilt.train.checkpoint import Checkpoints, load_checkpoint
from fulltilt.train.checkpoint import store as store_module


def state(value: float, size: int = 1000):
    return {"model": {"weight": torch.full((size,), value)}, "step": int(value)}


def value_of(loaded) -> float:
    weights = loaded["model"]["weight"]
    assert (weights == weights[0]).all()
    assert loaded["step"] == int(weights[0])
    return float(weights[0])


def partials(folder):
    return sorted(folder.glob(".*"))


def test_saved_and_loaded(tmp_path):
    with Checkpoints(tmp_path / "a" / "b") as checkpoints:
        assert checkpoints.latest() is None
        assert checkpoints.best() is None
        checkpoints.save(state(1), step=100, epoch=1)
        checkpoints.wait()
        assert checkpoints.latest() == tmp_path / "a" / "b" / "checkpoint-000001-step-100.safetensors"
        assert checkpoints.best() is None
        assert value_of(checkpoints.load()) == value_of(load_checkpoint(checkpoints.latest())) == 1


@pytest.mark.parametrize("background", [True, False])
def test_what_changes_after_save_is_not_in_it(tmp_path, background):
    weights = torch.zeros(3_000_000)
    array = torch.arange(3.0).numpy()
    with Checkpoints(tmp_path, background=background) as checkpoints:
        for step in range(1, 4):
            weights.fill_(step)
            mutable = {"model": {"weight": weights}, "step": step, "log": [step], "array": array}
            checkpoints.save(mutable, step=step, epoch=0)
            weights.fill_(-1)
            mutable["log"].append("later")
            array[:] += 1
            loaded = checkpoints.load()
            assert value_of(loaded) == step
            assert loaded["log"] == [step]
            assert loaded["array"][0] == step - 1


def test_save_returns_while_the_file_is_being_written(tmp_path, monkeypatch):
    go_on, write_file = threading.Event(), store_module.write_file

    def slow(*args):
        assert go_on.wait(30)
        write_file(*args)

    monkeypatch.setattr(store_module, "write_file", slow)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state(1), step=1, epoch=0)
        assert checkpoints.latest() is None
        go_on.set()
        checkpoints.wait()
        assert checkpoints.latest() is not None


def test_the_last_and_the_best_stay(tmp_path):
    with Checkpoints(tmp_path, keep_last=2, keep_best=1, mode="min") as checkpoints:
        for step, metric in enumerate([0.9, 0.3, 0.5, None, float("nan"), 0.4], start=1):
            checkpoints.save(state(step), step=step, epoch=0, metric=metric)
        checkpoints.wait()
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            f"checkpoint-00000{step}-step-{step}.safetensors" for step in (2, 5, 6)
        ]
        assert value_of(checkpoints.load(checkpoints.best())) == 2
    with Checkpoints(tmp_path, keep_last=1, keep_best=1, mode="min") as checkpoints:  # another run knows it, too
        checkpoints.save(state(7), step=7, epoch=0, metric=0.35)
        checkpoints.wait()
        assert value_of(checkpoints.load(checkpoints.best())) == 2
        assert value_of(checkpoints.load()) == 7


@pytest.mark.parametrize("sharded", [False, True])
def test_figures_are_not_compared_with_each_other(sharded, tmp_path):
    options = {"keep_last": 1, "keep_best": 1, "sharded": sharded}
    with Checkpoints(tmp_path, mode="min", figure="val_loss", **options) as checkpoints:
        for step, metric in enumerate((0.95, 0.97), start=1):
            checkpoints.save(state(step), step=step, epoch=0, metric=metric)
    with Checkpoints(tmp_path, mode="max", figure="val_iou", **options) as checkpoints:
        for step, metric in enumerate((0.4, 0.6, 0.5), start=3):
            checkpoints.save(state(step), step=step, epoch=0, metric=metric)
        checkpoints.wait()
        assert value_of(checkpoints.load(checkpoints.best())) == 4
    loaded = Checkpoints(tmp_path)
    assert value_of(loaded.load(loaded.best())) == 4, "the figure that was looked at last"
    earlier = Checkpoints(tmp_path, mode="min", figure="val_loss")
    assert value_of(earlier.load(earlier.best())) == 1
    assert len(list(tmp_path.iterdir())) == 3, "the best of each, and the last"


@pytest.mark.parametrize("sharded", [False, True])
def test_the_best_is_that_of_whoever_saved(sharded, tmp_path):
    with Checkpoints(tmp_path, mode="max", sharded=sharded) as checkpoints:
        for step, metric in enumerate((0.5, 0.9, 0.7), start=1):
            checkpoints.save(state(step), step=step, epoch=0, metric=metric)
    loaded = Checkpoints(tmp_path)
    assert value_of(loaded.load(loaded.best())) == 2
    smallest = Checkpoints(tmp_path, mode="min")
    assert value_of(smallest.load(smallest.best())) == 1
    with Checkpoints(tmp_path, keep_last=1) as checkpoints:
        checkpoints.save(state(4), step=4, epoch=0, metric=0.6)
    kept = Checkpoints(tmp_path)
    assert [value_of(kept.load(path)) for path in (kept.latest(), kept.best())] == [4, 2]


def test_training_begun_anew_is_newer(tmp_path):
    with Checkpoints(tmp_path, keep_last=2) as checkpoints:
        for step in (500, 600, 1):
            checkpoints.save(state(step), step=step, epoch=0)
        assert value_of(checkpoints.load()) == 1


def flip(path):
    content = bytearray(path.read_bytes())
    content[-100] ^= 4
    path.write_bytes(content)


DAMAGE = {
    "flipped": (flip, "data has changed"),
    "truncated": (lambda path: os.truncate(path, path.stat().st_size - 7), "bytes; .* were written"),
    "empty": (lambda path: os.truncate(path, 0), "it is empty"),
    "header": (lambda path: os.truncate(path, 50), "ends within its header"),
    "gone": (lambda path: (path.unlink(), path.symlink_to("nowhere")), "No such file"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_the_one_before_a_damaged_one_is_used(tmp_path, caplog, kind):
    damage, message = DAMAGE[kind]
    with Checkpoints(tmp_path) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(state(step), step=step, epoch=0)
        checkpoints.wait()
        damaged = checkpoints.latest()
        damage(damaged)
        with caplog.at_level(logging.WARNING, "fulltilt.train"):
            assert value_of(checkpoints.load()) == 2
        (record,) = caplog.records
        assert str(damaged) in record.getMessage()
        with pytest.raises(CheckpointError, match=message):
            checkpoints.load(damaged)
        checkpoints.save(state(4), step=4, epoch=0)
        assert value_of(checkpoints.load()) == 4


def test_nothing_left_to_load(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(CheckpointError, match="there is no checkpoint in"):
            checkpoints.load()
        checkpoints.save(state(1), step=1, epoch=0)
        checkpoints.wait()
        os.truncate(checkpoints.latest(), 3)
        with pytest.raises(CheckpointError, match="all 1 checkpoints in"):
            checkpoints.load()
    with pytest.raises(CheckpointError, match="absent can't be read"):
        load_checkpoint(tmp_path / "absent")


def test_checkpoints_that_another_process_replaces_meanwhile_are_looked_for_again(tmp_path, monkeypatch):
    with Checkpoints(tmp_path, keep_last=2, background=False) as checkpoints:
        for step in range(2):
            checkpoints.save(state(step), step=step, epoch=0)
        load, calls = store_module._load_together, []

        def slowly(path, *rest):
            if not calls:  # between the look at the folder and the first file
                for old in list(tmp_path.iterdir()):
                    old.unlink()
                checkpoints.save(state(7), step=7, epoch=0)
            calls.append(path)
            return load(path, *rest)

        monkeypatch.setattr(store_module, "_load_together", slowly)
        assert value_of(checkpoints.load()) == 7
        assert len(calls) == 3, "both that were gone, then the new one"


def test_leftovers_are_removed_and_living_writers_are_not(tmp_path):
    dead = tmp_path / ".checkpoint-000001-step-1.safetensors-00ff.partial"
    living = tmp_path / ".checkpoint-000002-step-2.safetensors-00ff.partial"
    dead_folder = tmp_path / ".checkpoint-000003-step-3-00ff.partial"
    empty_folder = tmp_path / ".checkpoint-000004-step-4-00ff.partial"
    foreign = tmp_path / ".00ff.aside"
    for path in (dead, living, foreign):
        path.write_bytes(b"half")
    for path in (dead_folder, empty_folder):
        path.mkdir()
    (dead_folder / "lock").touch()
    (dead_folder / "rank-00000.safetensors").write_bytes(b"half")
    with open(living, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        Checkpoints(tmp_path)
        assert partials(tmp_path) == [foreign, living]
    Checkpoints(tmp_path)
    assert partials(tmp_path) == [foreign]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"keep_last": 0}, "keep_last is 0"), ({"keep_best": -1}, "keep_best is -1"), ({"mode": "up"}, "mode is 'up'")],
)
def test_wrong_options(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        Checkpoints(tmp_path / "x", **options)
    assert not (tmp_path / "x").exists()


def test_a_state_that_cant_be_saved_leaves_no_trace(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(InputError, match=r"model\.hook: object can't be saved"):
            checkpoints.save({"model": {"hook": object()}}, step=1, epoch=0)
        assert list(tmp_path.iterdir()) == []
        checkpoints.save(state(1), step=1, epoch=0)


def test_a_folder_that_cant_be_written_is_refused_at_once(tmp_path):
    (tmp_path / "file").touch()
    for folder in ("/proc/self", "/proc/self/x", tmp_path / "file", tmp_path / "file" / "x"):
        with pytest.raises(InputError, match=r"can't write checkpoints into .*; name another folder"):
            Checkpoints(folder)


def test_a_read_only_folder_is_refused_at_once(tmp_path):
    """Root may write everywhere but on a file system that is read-only."""
    with contextlib.ExitStack() as stack:
        if os.geteuid() == 0:
            stack.enter_context(mounted(tmp_path, "ro"))
        else:
            tmp_path.chmod(0o500)
        with pytest.raises(InputError, match=r"Permission denied|Read-only file system"):
            Checkpoints(tmp_path)


@contextlib.contextmanager
def mounted(folder, options):
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextlib.contextmanager
def short_files(size):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("limit", ["disk", "length"])
@pytest.mark.parametrize("raised_at", ["wait", "save", "close"])
def test_a_full_disk(tmp_path, raised_at, limit):
    with mounted(tmp_path, f"size={4 << 20}") if limit == "disk" else short_files(4 << 20):
        checkpoints = Checkpoints(tmp_path, keep_last=5)
        checkpoints.save(state(1), step=1, epoch=0)
        checkpoints.wait()
        before = checkpoints.latest().read_bytes()
        checkpoints.save(state(2, size=2_000_000), step=2, epoch=0)
        actions = {
            "wait": checkpoints.wait,
            "save": lambda: checkpoints.save(state(3), step=3, epoch=0),
            "close": checkpoints.close,
        }
        with pytest.raises(
            FulltiltError, match=r"checkpoint of step 2 into .*earlier ones are untouched; .* MB are free"
        ):
            actions[raised_at]()
        assert checkpoints.latest().read_bytes() == before
        assert partials(tmp_path) == []
        assert value_of(checkpoints.load()) == 1
        checkpoints.save(state(4), step=4, epoch=0)  # the error was told once; room for a small one is there
        assert value_of(checkpoints.load()) == 4
        checkpoints.close()


def test_full_device():
    """/dev/full takes a file and no byte."""
    descriptor = os.open("/dev/full", os.O_WRONLY)
    try:
        from fulltilt.train.checkpoint.file import write_file
        from fulltilt.train.checkpoint.staging import Staging

        staged = Staging().take({"a": torch.ones(9)})
        with pytest.raises(OSError, match="No space left"):
            write_file(descriptor, staged.layout, {}, staged.wait())
    finally:
        os.close(descriptor)


def test_memory_is_used_again_and_given_back(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(1), step=1, epoch=0)
    checkpoints.wait()
    memory = checkpoints._staging._memory.bytes.data_ptr()
    for size in (1000, 500):
        checkpoints.save(state(2, size=size), step=2, epoch=0)
        assert checkpoints._staging._memory.bytes.data_ptr() == memory
    checkpoints.close()
    assert checkpoints._staging._memory is None
    checkpoints.save(state(3), step=3, epoch=0)
    assert value_of(checkpoints.load()) == 3
    checkpoints.close()
