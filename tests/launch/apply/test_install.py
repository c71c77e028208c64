"""Settings put upon small training loops, each in a process of its own; losses compared to the last bit."""

from __future__ import annotations

import atexit
import copy
import functools
import gc
import io
import multiprocessing
import random
import sqlite3
import threading
import weakref
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from fulltilt.launch.apply.batches import AheadIterator
from fulltilt.launch.apply.install import _without_waiting, install
from fulltilt.launch.apply.loader import changed_arguments
from fulltilt.launch.apply.places import Places
from fulltilt.launch.watch.draws import tied

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def elsewhere(work: Callable[[], Any]) -> Any:
    """What `work` returns in a process of its own: patches end with it."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)

    def run() -> None:
        torch.set_num_threads(1)
        try:
            there.send((True, work()))
        except BaseException as error:
            there.send((False, repr(error)))
            raise

    process = context.Process(target=run)
    process.start()
    there.close()
    try:
        fine, found = here.recv()
    finally:
        process.join(60)
    assert fine, found
    return found


class Noisy(Dataset[Any]):
    """Samples with random parts from all three generators, and a strength that a script may change."""

    def __init__(self, length: int = 96) -> None:
        self.length, self.strength = length, 1.0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        draws = torch.rand(4) + float(np.random.rand()) + random.random()
        return torch.cat((torch.full((4,), float(index) / 96), draws * self.strength)), index % 3


def model(features: int = 8, classes: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, classes))


def _tie_draws() -> None:
    """As a watched process does."""
    from torch.utils.data._utils.fetch import _MapDatasetFetcher

    made = _MapDatasetFetcher.__init__
    _MapDatasetFetcher.__init__ = lambda self, dataset, *rest: made(self, tied(dataset, 7), *rest)  # type: ignore[method-assign]


def train(
    settings: dict[str, Any], loader: Callable[[], DataLoader[Any]], *, epochs: int = 2, tie: bool = True
) -> tuple[list[float], list[str]]:
    """An ordinary loop under the settings: its losses, and what was noted."""

    def work() -> tuple[list[float], list[str]]:
        notes: list[str] = []
        install(settings, notes)
        if tie:
            _tie_draws()
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        net, batches = model(), loader()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        losses = []
        for _ in range(epochs):
            for inputs, targets in batches:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(net(inputs), targets)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        return losses, notes

    found: tuple[list[float], list[str]] = elsewhere(work)
    return found


def noisy(**arguments: Any) -> Callable[[], DataLoader[Any]]:
    return lambda: DataLoader(Noisy(), batch_size=8, shuffle=True, **arguments)


AS_IS = {"num_workers": 0}


@pytest.mark.parametrize(
    "settings",
    [
        {"loader.num_workers": 2, "loader.keep_memory": True},
        {"loader.num_workers": 3, "loader.prefetch_factor": 4, "loader.persistent_workers": True},
        {"loader.num_workers": 1, "loader.ahead": True},
        {"loader.pin_memory": True, "copy.non_blocking": True, "tf32": True, "cudnn_benchmark": True},
        {"threads": 1},
    ],
    ids=["workers", "persistent", "ahead", "gpu-only", "threads"],
)
def test_exact_settings_leave_every_loss_as_it_was(settings: dict[str, Any]) -> None:
    before, _ = train({}, noisy(**AS_IS))
    after, _ = train(settings, noisy(**AS_IS))
    assert len(before) == 24
    assert before == after


def test_fewer_workers_are_the_same_too() -> None:
    before, _ = train({}, noisy(num_workers=2, prefetch_factor=3, persistent_workers=True))
    assert (
        train({"loader.num_workers": 0}, noisy(num_workers=2, prefetch_factor=3, persistent_workers=True))[0] == before
    )


def test_draws_are_other_ones_where_they_are_not_tied() -> None:
    """What tying is for: with another number of workers torch seeds them otherwise."""
    before, _ = train({}, noisy(**AS_IS), tie=False)
    assert train({"loader.num_workers": 2}, noisy(**AS_IS), tie=False)[0] != before


def test_persistent_workers_draw_the_same_order_in_later_epochs() -> None:
    def order(settings: dict[str, Any]) -> Any:
        def work() -> Any:
            install(settings, [])
            torch.manual_seed(0)
            loader = DataLoader(range(32), batch_size=4, shuffle=True, num_workers=1)  # type: ignore[arg-type]
            seen = [torch.cat(list(loader)).tolist() for _ in range(3)]
            return seen, torch.rand(1).item()

        return elsewhere(work)

    assert order({}) == order({"loader.persistent_workers": True})


def fixed_seeds(number: int) -> None:
    np.random.seed(number)
    random.seed(torch.initial_seed())


class Counting:
    """Opens something, which need not be done again."""

    def __init__(self) -> None:
        self.calls = multiprocessing.get_context("fork").Value("i", 0)

    def __call__(self, number: int) -> None:
        with self.calls.get_lock():
            self.calls.value += 1


@pytest.mark.parametrize("init", [None, fixed_seeds, Counting()], ids=["plain", "seeding", "opening"])
@pytest.mark.parametrize("ahead", [False, True])
def test_workers_that_live_on_draw_as_new_ones_would(init: Any, ahead: bool) -> None:
    def made() -> DataLoader[Any]:
        loader = DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=2)
        loader.worker_init_fn = init  # as Lightning gives it
        return loader

    before, _ = train({}, made, epochs=3, tie=False)
    started = init.calls.value if isinstance(init, Counting) else 0
    after, _ = train({"loader.persistent_workers": True, "loader.ahead": ahead}, made, epochs=3, tie=False)
    assert before == after
    if isinstance(init, Counting):
        assert init.calls.value - started == 2, "once for each worker"


class Drawing(Dataset[Any]):
    """Has a generator of its own."""

    def __init__(self) -> None:
        self.draws = [np.random.default_rng(0)]

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((8,), float(self.draws[0].random())), index % 3


@pytest.mark.parametrize("now", [0, 1])
def test_generators_of_a_data_sets_own_go_on_as_they_did(now: int) -> None:
    def made() -> DataLoader[Any]:
        return DataLoader(Drawing(), batch_size=8, num_workers=now)

    before, _ = train({}, made, tie=False)
    after, notes = train({"loader.num_workers": 1, "loader.persistent_workers": True}, made, tie=False)
    assert before == after
    assert len(notes) == 1
    assert "a generator of its own" in notes[0]


def test_a_data_set_that_is_changed_between_epochs_is_seen_by_persistent_workers() -> None:
    def work() -> Any:
        notes: list[str] = []
        install({"loader.num_workers": 1, "loader.persistent_workers": True}, notes)
        dataset = Noisy(8)
        loader = DataLoader(dataset, batch_size=8)
        first = next(iter(loader))[0][:, 4:].sum().item()
        dataset.strength = 0.0
        return first, next(iter(loader))[0][:, 4:].sum().item(), notes

    first, second, notes = elsewhere(work)
    assert first > 0
    assert second == 0
    assert any("workers start anew" in note for note in notes)


class Scaling:
    """Collates, and is told something new for each epoch."""

    def __init__(self) -> None:
        self.factor = 1.0

    def __call__(self, samples: list[Any]) -> torch.Tensor:
        return torch.tensor(samples) * self.factor


def test_a_collate_function_that_is_changed_between_epochs_is_seen_by_persistent_workers() -> None:
    def work() -> Any:
        notes: list[str] = []
        install({"loader.num_workers": 1, "loader.persistent_workers": True}, notes)
        collate = Scaling()
        loader = DataLoader([1.0] * 8, batch_size=8, collate_fn=collate)  # type: ignore[arg-type]
        sums = [next(iter(loader)).sum().item()]
        collate.factor = 2.0
        sums += [next(iter(loader)).sum().item() for _ in range(2)]
        return sums, len(notes)

    assert elsewhere(work) == ([8.0, 16.0, 16.0], 1)


@pytest.mark.parametrize("part", [False, True])
def test_resident_tensors_are_cut_in_the_samplers_order(part: bool) -> None:
    def loader() -> DataLoader[Any]:
        made = torch.Generator().manual_seed(1)
        whole = TensorDataset(torch.randn(101, 8, generator=made), torch.arange(101) % 3)
        rows = torch.randperm(101, generator=made)[:90].tolist()
        return DataLoader(Subset(whole, rows) if part else whole, batch_size=8, shuffle=True)

    before, _ = train({}, loader, tie=False)
    assert train({"loader.resident": True}, loader, tie=False)[0] == before


def test_resident_on_the_device_that_the_script_moves_batches_to() -> None:
    """`meta` stands for the GPU: only the tensor that the script moves is kept there."""

    def work() -> Any:
        install({"loader.resident": True}, [])
        loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.arange(64)), batch_size=8, shuffle=True)
        plain, devices, seen = torch.Tensor.to, [], []
        for inputs, labels in loader:
            devices.append(inputs.device.type)
            inputs.to("meta")
            seen += labels.tolist()
        return devices, sorted(seen) == list(range(64)), torch.Tensor.to is plain

    assert elsewhere(work) == (["cpu"] * 3 + ["meta"] * 5, True, True)


def test_resident_tensors_that_are_written_in_are_sent_again_and_those_that_are_gone_are_let_go_of() -> None:
    """`meta` has no numbers: what is copied there is looked at."""

    def work() -> Any:
        install({"loader.resident": True}, [])
        copied: list[float] = []
        plain = torch.Tensor.to

        def to(self: torch.Tensor, *args: Any) -> Any:
            copied.extend([self.sum().item()] if len(self) == 64 and self.is_floating_point() else [])
            return plain(self, *args)

        torch.Tensor.to = to  # type: ignore[method-assign,assignment]
        data = torch.zeros(64)
        loader = DataLoader(TensorDataset(data), batch_size=8)
        for _ in range(3):
            for place, (batch,) in enumerate(loader):
                batch.to("meta")
                if place == 3 and len(copied) == 2:
                    data += 1.0  # while it is gone through
            if len(copied) == 1:
                data += 1.0  # between epochs
        gone = weakref.ref(data)
        del data, loader, batch
        gc.collect()
        return copied, gone() is None

    assert elsewhere(work) == ([0.0, 64.0, 128.0], True)


def test_batches_ahead_are_moved_where_the_script_moves_them_and_all_else_stays() -> None:
    def work() -> Any:
        places = Places()
        loader = DataLoader(Noisy(64), batch_size=8, num_workers=1)
        iterator = AheadIterator(iter(loader), places)
        kinds, labels = [], []
        for inputs, targets in iterator:
            kinds.append((inputs.device.type, targets.device.type))
            inputs.to("meta")
            labels += targets.tolist()
        iterator.stop()
        return kinds, labels

    kinds, labels = elsewhere(work)
    assert kinds == [("cpu", "cpu")] * 3 + [("meta", "cpu")] * 5
    assert labels == [index % 3 for index in range(64)]


def test_batches_that_a_script_moves_on_a_stream_of_its_own_are_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prefetcher of the script's own: it takes a batch, and then copies and works on another stream."""
    current = ["the step's"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current[0])
    for others, expected in (("another", (None, None)), ("the step's", (torch.device("meta"), None))):
        places = Places()
        for _ in range(3):
            inputs, _ = places.hand_out([torch.ones(2), torch.ones(2)])
            current[0] = others
            inputs.to("meta")
            current[0] = "the step's"
        places.conclude()
        assert places.devices == expected


HOST_USES: dict[str, Callable[[torch.Tensor], Any]] = {
    "an array": lambda labels: labels.numpy().sum(),
    "an array by numpy": np.asarray,
    "compared": lambda labels: torch.zeros(8) == labels,
    "one of them": lambda labels: labels[0],
    "one by one": list,
}


@pytest.mark.parametrize("use", HOST_USES.values(), ids=HOST_USES)
@pytest.mark.parametrize("setting", ["loader.ahead", "loader.resident"])
def test_tensors_that_a_script_uses_on_the_host_as_well_stay_there(use: Any, setting: str) -> None:
    def work() -> Any:
        install({setting: True}, [])
        before = {name: getattr(torch.Tensor, name) for name in ("to", "cuda", "numpy", "__eq__", "__getitem__")}
        dataset = TensorDataset(torch.randn(64, 8), torch.arange(64))
        loader = DataLoader(dataset, batch_size=8, num_workers=int(setting == "loader.ahead"))
        devices = []
        for inputs, labels in loader:
            inputs.to("meta"), labels.to("meta")
            use(labels)
            devices.append((inputs.device.type, labels.device.type))
        return devices, all(getattr(torch.Tensor, name) is one for name, one in before.items())

    assert elsewhere(work) == ([("cpu", "cpu")] * 3 + [("meta", "cpu")] * 5, True)


@pytest.mark.parametrize("setting", ["loader.ahead", "loader.resident"])
def test_tensors_that_a_script_collects_stay_on_the_host(setting: str) -> None:
    """`all_labels.append(labels)`, joined at the end of an epoch: a few on the host and the rest not would fail."""

    def work() -> Any:
        install({setting: True}, [])
        dataset = TensorDataset(torch.randn(64, 8), torch.arange(64))
        loader = DataLoader(dataset, batch_size=8, num_workers=int(setting == "loader.ahead"))
        devices, collected, first = [], [], None
        for inputs, labels in tqdm_like(loader):
            inputs.to("meta"), labels.to("meta")
            collected.append(labels)
            first = inputs if first is None else first  # one that is kept to be shown is not all of them
            devices.append(inputs.device.type)
        return devices, torch.cat(collected).tolist() == list(range(64))

    def tqdm_like(loader: Any) -> Any:
        for batch in loader:  # noqa: UP028 - what holds a batch until the next one comes is what is tested
            yield batch

    assert elsewhere(work) == (["cpu"] * 3 + ["meta"] * 5, True)


def test_a_loop_that_is_broken_off_lets_the_next_one_begin() -> None:
    def work() -> Any:
        install({"loader.num_workers": 2, "loader.persistent_workers": True, "loader.ahead": True}, [])
        loader = DataLoader(Noisy(64), batch_size=8)
        counts = []
        for stop in (3, 99, 2):
            count = 0
            for inputs, _ in loader:
                inputs.to("meta")
                count += 1
                if count == stop:
                    break
            counts.append(count)
        return counts

    assert elsewhere(work) == [3, 8, 2]


@pytest.mark.parametrize(
    "settings",
    [
        {"loader.persistent_workers": True},
        {"loader.ahead": True},
        {"loader.ahead": True, "loader.persistent_workers": True},
    ],
    ids=["persistent", "ahead", "both"],
)
def test_a_loop_within_a_loop_over_the_same_loader_leaves_the_outer_one_alone(settings: dict[str, Any]) -> None:
    def order(settings: dict[str, Any]) -> Any:
        def work() -> Any:
            install(settings, [])
            torch.manual_seed(0)
            loader = DataLoader(list(range(32)), batch_size=4, shuffle=True, num_workers=1)  # type: ignore[arg-type]
            seen: list[Any] = []
            for _ in range(2):
                for place, batch in enumerate(loader):
                    batch.to("meta")
                    seen.append(place)
                    if place % 3 == 2:  # a few images are shown now and then
                        next(iter(loader)).to("meta")
                    if len(seen) > 40:
                        return "it never ends"
            counted = iter(loader)
            for _ in range(len(loader)):
                next(counted)
            ids = {id(worker) for worker in getattr(loader._iterator, "_workers", ())}
            again = iter(loader)
            kept = {id(worker) for worker in getattr(loader._iterator, "_workers", ())} == ids
            seen += [next(counted, "over"), len(list(again)), kept, torch.rand(1).item()]
            return seen

        return elsewhere(work)

    found = order(settings)
    assert found == order({})
    assert found[:16] == [*range(8)] * 2


def test_workers_that_live_on_are_told_to_end_at_exit() -> None:
    """A loader that lives to the interpreter's end: torch may wait 5 s for each of its workers."""

    def work() -> Any:
        at_exit: list[Callable[[], None]] = []
        atexit.register = lambda function, *given: at_exit.append(functools.partial(function, *given))  # type: ignore[assignment]
        install({"loader.num_workers": 2, "loader.persistent_workers": True, "loader.ahead": True}, [])
        loader = DataLoader(Noisy(64), batch_size=8)
        for _ in range(2):
            for inputs, _ in loader:
                inputs.to("meta")
                if inputs.device.type == "meta":
                    break
        workers = list(loader._iterator._workers)  # type: ignore[union-attr]
        ours = [one for one in at_exit if one.func.__module__.startswith("fulltilt")]
        lived = [worker.is_alive() for worker in workers]
        for one in ours:
            one()
        return len(ours), lived, [worker.exitcode for worker in workers]

    assert elsewhere(work) == (1, [True, True], [0, 0])


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(10))


def _given(**arguments: Any) -> dict[str, Any]:
    plain = {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False, "pin_memory": False}
    return {**plain, "batch_size": 4, "batch_sampler": None, **arguments}


def test_workers_are_changed_only_where_that_changes_nothing_else() -> None:
    notes: list[str] = []
    wanted = {"num_workers": 8, "prefetch_factor": 4, "persistent_workers": True}
    many = changed_arguments(wanted, _given(dataset=range(1000)), note=notes.append)
    assert many == wanted
    assert not notes
    few = changed_arguments(wanted, _given(dataset=range(10)), note=notes.append)
    assert few["num_workers"] == 3, "three batches keep three workers busy"
    assert changed_arguments(wanted, _given(dataset=Stream()), note=notes.append) == {}
    assert changed_arguments(wanted, _given(dataset=Stream(), num_workers=2), note=notes.append) == {
        "prefetch_factor": 4
    }
    assert changed_arguments(wanted, _given(dataset=TensorDataset(torch.zeros(9))), note=notes.append) == {}
    assert len(set(notes)) == 2
    none = _given(dataset=range(9), num_workers=2, prefetch_factor=3, persistent_workers=True)
    assert changed_arguments({"num_workers": 0}, none, note=notes.append) == {
        "num_workers": 0, "prefetch_factor": None, "persistent_workers": False,
    }  # fmt: skip


class Archive(Dataset[Any]):
    def __init__(self, kept: Any) -> None:
        self.kept = {"file": [kept]}

    def __len__(self) -> int:
        return 100


def test_data_sets_that_keep_a_file_open_are_not_shared_between_workers(tmp_path: Path) -> None:
    """Forked workers have one place in it: each would read where another has sought."""
    path = tmp_path / "samples.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("one", b"1")
    notes: list[str] = []

    def workers(kept: Any, now: int = 0) -> Any:
        given = _given(dataset=Subset(Archive(kept), range(100)), num_workers=now)
        return changed_arguments({"num_workers": 4}, given, note=notes.append).get("num_workers", now)

    with path.open("rb") as file, zipfile.ZipFile(path) as archive, sqlite3.connect(":memory:") as connection:
        assert [workers(kept) for kept in (file, archive, connection)] == [0, 0, 0]
        assert workers(file, now=1) == 1
        assert workers(file, now=2) == 4, "the script does so itself"
        assert len(notes) == 4
        assert all("keeps a file open" in note for note in notes)
    assert [workers(kept) for kept in (file, archive, io.BytesIO(), path)] == [4] * 4


class Records(Dataset[Any]):
    def __init__(self, path: Path) -> None:
        self.file = path.open("rb")

    def __len__(self) -> int:
        return 1000


def test_workers_do_not_share_a_file_that_is_open(tmp_path: Path) -> None:
    (tmp_path / "records.bin").write_bytes(b"data")
    records, notes = Records(tmp_path / "records.bin"), list[str]()
    with records.file:
        for now in (0, 1):
            given = _given(dataset=records, num_workers=now)
            assert "num_workers" not in changed_arguments({"num_workers": 8}, given, note=notes.append)
        assert all("Records.file" in note for note in notes)
        several = _given(dataset=records, num_workers=2)  # the script sees to it that each has its own
        assert changed_arguments({"num_workers": 8}, several, note=notes.append) == {"num_workers": 8}
    assert changed_arguments({"num_workers": 8}, _given(dataset=records), note=notes.append) == {"num_workers": 8}
    assert len(notes) == 2


def test_fused_optimizers_and_those_that_can_not_be() -> None:
    def work() -> Any:
        notes: list[str] = []
        install({"fused": True}, notes)
        net = model()
        fused = torch.optim.AdamW(net.parameters()).param_groups[0]["fused"]
        own = torch.optim.SGD(net.parameters(), lr=0.1, foreach=True).param_groups[0]["fused"]
        whole = torch.nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False)
        other = torch.optim.Adam(iter([whole])).param_groups[0]["fused"]
        return fused, own, other, notes

    fused, own, other, notes = elsewhere(work)
    assert (fused, own) == (True, True)
    assert not other
    assert len(notes) == 1
    assert "Adam is left as it is" in notes[0]


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("dampening", [0.0, 0.1])
def test_a_fused_sgd_takes_weights_whose_first_gradient_comes_later(dampening: float, grouped: bool) -> None:
    """A script that thaws a part of its model after an epoch: long after its first losses were compared."""

    def trained(settings: dict[str, Any]) -> Any:
        def work() -> Any:
            install(settings, [])
            torch.manual_seed(0)
            net = model()
            group = {"params": list(net.parameters()), "dampening": dampening}
            more = {} if grouped else {"dampening": dampening}
            weights = [group] if grouped else net.parameters()
            optimizer = torch.optim.SGD(weights, lr=0.01, momentum=0.9, **more)
            inputs, first = torch.randn(4, 8), next(net.parameters())
            for step in range(6):
                first.requires_grad_(step >= 3)
                optimizer.zero_grad()
                net.eval()(inputs).square().mean().backward()
                optimizer.step()
            return [weight.flatten().tolist() for weight in net.parameters()], optimizer.param_groups[0]["fused"]

        return elsewhere(work)

    (one, fused), (other, _) = trained({"fused": True}), trained({})
    assert bool(fused) is not bool(dampening)
    for ours, its in zip(one, other, strict=True):
        assert ours == pytest.approx(its, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("settings", [{"channels_last": True}, {"channels_last": True, "autocast": "bfloat16"}])
def test_outputs_of_a_model_that_was_laid_out_anew_can_be_viewed_as_before(settings: dict[str, Any]) -> None:
    """In a script's evaluation, say, which comes long after its first losses were compared."""

    def work() -> Any:
        install(settings, [])
        net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 3))
        images = torch.randn(2, 3, 8, 8)
        net(images).view(-1).sum().backward()
        net.eval()
        with torch.no_grad():
            seen = net(images).view(-1)
        return net[0].weight.is_contiguous(memory_format=torch.channels_last), len(seen)

    assert elsewhere(work) == (True, 2 * 2 * 4 * 4)


class Plain(torch.optim.SGD):
    """Steps in its own way."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for weight in self.param_groups[0]["params"]:
            weight.sub_(self.param_groups[0]["lr"] * weight.grad)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, Plain])
@pytest.mark.parametrize("loaded", [False, True], ids=["new", "from a checkpoint"])
def test_fused_optimizers_and_gradients_that_are_scaled(kind: Any, loaded: bool) -> None:
    def trained(settings: dict[str, Any]) -> Any:
        def work() -> Any:
            torch.manual_seed(0)
            net = model()
            inputs = torch.randn(4, 8)

            def stepped(optimizer: Any) -> None:
                scaler = torch.amp.GradScaler("cpu")
                for _ in range(3):
                    optimizer.zero_grad()
                    scaler.scale(net.eval()(inputs).square().mean()).backward()
                    scaler.step(optimizer)
                    scaler.update()

            before = kind(net.parameters(), lr=0.01)
            stepped(before)
            install(settings, [])
            for again in range(2):
                after = kind(net.parameters(), lr=0.01)
                if loaded:
                    after.load_state_dict(before.state_dict())
                stepped(after)
                assert bool(after.param_groups[0]["fused"]) is (bool(settings) and kind is not Plain), again
            return [weight.flatten().tolist() for weight in net.parameters()]

        return elsewhere(work)

    for one, other in zip(trained({"fused": True}), trained({}), strict=True):
        assert one == pytest.approx(other, rel=1e-5, abs=1e-6)


def test_copies_that_do_not_wait_are_those_of_tensors_that_nobody_writes_in() -> None:
    class Pinned(torch.Tensor):
        def is_pinned(self, *_: Any) -> bool:
            return True

    waits: list[bool] = []

    def to(self: Any, *args: Any, non_blocking: bool = False) -> None:
        waits.append(not non_blocking)

    move = _without_waiting(to)
    batch, buffer = torch.zeros(2).as_subclass(Pinned), torch.zeros(2).as_subclass(Pinned)
    buffer.copy_(torch.ones(2))
    for tensor in (batch, buffer, torch.zeros(2)):
        move(tensor, "cuda")
    assert waits == [False, True, True]


def test_models_are_laid_out_widened_and_compiled() -> None:
    def work() -> Any:
        notes: list[str] = []
        install({"channels_last": True, "autocast": "bfloat16", "compile": True}, notes)
        torch._dynamo.config.suppress_errors = False
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 4))
        real = torch.compile
        made: list[dict[str, Any]] = []
        torch.compile = lambda call, **options: made.append(options) or real(call, backend="eager", dynamic=False)  # type: ignore[assignment,return-value]
        full, short = torch.randn(4, 3, 8, 8), torch.randn(2, 3, 8, 8)
        dtypes = {net(full).dtype for _ in range(3)} | {net(short).dtype}
        net.eval()
        twin = copy.deepcopy(net)
        with torch.no_grad():
            same = torch.equal(net(full), twin(full))
        layout = net[0].weight.is_contiguous(memory_format=torch.channels_last)
        return dtypes, same, layout, made, notes

    dtypes, same, layout, made, notes = elsewhere(work)
    assert dtypes == {torch.float32}
    assert same
    assert layout
    assert made == [{"dynamic": False, "mode": "default"}], "once, and for the full batches"
    assert notes == []


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8)), nn.Linear(8, 2)

    def forward(self, given: torch.Tensor) -> Any:
        return self.head(checkpoint(self.body, given, use_reentrant=False))


@pytest.mark.parametrize("settings", [{"compile": True}, {"verify.nudge": 0.01}], ids=["compile", "nudge"])
def test_what_a_backward_computes_again_is_computed_as_before(settings: dict[str, Any]) -> None:
    """A short batch's forward is not compiled, so its second one must not be; and weights are nudged once."""

    def work() -> Any:
        install(settings, [])
        real = torch.compile
        torch.compile = lambda call, **_: real(call, backend="aot_eager", dynamic=False)  # type: ignore[assignment]
        torch.manual_seed(0)
        net = Checkpointed()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        weights = []
        for samples in (4, 3, 4):
            loss = net(torch.randn(samples, 3)).square().sum()
            weights.append([weight.tolist() for weight in net.parameters()])
            loss.backward()
            optimizer.step()
        return [one == weights[0] for one in weights], net.body._compiled_call_impl is None

    assert elsewhere(work) == ([True] * 3, True)


@dataclass(frozen=True)
class Output:
    product: torch.Tensor
    parts: tuple[torch.Tensor, ...]


class Packing(nn.Linear):
    def forward(self, inputs: torch.Tensor) -> Any:
        product = super().forward(inputs)
        return Output(product, (product[:1], product[1:]))


def test_products_in_an_output_of_the_scripts_own_come_out_as_they_used_to() -> None:
    def work() -> Any:
        install({"autocast": "bfloat16"}, [])
        found = Packing(4, 4)(torch.randn(2, 4))
        return found.product.dtype, {part.dtype for part in found.parts}

    assert elsewhere(work) == (torch.float32, {torch.float32})


def test_the_state_of_an_optimizer_follows_the_layout_whenever_it_is_loaded() -> None:
    def work() -> Any:
        plain = nn.Conv2d(3, 4, 3)
        before = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
        plain(torch.randn(1, 3, 5, 5)).sum().backward()
        before.step()
        install({"channels_last": True}, [])
        net = nn.Conv2d(3, 4, 3)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        layouts = []
        for _ in range(2):
            optimizer.load_state_dict(before.state_dict())
            for _ in range(2):
                net(torch.randn(1, 3, 5, 5)).sum().backward()
                optimizer.step()
            state = optimizer.state[net.weight]["momentum_buffer"]
            layouts.append(state.is_contiguous(memory_format=torch.channels_last))
        return layouts

    assert elsewhere(work) == [True, True]


def test_a_model_that_another_thread_calls_meanwhile_is_left_alone_to_its_end() -> None:
    class Waiting(nn.Module):
        def __init__(self, begun: threading.Event, goes_on: threading.Event) -> None:
            super().__init__()
            self.layer, self.events, self.seen = nn.Linear(4, 4), (begun, goes_on), torch.float64

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            self.events[0].set()
            assert self.events[1].wait(20)
            product = self.layer(inputs)
            self.seen = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else product.dtype
            return product  # type: ignore[no-any-return]

    def work() -> Any:
        install({"autocast": "bfloat16", "channels_last": True}, [])
        one, two = [threading.Event() for _ in range(2)], [threading.Event() for _ in range(2)]
        first, second = Waiting(*one), Waiting(*two)
        layer_calls: list[Any] = []
        second.layer.register_forward_hook(lambda *_: layer_calls.append(torch.is_autocast_enabled("cpu")))
        threads = [threading.Thread(target=net, args=(torch.randn(2, 4),)) for net in (first, second)]
        for thread, (begun, _) in zip(threads, (one, two), strict=True):
            thread.start()
            assert begun.wait(20)
        for thread, (_, goes_on) in zip(threads, (one, two), strict=True):
            goes_on.set()
            thread.join(20)
        return first.seen, second.seen, layer_calls

    assert elsewhere(work) == (torch.bfloat16, torch.float32, [False])


class Speaking(nn.Linear):
    """Says of what kind its product was."""

    def forward(self, inputs: torch.Tensor) -> Any:
        product = super().forward(inputs)
        return {"product": product, "kind": product.dtype}


def test_products_in_half_precision_come_out_as_they_used_to() -> None:
    def work() -> Any:
        install({"autocast": "bfloat16"}, [])
        net = Speaking(4, 4)
        own = net(torch.randn(2, 4))
        with torch.autocast("cpu", torch.float16):
            others = net(torch.randn(2, 4))
        loss = nn.CrossEntropyLoss()(own["product"], torch.tensor([0, 1]))
        loss.backward()
        return own["product"].dtype, own["kind"], others["product"].dtype, loss.dtype, net.weight.grad.dtype  # type: ignore[union-attr]

    half = torch.float16  # the script's own choice is left alone
    assert elsewhere(work) == (torch.float32, torch.bfloat16, half, torch.float32, torch.float32)


def test_a_compiler_that_fails_leaves_the_model_as_it_was() -> None:
    def work() -> Any:
        notes: list[str] = []
        install({"compile": True}, notes)

        def broken(graph: Any, inputs: Any) -> Any:
            raise RuntimeError("no such instruction")

        real = torch.compile
        torch.compile = lambda call, **options: real(call, backend=broken)  # type: ignore[assignment]
        net = model()
        inputs = torch.randn(2, 8)
        out = [net(inputs).shape for _ in range(2)]
        return out, notes

    out, notes = elsewhere(work)
    assert out == [torch.Size([2, 3])] * 2
    assert len(notes) == 1
    assert "left as it is" in notes[0]


def test_jpegs_decoded_by_another_way_have_the_same_pixels() -> None:
    from fulltilt.bench.photos import photos

    files = list(photos(2, size=(160, 120), target_bytes=12_000))
    grey = io.BytesIO()
    Image.new("L", (40, 30), 99).save(grey, "JPEG")
    before = [np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) for data in (*files, grey.getvalue())]

    def work() -> Any:
        notes: list[str] = []
        install({"decode": True}, notes)
        after = [np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) for data in (*files, grey.getvalue())]
        small = Image.open(io.BytesIO(files[0]))
        small.draft("RGB", (50, 40))
        cut = None
        try:
            Image.open(io.BytesIO(files[0][:5000])).load()
        except OSError as error:
            cut = str(error)
        return after, small.convert("RGB").size, cut, notes

    after, small, cut, notes = elsewhere(work)
    for one, other in zip(before, after, strict=True):
        assert one.shape == other.shape
        assert np.abs(one.astype(int) - other).max() <= 2  # two builds of one library
    assert max(small) < 100, "a draft stays one"
    assert "truncated" in cut, "Pillow's own error"
    assert notes == []
