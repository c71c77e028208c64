"""Settings put upon small training loops, each in a process of its own; losses compared to the last bit."""

from __future__ import annotations

import atexit
import copy
import functools
import io
import multiprocessing
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from fulltilt.launch.apply.batches import AheadIterator, Places
from fulltilt.launch.apply.install import install
from fulltilt.launch.apply.loader import changed_arguments
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


class Shortened:
    length = 16

    def __call__(self, batch: list[Any]) -> torch.Tensor:
        return torch.stack([sample[0][: self.length] for sample in batch])


def test_a_collate_fn_that_is_changed_between_epochs_is_seen_by_persistent_workers() -> None:
    def work() -> Any:
        notes: list[str] = []
        install({"loader.persistent_workers": True}, notes)
        shortened = Shortened()
        loader = DataLoader(Noisy(8), batch_size=8, num_workers=1, collate_fn=shortened)
        widths = []
        for length in (2, 2, 3):
            shortened.length = length
            widths.append(next(iter(loader)).shape[1])
        return widths, notes

    widths, notes = elsewhere(work)
    assert widths == [2, 2, 3]
    assert len([note for note in notes if "workers start anew" in note]) == 1


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

    assert elsewhere(work) == (["cpu"] + ["meta"] * 7, True, True)


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
    assert kinds == [("cpu", "cpu")] + [("meta", "cpu")] * 7
    assert labels == [index % 3 for index in range(64)]


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
