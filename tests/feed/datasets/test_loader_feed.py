"""Data sets and DataLoaders of one's own: the plain loop's batches, in the plain loop's order, resumed anywhere."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
import time
from collections import namedtuple
from contextlib import suppress
from itertools import islice
from pathlib import Path

import psutil
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.waiting import until
from torch.utils.data import DataLoader, Dataset, IterableDataset, SequentialSampler, TensorDataset, default_collate

from fulltilt.augment import GPUAugmentation, MinimalGPUAugmentation
from fulltilt.errors import InputError, UnavailableError
from fulltilt.feed import ImageFiles, feed, structure
from fulltilt.feed.datasets import loader_feed as loader_feeds
from fulltilt.machine.cores import Cores

# Python 3.12 warns of forking beside threads, which torch's workers always do.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


class Squares(Dataset):
    """Number and square; one number can be made to fail."""

    def __init__(self, length: int, broken: int = -1) -> None:
        self.length, self.broken = length, broken

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int):
        if number == self.broken:
            raise ValueError(f"number {number} is broken")
        return number, torch.tensor([number * number])


class Count(IterableDataset):
    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self):
        return iter(range(self.length))


def seen(batches) -> list[list[int]]:
    return [numbers.tolist() for numbers, squares in batches]


def flat(batches) -> list[int]:
    return [number for batch in seen(batches) for number in batch]


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 30), st.integers(1, 9), st.booleans(), st.booleans())
def test_a_loader_keeps_its_order_over_epochs(length, batch_size, shuffle, drop_last):
    def loader():
        torch.manual_seed(length)
        return DataLoader(Squares(length), batch_size=batch_size, shuffle=shuffle, drop_last=drop_last)

    plain = loader()
    expected = [seen(plain) for _ in range(3)]
    with feed(loader(), device="cpu") as ours:
        assert len(ours) == len(plain)
        assert [seen(ours) for _ in range(3)] == expected


def test_a_loader_with_workers_and_a_distributed_sampler():
    sampler = torch.utils.data.DistributedSampler(Squares(20), num_replicas=2, rank=1, shuffle=True)
    loader = DataLoader(Squares(20), batch_size=4, sampler=sampler, num_workers=2)
    with feed(loader, device="cpu") as ours:
        for epoch in (3, 5):
            sampler.set_epoch(epoch)
            expected = [list(sampler)[k : k + 4] for k in (0, 4, 8)]
            ours.set_epoch(epoch)
            assert seen(ours) == expected


@pytest.mark.parametrize("generator", [False, True])
@pytest.mark.parametrize("done", [1, 4])
def test_a_loader_is_resumed_with_exactly_the_rest(done, generator):
    def loader():
        torch.manual_seed(1)
        own = torch.Generator().manual_seed(9) if generator else None
        return DataLoader(Squares(18), batch_size=4, shuffle=True, generator=own)

    expected = [seen(loader_) for loader_ in [loader()] for _ in range(2)]
    with feed(loader(), device="cpu") as first:
        assert seen(first) == expected[0]
        loop = iter(first)
        before = seen(next(loop) for _ in range(done))
        state = first.state_dict()
    again = loader()
    torch.manual_seed(77)  # a resumed process has drawn other numbers by now
    random = torch.get_rng_state()
    with feed(again, device="cpu") as second:
        second.load_state_dict(state)
        after = seen(second)
    assert before + after == expected[1]
    assert torch.equal(torch.get_rng_state(), random), "resuming draws nothing from the trainer's generator"


@pytest.mark.parametrize("stream", [False, True])
def test_a_resumed_epoch_is_augmented_as_it_would_have_been(stream):
    images = torch.randint(256, (18, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(images)

    def augmented():
        data = Stream() if stream else images
        return feed(DataLoader(data, batch_size=4), device="cpu", augment=GPUAugmentation(seed=3))

    whole = augmented()
    expected = [batch.clone() for _ in range(2) for batch in whole]
    first = augmented()
    loop = iter(first)
    begun = [next(loop) for _ in range(3)]
    again = augmented()
    again.load_state_dict(first.state_dict())
    rest = [batch.clone() for _ in range(2) for batch in again]
    assert torch.equal(torch.cat(begun + rest), torch.cat(expected))


def test_each_rank_augments_in_its_own_way(monkeypatch):
    loader = DataLoader(torch.randint(256, (1, 3, 8, 8), dtype=torch.uint8).expand(6, -1, -1, -1), batch_size=4)

    def of(rank):
        monkeypatch.setattr(loader_feeds, "rank", lambda: rank)
        batches = feed(loader, device="cpu", augment=GPUAugmentation(rotation_degrees=30, seed=3))
        return list(torch.cat([batch.clone() for batch in batches]))

    drawn = [image.sum().item() for image in of(0) + of(1)]
    assert len(set(drawn)) == 12
    assert drawn[:6] == [image.sum().item() for image in of(0)]


class Seeing(torch.nn.Module):
    """A module of the batch, with an augmentation in it."""

    def __init__(self):
        super().__init__()
        self.augment = GPUAugmentation(rotation_degrees=30, seed=3)

    def forward(self, batch):
        return (self.augment(batch[0]),) if isinstance(batch, tuple) else self.augment(batch)


@pytest.mark.parametrize("tensors", [False, True])
def test_each_rank_augments_in_its_own_way_in_modules_of_the_batch_too(monkeypatch, tensors):
    images = torch.randint(256, (1, 3, 8, 8), dtype=torch.uint8).expand(6, -1, -1, -1)

    def of(rank):
        monkeypatch.setattr(structure, "rank", lambda: rank)
        monkeypatch.setattr(structure, "several", lambda: True)
        source = {"source": images, "batch_size": 4} if tensors else {"source": DataLoader(images, batch_size=4)}
        batches = feed(**source, device="cpu", augment=Seeing())
        drawn = [batch[0] if tensors else batch for _ in range(2) for batch in batches]
        return [image.sum().item() for batch in drawn for image in batch]

    assert len(set(of(0) + of(1))) == 24


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            DataLoader(Squares(18), batch_size=8),
            "has batch_size=8, the saved one had 4: its place is a number of batches",
        ),
        (DataLoader(Squares(20), batch_size=4), "has length=20, the saved one had 18"),
    ],
)
def test_a_place_counted_in_other_batches_is_refused(other, message):
    with feed(DataLoader(Squares(18), batch_size=4), device="cpu") as first:
        beginning = first.state_dict()
        next(iter(first))
        state = first.state_dict()
    with feed(other, device="cpu") as second:
        second.load_state_dict(beginning)  # no sample has been given out
        with pytest.raises(InputError, match=message):
            second.load_state_dict(state)
        with pytest.raises(
            InputError, match="not the state of a DataLoader's feed: batches, begins, random, samples missing"
        ):
            second.load_state_dict({"epoch": 0, "position": 4})


@pytest.mark.parametrize("broken_off", [False, True])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(("workers", "tuned"), [(0, None), (1, None), (1, "auto")])
def test_a_state_saved_at_the_last_batch_is_the_next_epoch_s_beginning(workers, tuned, own, broken_off):
    def loader():
        torch.manual_seed(1)
        generator = torch.Generator().manual_seed(9) if own else None
        return DataLoader(Squares(18), batch_size=4, shuffle=True, generator=generator, num_workers=workers)

    plain = loader()
    expected = [seen(plain) for _ in range(3)]
    with feed(loader(), num_workers=tuned, device="cpu") as first:
        for batch in first:
            state, random = first.state_dict(), torch.get_rng_state()  # as a trainer saves both
            if broken_off and len(batch[0]) == 2:
                break
        assert (state["epoch"], state["batches"]) == (1, 0)
        assert seen(first) == expected[1], "saving changes nothing"
    again = loader()
    torch.set_rng_state(random)
    with feed(again, num_workers=tuned, device="cpu") as second:
        second.load_state_dict(state)
        second.set_epoch(1)
        assert [seen(second) for _ in range(2)] == expected[1:]


def test_a_loader_s_own_generator_goes_on_after_a_resume_between_epochs():
    def loader():
        return DataLoader(Squares(18), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(9))

    with feed(loader(), device="cpu") as whole:
        expected = [seen(whole) for _ in range(3)]
        assert expected[0] != expected[1]
    with feed(loader(), device="cpu") as first:
        list(first)
        state = first.state_dict()
    with feed(loader(), device="cpu") as second:
        second.load_state_dict(state)
        assert second.state_dict()["epoch"] == 1
        assert [seen(second) for _ in range(2)] == expected[1:]


def test_a_sampler_that_gives_more_than_it_says_is_gone_through_and_resumed():
    class Modest(SequentialSampler):
        def __len__(self) -> int:
            return 8

    def loader():
        return DataLoader(Squares(12), batch_size=4, sampler=Modest(range(12)))

    places = []
    with feed(loader(), device="cpu") as it:
        for _ in it:
            state = it.state_dict()
            places.append((state["epoch"], state["batches"]))
        assert places == [(0, 1), (1, 0), (0, 3)]
        assert it.state_dict()["epoch"] == 1


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 30), st.integers(1, 9), st.integers(1, 9), st.data())
def test_a_data_set_is_resumed_at_any_batch_size(length, batch_size, other, data):
    options = {"device": "cpu", "num_workers": 0, "shuffle": True, "seed": 2}
    with feed(Squares(length), batch_size=batch_size, **options) as first:
        loop = iter(first)
        done = data.draw(st.integers(0, len(first) - 1))
        before = flat(next(loop) for _ in range(done))
        state = first.state_dict()
    with feed(Squares(length), batch_size=other, **options) as second:
        second.load_state_dict(state)
        assert before + flat(second) == second.order.permutation(0).tolist()
        assert flat(second) == second.order.permutation(1).tolist()


def test_workers_go_on_into_the_next_epoch():
    with feed(Squares(12), batch_size=4, device="cpu", num_workers=2, worker_kind="processes") as it:
        assert [seen(it) for _ in range(3)] == [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]] * 3
        pids = set(it._crew.legs.pids)
        seen(it)
        assert set(it._crew.legs.pids) == pids
    with pytest.raises(ProcessLookupError):
        os.kill(pids.pop(), 0)


@settings(max_examples=6, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 30), st.integers(1, 9), st.booleans(), st.booleans(), st.integers(0, 2))
def test_a_tuned_loader_keeps_order_collate_and_the_trainer_s_random_numbers(
    length, batch_size, shuffle, drop_last, workers
):
    def loader():
        torch.manual_seed(length)
        return DataLoader(
            Squares(length),
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            num_workers=workers,
            persistent_workers=workers == 2,
        )

    plain = loader()
    expected = [seen(plain) for _ in range(3)]
    random = torch.get_rng_state()
    with feed(loader(), num_workers="auto", device="cpu") as ours:
        assert ours.hosting.value.workers == workers
        assert [seen(ours) for _ in range(3)] == expected
        assert ours.stats()["workers"] == workers
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("tuned", [None, "auto"])
def test_a_loader_with_workers_is_resumed_in_a_later_epoch(tuned, lasting):
    def loader():
        torch.manual_seed(4)
        return DataLoader(Squares(18), batch_size=4, shuffle=True, num_workers=1, persistent_workers=lasting)

    plain = loader()
    expected = [seen(plain) for _ in range(3)]
    with feed(loader(), num_workers=tuned, device="cpu") as first:
        assert [seen(first) for _ in range(2)] == expected[:2]
        before = seen(islice(iter(first), 2))
        state = first.state_dict()
    with feed(loader(), num_workers=tuned, device="cpu") as second:
        second.load_state_dict(state)
        assert before + seen(second) == expected[2]


@pytest.mark.parametrize("lasting", [False, True])
def test_a_loader_is_resumed_again_in_the_epoch_after(lasting):
    def loader():
        own = torch.Generator().manual_seed(9)
        return DataLoader(
            Squares(18), batch_size=4, shuffle=True, generator=own, num_workers=1, persistent_workers=lasting
        )

    with feed(loader(), device="cpu") as whole:
        epochs = [seen(whole) for _ in range(3)]
    with feed(loader(), device="cpu") as first:
        list(first)
        next(iter(first))
        state = first.state_dict()
    with feed(loader(), device="cpu") as second:
        second.load_state_dict(state)
        assert seen(second) == epochs[1][1:]
        given = seen(islice(iter(second), 2))
        state = second.state_dict()
    with feed(loader(), device="cpu") as third:
        third.load_state_dict(state)
        given += seen(third)
    assert given == epochs[2], "a generator of the loader's own goes on as if nothing had happened"


@pytest.mark.parametrize("in_order", [True, False])
def test_a_loader_that_keeps_no_order_stays_that_way_and_what_that_costs_a_resume_is_said(in_order, caplog):
    def loader():
        return DataLoader(Squares(18), batch_size=4, num_workers=2, persistent_workers=True, in_order=in_order)

    with feed(loader(), device="cpu") as it:
        next(iter(it))
        state = it.state_dict()
    with feed(loader(), device="cpu") as again:
        again.load_state_dict(state)
        assert len(list(again)) == 4
        assert len(list(again)) == 5
        assert again._source.in_order is in_order
    assert ("some samples may come twice in this epoch" in caplog.text) is not in_order


@pytest.mark.parametrize("lasting", [None, False, True])
def test_a_data_set_of_whole_batches_is_resumed(lasting):
    def loader():
        torch.manual_seed(4)
        workers = {} if lasting is None else {"num_workers": 1, "persistent_workers": lasting}
        return DataLoader([torch.tensor([i, -i]) for i in range(7)], batch_size=None, shuffle=True, **workers)

    with feed(loader(), device="cpu") as whole:
        expected = [[batch.tolist() for batch in whole] for _ in range(3)]
    with feed(loader(), device="cpu") as first:
        list(first)
        begun = [batch.tolist() for batch in islice(first, 2)]
        state, random = first.state_dict(), torch.get_rng_state()
    with feed(loader(), device="cpu") as again:
        again.load_state_dict(state)
        torch.set_rng_state(random)
        assert begun + [batch.tolist() for batch in again] == expected[1]
        assert [batch.tolist() for batch in again] == expected[2]


class Negated(DataLoader):
    """Changes its batches, and repeats its sampler for ever, as loaders do that keep their workers."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.__dict__["batch_sampler"] = Repeated(self.batch_sampler)

    def __len__(self) -> int:
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for batch in islice(super().__iter__(), len(self)):
            yield -batch


class Repeated:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_of_a_class_that_goes_its_own_way_is_resumed_in_that_way(workers):
    def loader():
        torch.manual_seed(4)
        return Negated(range(18), batch_size=4, shuffle=True, num_workers=workers)

    expected = [[batch.tolist() for batch in plain] for plain in [loader()] for _ in range(2)]
    with feed(loader(), device="cpu") as first:
        list(first)
        begun = [batch.tolist() for batch in islice(first, 2)]
        state, random = first.state_dict(), torch.get_rng_state()
    with feed(loader(), device="cpu") as again:
        again.load_state_dict(state)
        torch.set_rng_state(random)
        assert begun + [batch.tolist() for batch in again] == expected[1]


def test_a_loader_of_such_a_class_keeps_its_workers():
    with pytest.raises(InputError, match="what the __iter__ of Negated does: leave it out"):
        feed(Negated(range(18), batch_size=4), num_workers="auto", device="cpu")


class Drawing(Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, number):
        return torch.rand(())


def test_the_rest_of_every_epoch_has_random_numbers_of_its_own():
    """Workers were seeded alike wherever an epoch was resumed."""
    drawn = []
    for epoch in (1, 2):
        with feed(DataLoader(Drawing(), num_workers=1), device="cpu") as it:
            it.set_epoch(epoch)
            next(iter(it))
            state = it.state_dict()
        with feed(DataLoader(Drawing(), num_workers=1), device="cpu") as again:
            again.load_state_dict(state)
            drawn += [batch.item() for batch in again]
    assert len(set(drawn)) == 6


def test_an_iterable_is_gone_through_in_its_own_order_and_resumed_by_counting():
    with feed(Count(10), batch_size=4, device="cpu", num_workers=0) as it:
        loop = iter(it)
        assert next(loop).tolist() == [0, 1, 2, 3]
        state = it.state_dict()
        assert [batch.tolist() for batch in loop] == [[4, 5, 6, 7], [8, 9]]
    with feed(Count(10), batch_size=4, device="cpu", num_workers=0) as again:
        again.load_state_dict(state)
        assert [batch.tolist() for batch in again] == [[4, 5, 6, 7], [8, 9]]


def test_an_iterable_is_not_repeated_by_every_worker(monkeypatch):
    many = Cores(count=8, usable=8, bound_by="count", reason="so it is")
    monkeypatch.setattr("fulltilt.feed.build.read_cores", lambda: many)
    with feed(Count(10), batch_size=4, device="cpu") as it:
        assert sorted(number for batch in it for number in batch.tolist()) == list(range(10))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_in_the_data_set_comes_out_where_its_batch_would(workers):
    with feed(Squares(20, broken=9), batch_size=4, device="cpu", num_workers=workers) as it:
        loop = iter(it)
        assert seen(next(loop) for _ in range(2)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
        with pytest.raises(ValueError, match="number 9 is broken"):
            next(loop)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("loader", [False, True])
def test_every_batch_is_shown_in_the_thread_that_fetches_and_an_objection_comes_out_in_its_place(loader, workers):
    threads = set()

    def look(batch) -> None:
        threads.add(threading.current_thread().name)
        if 9 in batch[0]:
            raise InputError("a label of 9 is too large")

    if loader:
        it = feed(DataLoader(Squares(20), batch_size=4, num_workers=workers), device="cpu")
    else:
        it = feed(Squares(20), batch_size=4, device="cpu", num_workers=workers)
    with it:
        assert it.inspect_with(look)
        loop = iter(it)
        assert seen(next(loop) for _ in range(2)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
        with pytest.raises(InputError, match="a label of 9 is too large"):
            next(loop)
    assert threads == {"fulltilt-fetch"}


def test_what_is_in_memory_is_shown_at_once(tmp_path):
    shown = []
    labels = torch.arange(6)
    with feed((torch.zeros(6, 2), labels), batch_size=4, device="cpu") as it:
        assert it.inspect_with(shown.append)
        assert torch.equal(shown.pop()[-1], labels)
        list(it)
        assert not shown
    for number in range(6):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.png")
    paths = sorted(tmp_path.glob("*.png"))
    with feed(ImageFiles(paths, labels=labels.numpy()), size=8, batch_size=4, device="cpu", num_workers=1) as it:
        assert it.inspect_with(shown.append)
        (batch,) = shown
        assert batch[0] is None
        assert torch.equal(batch[1], labels)
    with feed(ImageFiles(paths), size=8, batch_size=4, device="cpu", num_workers=1) as it:
        assert not it.inspect_with(shown.append)
        assert len(shown) == 1


KILLED = """
import os, signal, torch
from fulltilt.feed import ImageFiles, feed, structure
class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 4000
    def __getitem__(self, number): return number
it = feed(Numbers(), batch_size=2, device="cpu", num_workers=1, worker_kind="processes")
seen = []
for k, batch in enumerate(it):
    seen += batch.tolist()
    if k == 1: os.kill(it._crew.legs.pids[0], signal.SIGKILL)
assert seen == list(range(4000))
"""


def test_a_killed_worker_is_told_with_its_signal_and_the_epoch_goes_on():
    # In a process of its own: torch would raise from a signal handler, wherever the main thread is.
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"worker 0 \(pid \d+\) was ended by signal SIGKILL at or soon after the batch", done.stderr)


with_a_worker = pytest.mark.parametrize(
    "make",
    [
        lambda: feed(Squares(40), batch_size=2, device="cpu", num_workers=1, worker_kind="processes"),
        lambda: feed(DataLoader(Squares(40), batch_size=2, num_workers=1), device="cpu"),
    ],
)


@with_a_worker
def test_a_worker_that_is_stopped_is_told_of(make, caplog, monkeypatch):
    before = {child.pid for child in psutil.Process().children()}
    with make() as it:
        loop = iter(it)
        given = [next(loop)]
        monkeypatch.setattr("fulltilt.feed.waiting.FIRST_SECONDS", 0.2)
        (worker,) = [child for child in psutil.Process().children() if child.pid not in before]
        worker.suspend()
        waiter = threading.Thread(target=lambda: given.extend(loop))
        waiter.start()
        until(lambda: "no batch has come" in caplog.text)
        worker.resume()
        waiter.join()
    assert f"no batch has come for 0.2 s; waiting for its workers: process {worker.pid} (stopped" in caplog.text
    assert len(given) == 20


@with_a_worker
def test_a_worker_that_hangs_does_not_hold_up_the_end(make, monkeypatch):
    monkeypatch.setattr("fulltilt.feed.datasets.dataset_feed._PATIENCE_SECONDS", 0.2)
    before = {child.pid for child in psutil.Process().children()}
    it = make()
    next(iter(it))
    (worker,) = [child for child in psutil.Process().children() if child.pid not in before]
    worker.suspend()
    closing = threading.Thread(target=it.close)
    closing.start()
    closing.join(10)
    hangs = closing.is_alive()
    with suppress(psutil.NoSuchProcess):
        worker.resume()
    closing.join()
    assert not hangs


@with_a_worker
def test_a_worker_that_is_stopped_with_nothing_to_do_ends_with_its_feed(make):
    before = {child.pid for child in psutil.Process().children()}
    it = make()
    next(iter(it))
    until(it._mover._fetcher._queue.full)
    (worker,) = [child for child in psutil.Process().children() if child.pid not in before]
    worker.suspend()
    it.close()
    left = worker.is_running()
    if left:
        worker.kill()
    assert not left


def test_a_loader_whose_workers_were_killed_has_others_when_it_is_used_again(monkeypatch, tmp_path):
    class Hanging(Squares):
        def __getitem__(self, number: int):
            while number == 2 and (tmp_path / "hangs").exists():
                time.sleep(0.02)
            return super().__getitem__(number)

    monkeypatch.setattr("fulltilt.feed.datasets.dataset_feed._PATIENCE_SECONDS", 0.2)
    (tmp_path / "hangs").touch()
    loader = DataLoader(Hanging(8), batch_size=2, num_workers=1, persistent_workers=True)
    it = feed(loader, device="cpu")
    next(iter(it))
    it.close()
    (tmp_path / "hangs").unlink()
    assert len(list(loader)) == 4


def test_a_feed_that_failed_and_is_forgotten_ends_its_workers():
    def fail() -> list[int]:
        it = feed(Squares(8, broken=0), batch_size=2, device="cpu", num_workers=1, worker_kind="processes")
        with pytest.raises(ValueError, match="number 0 is broken"):
            list(it)
        return it._crew.legs.pids

    pids = fail()
    assert pids
    gc.collect()
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


class Collecting(Squares):
    """Collects garbage where its samples are made, when told."""

    now = threading.Event()

    def __getitem__(self, number: int):
        if number == 4:
            self.now.wait(10)
            gc.collect()
        return super().__getitem__(number)


def test_a_feed_that_its_own_thread_forgets_ends():
    gc.disable()
    try:
        ring = [feed(Collecting(100), batch_size=2, device="cpu", num_workers=0)]
        ring += [ring, iter(ring[0])]
        next(ring[2])
        thread = ring[0]._mover._fetcher._thread
        del ring
        Collecting.now.set()
        thread.join(5)
        assert not thread.is_alive()
    finally:
        gc.enable()


def test_a_forked_process_leaves_the_trainer_s_feed_alone():
    with feed(Squares(20), batch_size=2, device="cpu", num_workers=1, worker_kind="processes") as it:
        loop = iter(it)
        next(loop)
        if (pid := os.fork()) == 0:
            it._finalizer()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert len(list(loop)) == 9


def test_nothing_runs_on_after_close():
    before = threading.enumerate()
    it = feed(Squares(1000), batch_size=2, device="cpu", num_workers=0)
    next(iter(it))
    (thread,) = set(threading.enumerate()).difference(before)
    it.close()
    assert not thread.is_alive()
    with pytest.raises(InputError, match="closed"):
        next(iter(it))


def loader_feed():
    return feed(DataLoader(Squares(12), batch_size=4), device="cpu")


def test_one_loop_at_a_time_over_a_loader():
    with loader_feed() as it:
        one = iter(it)
        next(one)
        two = iter(it)
        next(two)
        with pytest.raises(InputError, match="another loop over this feed"):
            next(one)
        assert len(list(two)) == 2


@pytest.mark.parametrize("make", [loader_feed, lambda: feed(Squares(12), batch_size=4, device="cpu", num_workers=0)])
def test_a_feed_closed_in_its_loop_does_not_end_as_an_epoch_would(make):
    it = make()
    loop = iter(it)
    next(loop)
    it.close()
    with pytest.raises(InputError, match="closed"):
        next(loop)
    it = make()
    for number, _ in enumerate(it):
        if number == 2:  # the last
            it.close()


class Pictures(Dataset):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, number: int):
        image = torch.zeros(3, 8, 10)
        image[:, :, :2] = 1.0
        return image, image[0].long(), number


def test_augmentation_takes_images_and_masks_along():
    flip = MinimalGPUAugmentation(1.0)
    with feed(Pictures(), batch_size=3, device="cpu", num_workers=0, augment=flip) as it:
        seen = []
        for images, masks, numbers in it:
            assert images[:, :, :, -2:].min() == 1
            assert images[:, :, :, :-2].max() == 0
            assert torch.equal(masks, images[:, 0].long())
            seen += numbers.tolist()
    assert seen == list(range(6))


def drawn() -> tuple[torch.Tensor, torch.Tensor]:
    masks = torch.zeros(4, 8, 8, dtype=torch.int64)
    masks[:, :, :2] = 1
    return masks[:, None].float().expand(-1, 3, -1, -1).contiguous(), masks


@pytest.mark.parametrize("place", [1, 2])
def test_masks_go_along_wherever_they_stand(place):
    images, masks = drawn()
    parts = [images, torch.rand(4, 5)]
    parts.insert(place, masks)
    with feed(tuple(parts), batch_size=4, device="cpu", augment=MinimalGPUAugmentation(1.0)) as it:
        (batch,) = it
    assert torch.equal(batch[place], masks.flip(2))
    assert torch.equal(batch[0][:, 0].long(), batch[place])


def test_two_parts_that_would_have_to_move_are_refused():
    images, masks = drawn()
    loader = DataLoader(TensorDataset(images, masks, masks[:, None]), 4)
    with (
        pytest.raises(InputError, match=r"a batch has \(4, 8, 8\) and \(4, 1, 8, 8\): .* moves one part with them"),
        feed(loader, device="cpu", augment=MinimalGPUAugmentation()) as it,
    ):
        next(iter(it))
    still = GPUAugmentation(0.0, 0.0, brightness=0.2)
    with feed(loader, device="cpu", augment=still) as it:
        (batch,) = it
    assert torch.equal(batch[1], masks)
    assert torch.equal(batch[2], masks[:, None])


def test_masks_whose_channel_comes_last_are_not_left_behind():
    images, masks = drawn()
    with (
        feed((images, masks[..., None]), batch_size=4, device="cpu", augment=MinimalGPUAugmentation()) as it,
        pytest.raises(InputError, match=r"masks has shape \(4, 8, 8, 1\); .* must be \(4, 8, 8\) or \(4, 1, 8, 8\)"),
    ):
        next(iter(it))


def test_where_nothing_moves_any_part_may_have_the_images_size():
    images, masks = drawn()
    parts = (images, images.clone(), masks[..., None], masks)
    with feed(parts, batch_size=4, device="cpu", augment=GPUAugmentation(0.0, 0.0, brightness=0.2)) as it:
        (batch,) = it
    assert all(torch.equal(one, part) for one, part in zip(batch[1:], parts[1:], strict=True))


def test_what_kornia_moves_afterwards_takes_masks_along():
    kornia = pytest.importorskip("kornia.augmentation")
    images, masks = drawn()

    def batches(*parts):
        augment = GPUAugmentation(0.0, 0.0, 0.0, 0.0, then=[kornia.RandomHorizontalFlip(p=1.0)])
        with feed(parts, batch_size=4, device="cpu", augment=augment) as it:
            return list(it)

    assert torch.equal(batches(images, masks)[0][1], masks.flip(2))
    with pytest.raises(InputError, match="would no longer fit"):
        batches(images, masks, masks[:, None])


def test_an_augmented_batch_keeps_its_kind():
    images, masks = drawn()
    Pair = namedtuple("Pair", "image mask")
    loader = DataLoader(TensorDataset(images, masks), 4, collate_fn=lambda samples: Pair(*default_collate(samples)))
    with feed(loader, device="cpu", augment=MinimalGPUAugmentation(1.0)) as it:
        (batch,) = it
    assert torch.equal(batch.mask, masks.flip(2))


@pytest.mark.parametrize(
    ("augment", "says"),
    [
        (GPUAugmentation, r"augment is the class GPUAugmentation; expected .* such as GPUAugmentation\(\)"),
        ("strong", "augment is 'strong'; expected a GPUAugmentation"),
        (lambda _: None, "a function of the batch has to return the batch"),
        (GPUAugmentation(), r"images has shape \(2, 3\); expected N×C×H×W"),
    ],
)
def test_an_augmentation_that_is_no_good(augment, says):
    with (
        pytest.raises(InputError, match=says),
        feed(torch.randn(4, 3) * 9, batch_size=2, device="cpu", augment=augment) as it,
    ):
        next(iter(it))


def test_images_that_are_no_one_tensor_are_named():
    loader = DataLoader(range(4), 4, collate_fn=lambda _: ([torch.rand(3, 8, 8), torch.rand(3, 9, 8)], torch.ones(2)))
    with (
        feed(loader, device="cpu", augment=MinimalGPUAugmentation()) as it,
        pytest.raises(InputError, match="begin with their images, found tuple that begins with list"),
    ):
        next(iter(it))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_come_through(layout):
    def collate(samples):
        return torch.nested.nested_tensor([torch.ones(number + 1) for number in samples], layout=layout)

    with feed(DataLoader(range(5), 2, collate_fn=collate), device="cpu") as it:
        assert [len(batch.unbind()) for batch in it] == [2, 2, 1]
        assert it.stats()["samples"] == 5


@pytest.mark.parametrize("beside", [torch.zeros(8, 4, 4), torch.zeros(8, 2, 4)], ids=["small masks", "boxes"])
def test_what_does_not_go_along_is_told_of_once(beside, caplog):
    images, _ = drawn()
    data = TensorDataset(torch.cat([images, images]), beside)
    for aug, times in (
        (MinimalGPUAugmentation(), 1),
        (GPUAugmentation(0.0, 0.0), 0),
        (MinimalGPUAugmentation().eval(), 0),
    ):
        caplog.clear()
        with feed(DataLoader(data, 4), device="cpu", augment=aug) as it:
            assert sum(1 for _ in range(2) for _ in it) == 4
        assert caplog.text.count("beside them stays as it is") == times


def test_a_function_is_given_the_whole_batch():
    with feed(Squares(4), batch_size=4, device="cpu", num_workers=0, augment=lambda batch: batch[1] + 1) as it:
        assert next(iter(it)).flatten().tolist() == [1, 2, 5, 10]


@pytest.mark.parametrize(
    ("source", "wish", "message"),
    [
        (DataLoader(Squares(3)), {"batch_size": 2}, "DataLoader has its own"),
        (DataLoader(Squares(3)), {"shuffle": True}, "DataLoader has its own"),
        (DataLoader(Squares(3)), {"num_workers": 2}, "beginning with its own"),
        (DataLoader(Squares(3), batch_size=None), {"num_workers": "auto"}, "a map-style data set and batches"),
        (DataLoader(Count(3)), {"num_workers": "auto"}, "a map-style data set and batches"),
        (
            DataLoader(Squares(3), worker_init_fn=print),
            {"num_workers": "auto", "worker_kind": "threads"},
            "worker_init_fn sets up processes",
        ),
        (Squares(3), {"batch_size": 1, "num_workers": -1}, "num_workers=-1 must be at least 0"),
        (Squares(3), {"batch_size": 1, "num_workers": "many"}, "num_workers='many' must be"),
        (Squares(3), {"batch_size": 1, "worker_kind": "fibres"}, "worker_kind='fibres' must be 'auto' or"),
        (Squares(3), {}, "batch_size is missing"),
        (Squares(3), {"batch_size": 2.0}, "batch_size=2.0 must be a whole number"),
        (Squares(3), {"batch_size": 1, "prefetch": 0}, "prefetch=0 must be a whole number from 1 on"),
        (Squares(3), {"batch_size": 1, "prefetch": "much"}, "prefetch='much' must be"),
        ("train/", {"batch_size": 1}, r"'train/' is a path: feed\(ImageFiles\('train/'\), …\) feeds image files"),
        (Path("train"), {"batch_size": 1}, "'train' is a path"),
        ({"x": torch.zeros(3)}, {"batch_size": 1}, "a dict can't be fed: pass its tensors as a tuple"),
        (None, {"batch_size": 1}, "NoneType can't be fed"),
        (torch.tensor(3), {"batch_size": 1}, "of no dimension"),
        (Count(3), {"batch_size": 1, "shuffle": True}, "comes in its own order"),
        (Squares(3), {"batch_size": 1, "on_error": "skip", "quality": "fast"}, "on_error, quality: only ImageFiles"),
        (torch.zeros(3), {"batch_size": 1, "size": 8}, "size: only ImageFiles"),
        (DataLoader(Squares(3)), {"in_order": False}, "in_order: only ImageFiles"),
    ],
)
def test_wishes_that_can_not_be_met_are_named(source, wish, message):
    with pytest.raises(InputError, match=message):
        feed(source, device="cpu", **wish)


def test_another_s_state_is_not_taken():
    with pytest.raises(InputError, match="not the state of such a feed: length, position, seed, shuffle missing"):
        feed(torch.arange(3), batch_size=1, device="cpu").load_state_dict({"epoch": 0, "batches": 1})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_told():
    with pytest.raises(UnavailableError, match="device='cuda': torch sees no NVIDIA GPU here"):
        feed(torch.arange(3), batch_size=1, device="cuda")


def test_a_gpu_beyond_those_that_are_there_is_told(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UnavailableError, match="device='cuda:2': torch sees 2 GPUs here"):
        feed(torch.arange(3), batch_size=1, device="cuda:2")


@pytest.mark.parametrize("wish", [{"batch_size": 0}, {"batch_size": 1, "num_workers": -1}])
def test_numbers_that_can_not_be_are_told_of_streams_too(wish):
    with pytest.raises(InputError, match=r"batch_size|num_workers"):
        feed(Count(3), device="cpu", **wish)
