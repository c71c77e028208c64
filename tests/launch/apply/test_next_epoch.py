"""Epochs that workers begin ahead of time: the same batches, to the last bit, as new workers would have made."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.launch.apply.test_install import Noisy, elsewhere
from tests.launch.apply.test_install import _tie_draws as tie_draws
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler, WeightedRandomSampler

from fulltilt.launch.apply import next_epoch
from fulltilt.launch.apply.install import install
from fulltilt.launch.apply.next_epoch import NextEpoch, draws_between, fits
from fulltilt.machine.memory import SharedMemory

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

LIVING = {"loader.persistent_workers": True}


def counted() -> list[bool]:
    """Which epochs were begun ahead, from here on."""
    asked: list[bool] = []
    original = NextEpoch.goes_on

    def goes_on(self: NextEpoch, inner: Any) -> bool:
        asked.append(original(self, inner))
        return asked[-1]

    NextEpoch.goes_on = goes_on  # type: ignore[method-assign]
    return asked


def epochs(
    settings: dict[str, Any],
    made: Callable[[], DataLoader[Any]],
    between: Callable[[int, Any], None] = lambda _epoch, _loader: None,
    *,
    stop: tuple[int, ...] = (),
    count: int = 5,
    tie: bool = False,
) -> tuple[list[Any], list[bool]]:
    """All that a loop is given, and which of its epochs were begun ahead."""

    def work() -> tuple[list[Any], list[bool]]:
        install(settings, [])
        if tie:
            tie_draws()
        asked = counted()
        torch.manual_seed(3), random.seed(3), np.random.seed(3)
        loader = made()
        seen: list[Any] = []
        for epoch in range(count):
            for place, (inputs, targets) in enumerate(loader):
                if settings.get("loader.ahead"):
                    inputs.to("meta")
                seen.append("meta" if inputs.device.type == "meta" else inputs.tolist())
                seen.append(targets.tolist())
                if stop and place + 1 == stop[epoch]:
                    break
            between(epoch, loader)
            seen.append(torch.rand(1).item() if epoch == count - 1 else None)
        return seen, asked

    found: tuple[list[Any], list[bool]] = elsewhere(work)
    return found


def noisy(length: int = 96, **arguments: Any) -> Callable[[], DataLoader[Any]]:
    return lambda: DataLoader(Noisy(length), **{"batch_size": 8, "shuffle": True, "num_workers": 2, **arguments})


def seeding(number: int) -> None:
    np.random.seed(number)
    random.seed(torch.initial_seed())


@pytest.mark.parametrize(
    "made",
    [
        noisy(),
        noisy(100, num_workers=3, prefetch_factor=4),
        noisy(100, drop_last=True),
        noisy(20, num_workers=4),
        noisy(8),
        noisy(num_workers=1, prefetch_factor=1),
        noisy(worker_init_fn=seeding),
        lambda: DataLoader(Noisy(), 8, num_workers=2, sampler=RandomSampler(Noisy(), num_samples=60)),
    ],
    ids=["plain", "many", "dropped", "short", "one batch", "one worker", "seeding", "a part of them"],
)
def test_batches_are_those_of_new_workers(made: Callable[[], DataLoader[Any]]) -> None:
    before, _ = epochs({}, made)
    after, asked = epochs(LIVING, made)
    assert before == after
    assert asked == [False, True, True, True], "what others draw in between is learnt from the first"


def evaluated(_: int, loader: Any) -> None:
    others = DataLoader(loader.dataset, batch_size=16, num_workers=1)
    for _batch in others:
        pass


def sometimes_draws(epoch: int, _: Any) -> None:
    torch.rand(epoch % 2)  # an image is shown after every other epoch


def sometimes_evaluated(epoch: int, loader: Any) -> None:
    if epoch % 4 == 2:
        evaluated(epoch, loader)


def changes(epoch: int, loader: Any) -> None:
    loader.dataset.strength = 1.0 + (epoch == 2)


def grows(epoch: int, loader: Any) -> None:
    loader.dataset.length += 8 * (epoch == 2)


def test_as_verified_with_draws_tied_to_samples() -> None:
    """More workers, and the same batches: of those that are begun ahead, too."""
    before, _ = epochs({}, noisy(num_workers=1), tie=True)
    after, asked = epochs({**LIVING, "loader.num_workers": 3}, noisy(num_workers=1), tie=True)
    assert before == after
    assert asked == [False, True, True, True]


NOT_FORKED = """
import json, sys
import torch
from torch.utils.data import DataLoader, Dataset
from fulltilt.launch.apply.install import install
from fulltilt.launch.apply.next_epoch import NextEpoch


class Drawn(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.rand(2), index


if __name__ == "__main__":
    asked, original = [], NextEpoch.goes_on
    NextEpoch.goes_on = lambda self, inner: asked.append(original(self, inner)) or asked[-1]
    install(json.loads(sys.argv[1]), [])
    torch.manual_seed(3)
    loader = DataLoader(Drawn(), batch_size=8, shuffle=True, num_workers=1, multiprocessing_context="forkserver")
    seen = [(draws.tolist(), numbers.tolist()) for _ in range(3) for draws, numbers in loader]
    print(json.dumps([seen, asked]))
"""


def test_workers_that_are_not_forked(tmp_path: Path) -> None:
    """In a script of its own: the server that forks them has to find their data set."""
    script = tmp_path / "train.py"
    script.write_text(NOT_FORKED)
    found = [
        subprocess.run([sys.executable, script, json.dumps(one)], check=True, capture_output=True, timeout=120)
        for one in ({}, LIVING)
    ]
    (before, _), (after, asked) = (json.loads(one.stdout) for one in found)
    assert len(before) == 15
    assert before == after
    assert asked == [False, True]


@pytest.mark.parametrize(
    ("between", "ahead"),
    [
        (evaluated, [False, True, True, True]),
        (sometimes_draws, [False, False, True, False]),
        (lambda *_: torch.rand(3, 5), [False] * 4),
        (changes, [False, True]),
        (grows, [False, True, True]),
    ],
    ids=["evaluates", "draws now and then", "draws otherwise", "changes its data", "has more of them"],
)
def test_what_lies_between_epochs_is_predicted_or_makes_no_difference(between: Any, ahead: list[bool]) -> None:
    before, _ = epochs({}, noisy(), between)
    after, asked = epochs(LIVING, noisy(), between)
    assert before == after
    assert asked == ahead, "new workers, which are started for other data, are not asked"


def test_an_evaluation_now_and_then_spoils_one_epoch_each() -> None:
    before, _ = epochs({}, noisy(), sometimes_evaluated, count=10)
    after, asked = epochs(LIVING, noisy(), sometimes_evaluated, count=10)
    assert before == after
    assert asked == [False, True, False, True, True, True, False, True, True]


def set_anew(epoch: int, loader: Any) -> None:
    if epoch == 2:
        loader.generator = torch.Generator().manual_seed(5)


def sampled_anew(epoch: int, loader: Any) -> None:
    if epoch == 2:
        loader.sampler.generator = torch.Generator().manual_seed(5)


def replaced(epoch: int, loader: Any) -> None:
    loader.sampler.replacement = epoch >= 2


def ordered(epoch: int, loader: Any) -> None:
    if epoch == 2:
        loader.batch_sampler.sampler = SequentialSampler(loader.dataset)


def larger(epoch: int, loader: Any) -> None:
    loader.batch_sampler.batch_size = 8 + (epoch >= 2)


@pytest.mark.parametrize("between", [set_anew, sampled_anew, replaced, ordered, larger])
def test_what_is_set_at_samplers_between_epochs_is_heeded(between: Any) -> None:
    before, _ = epochs({}, noisy(), between)
    after, asked = epochs(LIVING, noisy(), between)
    assert before == after
    assert asked == [False, True, False, between is larger], "which can be predicted again"


def test_an_order_over_something_else_than_the_data_that_grows() -> None:
    def grown(epoch: int, loader: Any) -> None:
        loader.sampler.data_source.extend(range(60, 60 + 8 * (epoch == 2)))

    def made() -> DataLoader[Any]:
        return DataLoader(Noisy(), 8, num_workers=2, sampler=RandomSampler(list(range(60)), num_samples=40))

    before, _ = epochs({}, made, grown)
    after, asked = epochs(LIVING, made, grown)
    assert before == after
    assert asked == [False, True, False, True]


def passes(settings: dict[str, Any], loop: Callable[[Any, int], list[Any]], **arguments: Any) -> tuple[Any, list[bool]]:
    """What `loop` finds in each of five epochs, and which of them were begun ahead."""

    def work() -> tuple[Any, list[bool]]:
        install(settings, [])
        asked = counted()
        torch.manual_seed(3), random.seed(3), np.random.seed(3)
        loader = noisy(**arguments)()
        return [(loop(loader, epoch), torch.get_rng_state().sum().item()) for epoch in range(5)], asked

    found: tuple[Any, list[bool]] = elsewhere(work)
    return found


def with_one_seed(loader: Any, _: int) -> list[Any]:
    torch.manual_seed(0)
    batches = iter(loader)
    torch.manual_seed(0)
    return [inputs.tolist() for inputs, _ in batches]


def in_smaller_ones(loader: Any, epoch: int) -> list[Any]:
    found = []
    for place, (inputs, _) in enumerate(loader):
        found.append(inputs.tolist())
        if epoch == 3 and place == 2:
            loader.batch_sampler.batch_size = 5
    return found


def emptied(loader: Any, _: int) -> list[Any]:
    found = []
    for inputs, _targets in loader:
        found.append(inputs.tolist())
        loader.dataset.length = 0
    loader.dataset.length = 96
    return found


def in_two_loops(loader: Any, _: int) -> list[Any]:
    return [(inputs.tolist(), others.tolist()) for (inputs, _), (others, _) in zip(loader, loader, strict=True)]


@pytest.mark.parametrize(
    ("loop", "ahead"),
    [
        (with_one_seed, [False, True, True, True]),
        (in_smaller_ones, [False, True, True, True]),
        (emptied, [False] * 4),
        (in_two_loops, [False, True, True, True]),
    ],
    ids=["the same seed in each", "smaller batches within one", "data emptied within one", "two loops at once"],
)
def test_loops_that_do_something_odd(loop: Any, ahead: list[bool]) -> None:
    before, _ = passes({}, loop)
    after, asked = passes(LIVING, loop)
    assert before == after
    assert asked == ahead


def caught(loader: Any, epoch: int) -> list[Any]:
    found = []
    try:
        for place, (inputs, _) in enumerate(loader):
            found.append(inputs.tolist())
            if epoch == 2 and place == 9:  # as Ctrl-C does, which all processes in the foreground are told of
                for process in multiprocessing.active_children():
                    os.kill(process.pid or 0, signal.SIGINT)
                    process.join(10)
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    return found


def test_workers_that_were_ended_by_an_interrupt_are_started_anew() -> None:
    before, _ = passes({}, caught)
    after, asked = passes(LIVING, caught)
    assert before == after
    assert asked == [False, True, True], "new workers are not asked"


def interrupted(loader: Any, epoch: int) -> list[Any]:
    """In the moment when the next epoch's indices are taken and not yet given to a worker."""
    batches = iter(loader)
    found = [next(batches)[0].tolist() for _ in range(11)]
    queues = [] if loader._iterator is None else loader._iterator._index_queues
    if epoch != 2:
        found += [inputs.tolist() for inputs, _ in batches]
    elif not queues:
        next(batches)
    else:
        loader._iterator._index_queues = Interrupting()
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        loader._iterator._index_queues = queues
    return found


class Interrupting:
    def __getitem__(self, _: int) -> None:
        raise KeyboardInterrupt


def test_an_interrupt_loses_no_batch_of_the_next_epoch() -> None:
    before, _ = passes({}, interrupted)
    after, asked = passes(LIVING, interrupted)
    assert before == after
    assert asked == [False, True, False, True]


def test_what_was_loaded_in_vain_counts_where_new_workers_start() -> None:
    """Else data that change with each epoch would have first batches of each loaded twice, for good."""

    def work() -> list[bool]:
        install(LIVING, [])
        predicted: list[bool] = []
        original = NextEpoch.ended

        def ended(self: NextEpoch, inner: Any) -> Any:
            found = original(self, inner)
            if self._end == inner._send_idx:  # asked for the first time
                predicted.append(self._predicted is not None)
            return found

        NextEpoch.ended = ended  # type: ignore[method-assign]
        loader = noisy()()
        for epoch in range(8):
            loader.dataset.strength = float(max(epoch, 2))
            for _batch in loader:
                pass
        return predicted

    found = elsewhere(work)
    assert any(found)
    assert not any(found[-3:])


def test_loops_that_are_broken_off() -> None:
    """Before and after the workers have begun with the next epoch."""
    for stop in ((0, 3, 0, 11, 0), (0, 0, 11, 10, 0), (0, 0, 12, 0, 2)):
        before, _ = epochs({}, noisy(), stop=stop)
        after, _ = epochs(LIVING, noisy(), stop=stop)
        assert before == after


def test_batches_that_are_brought_ahead_are_the_same() -> None:
    before, _ = epochs({}, noisy())
    after, asked = epochs({**LIVING, "loader.ahead": True}, noisy())
    assert asked == [False, True, True, True]
    assert len(after) == len(before)
    assert [one for one in after if one == "meta"]
    assert all(one in (other, "meta") for one, other in zip(after, before, strict=True))


STAGE = multiprocessing.get_context("fork").Value("i", 0)


class Staged(Noisy):
    """Its samples are others once the script says so, without a word to the workers."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        inputs, target = super().__getitem__(index)
        return inputs + STAGE.value, target


def test_values_that_the_script_shares_with_its_workers_are_new_in_each_epoch() -> None:
    def made() -> DataLoader[Any]:
        STAGE.value = 0
        return DataLoader(Staged(), batch_size=8, shuffle=True, num_workers=2)

    def told(epoch: int, _: Any) -> None:
        STAGE.value = epoch

    before, _ = epochs({}, made, told)
    after, asked = epochs(LIVING, made, told)
    assert before == after
    assert not any(asked)


@pytest.mark.parametrize(("free", "fits_in"), [(70, False), (80, True), (None, True)])
def test_batches_wait_only_where_shared_memory_has_room_for_an_evaluations(free: int | None, fits_in: bool) -> None:
    def work() -> list[bool]:
        install(LIVING, [])
        asked = counted()
        found = itertools.chain([100], itertools.repeat(free))
        next_epoch.read_shared_memory = lambda: (  # type: ignore[assignment]
            None if free is None else SharedMemory(path="/dev/shm", total_bytes=200, free_bytes=next(found) or 0)
        )
        loader = noisy()()
        for _ in range(4):
            for _batch in loader:
                pass
        return asked

    assert elsewhere(work) == [False, fits_in, fits_in]


class Slow(Dataset[Any]):
    """Samples that say when they were done."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.02)
        return torch.tensor(time.monotonic(), dtype=torch.float64), index


def test_an_epochs_first_batch_is_not_waited_for() -> None:
    def first_batches(settings: dict[str, Any]) -> Any:
        """How long before the loop asked for it a batch was whole, and how long the loop waited: medians of epochs."""

        def work() -> list[float]:
            install(settings, [])
            loader = DataLoader(Slow(), batch_size=8, shuffle=True, num_workers=4)
            found = []
            for _ in range(5):
                asked = time.monotonic()
                for place, (done, _numbers) in enumerate(loader):
                    if not place:
                        found.append((asked - done.max().item(), time.monotonic() - asked))
                    time.sleep(0.06)
            return [statistics.median(column) for column in zip(*found[2:], strict=True)]

        return elsewhere(work)

    ready_before, waited_before = first_batches({})
    ready, waited = first_batches(LIVING)
    assert ready_before < -0.15, "eight samples of 20 ms, and new workers"
    assert ready > 0
    assert waited < waited_before


@pytest.mark.parametrize(
    ("loader", "expected"),
    [
        (DataLoader(Noisy(), shuffle=True), True),
        (DataLoader(Noisy()), False),
        (DataLoader(Noisy(), shuffle=True, generator=torch.Generator()), False),
        (DataLoader(Noisy(), sampler=RandomSampler(Noisy(), replacement=True)), False),
        (DataLoader(Noisy(), sampler=RandomSampler(Noisy(), generator=torch.Generator())), False),
        (DataLoader(Noisy(), sampler=WeightedRandomSampler([1.0] * 96, 96)), False),
        (DataLoader(Noisy(), batch_sampler=BatchSampler(SequentialSampler(Noisy()), 4, drop_last=False)), False),
        (DataLoader(Noisy(), batch_size=None, shuffle=True), False),
        (DataLoader(Noisy(), shuffle=True, in_order=False), False),
    ],
)
def test_orders_that_can_be_predicted(loader: Any, expected: bool) -> None:
    assert fits(loader) is expected


def test_draws_of_seeds_are_counted() -> None:
    draws = torch.Generator().manual_seed(0)
    before = draws.get_state()
    for count in range(3):
        assert draws_between(before, draws.get_state()) == count
        torch.empty((), dtype=torch.int64).random_(generator=draws)
    torch.rand(1, generator=draws)
    assert draws_between(before, draws.get_state()) is None
