"""What an observation says of the model and of torch's own settings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from fulltilt.launch.job import Job
from fulltilt.launch.watch.launches import Launched
from fulltilt.launch.watch.loaders import loader_seen
from fulltilt.launch.watch.replay import epoch_length
from fulltilt.launch.watch.seen import observation, start_seconds, training
from fulltilt.launch.watch.watch import Watch
from fulltilt.measure.timeline import PHASES, Record


@pytest.fixture
def matmul() -> Iterator[object]:
    found = torch.backends.cuda.matmul
    before = found.fp32_precision
    yield found
    found.fp32_precision = before


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    found = Watch(Job(out=str(tmp_path)))
    found.model = torch.nn.Linear(2, 2)
    found.optimizer = torch.optim.SGD(found.model.parameters(), lr=0.1)
    return found


@pytest.mark.parametrize(("name", "value"), [("allow_tf32", True), ("fp32_precision", "tf32")])
def test_tf32_is_seen_by_whichever_name_it_was_set(matmul: object, name: str, value: object, watch: Watch) -> None:
    matmul.fp32_precision = "ieee"  # type: ignore[attr-defined]
    found = training(watch)
    assert found is not None
    assert not found.tf32
    setattr(matmul, name, value)
    found = training(watch)
    assert found is not None
    assert found.tf32


@pytest.mark.parametrize(("graphs", "seconds"), [(0, 0.004), (1, None)])
def test_kernels_that_a_graph_may_hide_are_not_added_up(watch: Watch, graphs: int, seconds: float | None) -> None:
    watch.launched = Launched(count=20, graphs=graphs, kernel_seconds=0.004, fusable_seconds=0.001)
    found = training(watch)
    assert found is not None
    assert (found.launches, found.kernel_seconds) == (20, seconds)


def test_workers_that_live_on_are_started_once() -> None:
    waits = [3_000_000_000, 200_000_000, 400_000_000]
    assert start_seconds([], live_on=True, making=0.1) is None
    assert start_seconds(waits, live_on=False, making=0.1) == 0.4
    assert start_seconds(waits, live_on=True, making=0.1) == pytest.approx(0.3)
    assert start_seconds(waits[:1], live_on=True, making=0.1) == 0.1, "what a worker needs for a batch"
    assert start_seconds(waits[:1], live_on=True, making=5.0) == 3.0
    assert start_seconds(waits[:1], live_on=True, making=0.0) == 3.0, "unknown"


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("steps", range(57, 73))
def test_the_rate_of_workers_that_give_bursts_is_had_over_whole_ones(watch: Watch, steps: int) -> None:
    loader = DataLoader(TensorDataset(torch.zeros(4)), num_workers=8, prefetch_factor=2)
    loader_seen(watch, loader).role = "train"
    wait = PHASES.index("data wait")
    for number in range(steps):  # 16 lay ready, then eight come every 80 ms
        spent = [0] * len(PHASES)
        spent[wait] = 80_000_000 if number >= 16 and number % 8 == 0 else 0
        spent[PHASES.index("forward")] = 1000
        record = Record(number, [(spent, True, False)], False)
        record.samples = 1
        watch.records.append(record)
    found = observation(watch)
    assert len(found.steps) % 8 == 0
    assert found.samples_per_second == pytest.approx(100, rel=0.001)


class Unsure(IterableDataset[torch.Tensor]):
    """Trains well, as nobody asks how long it is."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.zeros(4, 2))

    def __len__(self) -> int:
        raise ValueError("not counted yet")


def test_a_loader_whose_length_fails_is_a_loader(watch: Watch) -> None:
    loader = DataLoader(Unsure(), batch_size=2)
    facts = loader_seen(watch, loader).facts
    assert facts is not None
    assert (facts.dataset, facts.samples, facts.batch_size, facts.iterable) == ("Unsure", None, 2, True)
    assert watch.notes == ["the length of Unsure is not known: ValueError: not counted yet"]
    assert epoch_length(loader) == math.inf, "a replay must not fail where the script does not"


def test_a_loader_whose_data_set_answers_with_an_error_is_one_too(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def names(_: object) -> tuple[str, ...]:
        raise ValueError("shut")

    monkeypatch.setattr("fulltilt.launch.watch.seen.names", names)
    facts = loader_seen(watch, DataLoader(TensorDataset(torch.zeros(4)), num_workers=2)).facts
    assert facts is not None
    assert (facts.dataset, facts.num_workers) == ("TensorDataset", 2)
    assert watch.notes == ["a loader could not be described in full: ValueError: shut"]
