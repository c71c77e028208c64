"""What a watched script's steps come to."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import pytest

from fulltilt.launch.search.rate import rate_of, settled
from fulltilt.measure.observation import Loader, Observation, Step

ODD = 32


def seen(*steps: tuple[int | None, float]) -> Observation:
    """Steps of so many samples, in so many seconds."""
    ends = list(accumulate(seconds for _, seconds in steps))
    made = tuple(
        Step(number=at, started=end - seconds, seconds=seconds, phases={"forward": seconds}, samples=samples)
        for at, ((samples, seconds), end) in enumerate(zip(steps, ends, strict=True))
    )
    return Observation(command=("train.py",), ended="steps", seconds=sum(seconds for _, seconds in steps), steps=made)


def test_the_first_batch_of_another_size_is_paid_once_and_counts_for_nothing() -> None:
    epoch = [(64, 0.01)] * 50
    quick = rate_of(seen(*epoch, (ODD, 0.01), *epoch, (ODD, 0.01)))
    compiled_for_it = rate_of(seen(*epoch, (ODD, 20.0), *epoch, (ODD, 0.01)))
    assert quick is not None
    assert compiled_for_it is not None
    assert compiled_for_it == quick
    assert quick.noise < 0.01


def test_what_such_batches_take_each_time_counts() -> None:
    epoch = [(64, 0.01)] * 50
    found = rate_of(seen(*epoch, (ODD, 1.0), *epoch, (ODD, 1.0), *epoch, (ODD, 1.0)))
    assert found is not None
    assert found.value == pytest.approx((150 * 64 + 2 * ODD) / 3.5)


@pytest.mark.parametrize("count", [6, 12, 15, 19])
def test_one_odd_batch_among_few_counts_for_nothing(count: int) -> None:
    found = rate_of(seen(*[(8, 0.4)] * (count - 2), (5, 20.0), (8, 0.4)))
    assert found is not None
    assert found.value == pytest.approx(20.0)


def test_an_epochs_start_is_shared_out_among_its_steps_of_several_batches() -> None:
    """64 batches of 8 in an epoch, whose start takes 4 s; a step takes eight of them, and half a second."""
    loader = Loader(
        role="train", place=None, dataset="Files", samples=512, batch_size=8, num_workers=4, prefetch_factor=2,
        persistent_workers=False, pin_memory=False, batch_bytes=100, start_seconds=4.0,
    )  # fmt: skip
    others = replace(loader, samples=100, start_seconds=100.0)
    found = rate_of(replace(seen(*[(64, 0.5)] * 20), loaders=(others, loader)))
    assert found is not None
    assert found.value == pytest.approx(512 / (8 * 0.5 + 4.0))


def test_batches_of_many_sizes_all_count() -> None:
    found = seen(*((10 + at, 0.01) for at in range(40)))
    assert settled(found.steps) == found.steps


def test_steps_whose_samples_nobody_counts_all_count() -> None:
    found = seen(*[(None, 0.01)] * 20)
    assert settled(found.steps) == found.steps
    rate = rate_of(found)
    assert rate is not None
    assert rate.value == pytest.approx(100.0)


def test_a_few_steps_are_no_rate() -> None:
    assert rate_of(seen(*[(8, 0.01)] * 4)) is None
