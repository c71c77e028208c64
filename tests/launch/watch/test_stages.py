"""Where a loader's time goes, timed in its workers."""

from __future__ import annotations

import copy
import pickle
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from fulltilt.launch.command import parse
from fulltilt.launch.observe import observe
from fulltilt.launch.watch.stages import LEAST_APART, MOST_APART, Stages, Tally, Timed, apart, read
from fulltilt.launch.watch.transforms import names

IMAGES = str(Path(__file__).parents[1] / "scripts" / "images.py")


@pytest.mark.parametrize("words", [["--workers", "0"], ["--workers", "2"], ["--workers", "1", "--context", "spawn"]])
def test_stages_by_name(words: list[str]) -> None:
    seen = observe(parse([IMAGES, *words]))
    assert seen.exit_status == 0, seen.notes
    (loader,) = seen.loaders
    assert loader.transforms == ("Blur", "to_tensor")
    stages = {stage.name: stage for stage in loader.stages}
    assert {"read", "decode", "Blur", "to_tensor", "label", "item", "collate"} <= stages.keys()
    assert ("hand over" in stages) == (words[1] != "0")
    assert list(stages)[:2] == ["read", "decode"]
    slowest = max(loader.stages, key=lambda stage: stage.seconds)
    assert slowest.name == "Blur"
    assert slowest.seconds >= 0.004
    assert slowest.cpu_seconds is not None
    assert slowest.cpu_seconds < 0.001  # it sleeps
    assert loader.starts == (0 if words[1] == "0" else 2)


def test_totals_of_several_processes_are_per_sample(tmp_path: Path) -> None:
    (tmp_path / "stages-0-11.json").write_text('{"samples": 2, "spent": {"Blur": [4000000000, 2000000000]}}')
    (tmp_path / "stages-0-12.json").write_text('{"samples": 2, "spent": {"Blur": [4000000000, 0], "read": [8, 0]}}')
    (tmp_path / "stages-1-12.json").write_text('{"samples": 9, "spent": {}}')
    first, second = read(tmp_path, "0")
    assert (first.name, second.name) == ("read", "Blur")
    assert (second.seconds, second.cpu_seconds) == (2.0, 0.5)
    assert read(tmp_path, "7") == ()


@pytest.mark.parametrize(
    ("items_ms", "samples", "item_ms"),
    [
        ([1, 1, 1, 1, 170], 64, 4),
        ([1, 1, 170], 48, 172),
        ([1, 1, 170, 1, 170], 80, 343),
        ([1, 20, 30, 1, 60], 80, 112),
    ],
    ids=["once", "too few", "comes again", "uneven"],
)
def test_a_core_that_is_taken_away_once_is_no_part_of_a_loader(items_ms: list[int], samples: int, item_ms: int) -> None:
    tally = Tally()
    for item in items_ms:
        before = {name: list(spent) for name, spent in tally.spent.items()}
        tally.samples += 16
        tally.add("item", item * 1_000_000, 1_000_000)
        tally.add("Blur", 20_000_000, 20_000_000)
        tally.batch(16, (item + 20) * 1_000_000, before)
    kept, spent = tally.usual()
    assert kept == samples
    assert spent["item"][0] == item_ms * 1_000_000
    assert spent["Blur"] == [20_000_000 * kept // 16] * 2


def test_stages_within_stages_count_once(tmp_path: Path) -> None:
    stages = Stages(tmp_path)

    def inner() -> None:
        pass

    def outer() -> None:
        Timed(stages, "inner", inner)()

    stages.begin("0", 4)
    Timed(stages, "outer", outer)()
    stages.end()
    Timed(stages, "outer", outer)()  # outside of a fetch: not counted
    spent = stages.tallies["0"].spent
    assert set(spent) == {"item", "outer", "inner"}
    assert all(wall > 0 for wall, _ in spent.values())
    assert stages.tallies["0"].samples == 4


def test_what_was_put_in_place_of_a_function_is_that_function_when_it_is_copied(tmp_path: Path) -> None:
    timed = Timed(Stages(tmp_path), "sum", sum)
    assert pickle.loads(pickle.dumps(timed)) is sum
    assert copy.deepcopy(timed) is sum
    assert timed([1, 2]) == 3


def test_transforms_are_found_in_wrapped_datasets() -> None:
    class Compose:
        def __init__(self, *members: object) -> None:
            self.transforms = list(members)

        def __call__(self, image: object) -> object:
            return image

    class Flip:
        def __call__(self, image: object) -> object:
            return image

    def crop(image: object) -> object:
        return image

    class Data:
        def __init__(self) -> None:
            self.transform = Compose(Flip(), Compose(crop))
            self.loader = open
            self.labels = [1, 2]

        def __getitem__(self, index: int) -> int:
            return index

    class Subset:
        def __init__(self, dataset: Data) -> None:
            self.dataset = dataset

    assert names(Subset(Data())) == ("Flip", "crop")


@pytest.mark.parametrize(("switches", "batch_ms", "expected"), [
    (3, 0.01, MOST_APART),  # tensors that lie in memory
    (3, 0.3, 9),
    (320, 160.0, LEAST_APART),  # images that are read, decoded and changed
])  # fmt: skip
def test_timing_batches_costs_the_loop_half_a_percent(switches: int, batch_ms: float, expected: int) -> None:
    assert apart(switches, round(batch_ms * 1e6)) == expected


def test_in_a_worker_every_batch_is_timed_and_elsewhere_the_first_of_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A clock of its own, 5 µs from look to look: on a real one a batch takes as long as this process waits for a core.
    ticks = count(step=5000)
    hours = SimpleNamespace(
        perf_counter_ns=lambda: next(ticks), thread_time_ns=lambda: next(ticks), monotonic=time.monotonic
    )
    monkeypatch.setattr("fulltilt.launch.watch.stages.time", hours)
    stages = Stages(tmp_path)
    timed = []
    for _ in range(3 * MOST_APART):
        timed.append(not stages.skips())
        if timed[-1]:
            stages.begin("0", 4)
            stages.end()
    assert timed[0]
    assert sum(timed) == 3
    stages.in_worker = True
    assert not any(stages.skips() for _ in range(10))


WHOLE = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset
class Batches(Dataset):
    def __len__(self): return 40
    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.full((16, 4), float(index))
def joined(graphs): return torch.cat(graphs)
if __name__ == "__main__":
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    size = {"None": {"batch_size": None}, "2": {"batch_size": 2, "collate_fn": joined}}[sys.argv[1]]
    for batch in DataLoader(Batches(), **size, num_workers=int(sys.argv[2])):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
"""


@pytest.mark.parametrize("words", [["None", "0"], ["None", "1"], ["2", "0"]])
def test_stages_count_samples_as_the_loop_does(words: list[str], tmp_path: Path) -> None:
    """Of whole batches, and of graphs that are joined: else the loader's work would be 16 times what it is."""
    (tmp_path / "train.py").write_text(WHOLE)
    seen = observe(parse([str(tmp_path / "train.py"), *words]), full=True)
    assert seen.exit_status == 0, seen.notes
    assert seen.samples_per_second is not None
    (loader,) = seen.loaders
    (item,) = (stage for stage in loader.stages if stage.name == "item")
    assert 0.01 <= 16 * item.seconds < 0.03
