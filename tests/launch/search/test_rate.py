"""What a watched script's steps come to."""

from __future__ import annotations

from itertools import accumulate

import pytest

from fulltilt.launch.search.rate import rate_of, settled
from fulltilt.measure.observation import Observation, Step

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
