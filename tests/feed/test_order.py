"""Order: every sample once, equal shares, and exactly the rest after a resume."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulltilt.errors import InputError
from fulltilt.feed.datasets.shelf import batch_seed
from fulltilt.feed.order import Order

sizes = st.integers(1, 200)
batches = st.integers(1, 17)
worlds = st.integers(1, 5)


def ranks(order: dict, world: int) -> list[Order]:
    return [Order(**order, rank=rank, world=world) for rank in range(world)]


@given(sizes, batches, worlds, st.booleans(), st.integers(0, 3))
def test_all_ranks_together_take_every_sample_once(length, batch_size, world, shuffle, epoch):
    every = ranks({"length": length, "batch_size": batch_size, "shuffle": shuffle}, world)
    steps = [list(order.epoch(epoch)) for order in every]
    assert len({len(s) for s in steps}) == 1
    for together in zip(*steps, strict=True):
        assert len({len(step.indices) for step in together}) == 1, "equal counts on every rank"
    taken = [i for together in zip(*steps, strict=True) for step in together for i in step.indices]
    assert set(taken) == set(range(length))
    assert len(taken) - length < world
    assert [s.last for s in steps[0]] == [False] * (len(steps[0]) - 1) + [True]


@given(sizes, batches, st.booleans(), st.data())
def test_a_resume_at_any_batch_size_and_world_size_gives_exactly_the_rest(length, batch_size, shuffle, data):
    first = Order(length=length, batch_size=batch_size, shuffle=shuffle, seed=7)
    done = data.draw(st.integers(0, first.steps()))
    before, position = [], 0
    for step in list(first.epoch(2))[:done]:
        before += step.indices.tolist()
        position = step.position
    world = data.draw(st.sampled_from([1, 2, 4]))
    again = ranks({"length": length, "batch_size": data.draw(batches), "shuffle": shuffle, "seed": 7}, world)
    after = [i for order in again for step in order.epoch(2, position) for i in step.indices.tolist()]
    left = length - len(before)
    assert set(after) >= set(range(length)) - set(before)
    assert len(after) - left < world, "at most what evens out the last step is repeated"
    if world == 1:
        assert sorted(before + after) == list(range(length))


@given(sizes, batches, worlds)
def test_drop_last_takes_whole_steps_only(length, batch_size, world):
    if length < batch_size * world:
        with pytest.raises(InputError, match="drop_last leaves nothing"):
            Order(length=length, batch_size=batch_size, world=world, drop_last=True)
        return
    order = Order(length=length, batch_size=batch_size, world=world, drop_last=True)
    steps = list(order.epoch(0))
    assert len(steps) == order.steps() == length // (batch_size * world)
    assert all(len(step.indices) == batch_size for step in steps)
    assert steps[-1].last


def test_epochs_and_seeds_differ_and_repeat():
    order = Order(length=1000, batch_size=10, shuffle=True, seed=1)
    assert not np.array_equal(order.permutation(0), order.permutation(1))
    assert np.array_equal(order.permutation(3), Order(length=1000, batch_size=7, shuffle=True, seed=1).permutation(3))
    assert not np.array_equal(order.permutation(0), Order(length=1000, batch_size=10, shuffle=True).permutation(0))


def test_every_whole_number_is_a_seed_of_its_own():
    seeds = [0, 1, -1, -2, 2**63, 2**63 + 1, np.int64(7)]
    orders = {tuple(Order(length=20, batch_size=1, shuffle=True, seed=seed).permutation(0)) for seed in seeds}
    assert len(orders) == len(seeds)
    assert len({batch_seed(seed, 0, 0) for seed in seeds}) == len(seeds)


def test_orders_of_earlier_checkpoints_stay_what_they_were():
    order = Order(length=8, batch_size=2, shuffle=True, seed=1)
    assert order.permutation(0).tolist() == [3, 5, 2, 7, 0, 6, 1, 4]
    assert batch_seed(1, 2, 3, 1) == 6290856281938283660


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0, "batch_size": 1}, "holds no samples"),
        ({"length": 5, "batch_size": 0}, "batch_size=0"),
        ({"length": 5, "batch_size": "2"}, "batch_size='2' must be a whole number"),
        ({"length": 5, "batch_size": 1, "seed": 1.5}, "seed=1.5 must be a whole number"),
        ({"length": 5, "batch_size": 1, "rank": 2, "world": 2}, "rank=2"),
    ],
)
def test_what_can_not_be_is_named(options, message):
    with pytest.raises(InputError, match=message):
        Order(**options)


@pytest.mark.parametrize(("parts", "together"), [(8, 4), (8, 3), (6, 6)])
def test_parts_of_one_thing_stay_together(parts, together):
    """Side by side and in one batch where that divides; all else is shuffled, and anew in each epoch."""
    things = 50
    order = Order(length=things * parts, batch_size=12, shuffle=True, parts=parts, together=together)
    first, second = order.permutation(0), order.permutation(1)
    assert sorted(first) == sorted(second) == list(range(things * parts))
    assert not np.array_equal(first, second)
    owner = first // parts
    runs = np.diff(np.flatnonzero(np.concatenate([[True], np.diff(owner) != 0, [True]])))
    full, rest = divmod(parts, together)
    assert (runs >= min(together, rest or together)).all()
    assert len(runs) > 0.9 * things * (full + (rest > 0)), "groups of one thing are not side by side"
    assert abs(np.corrcoef(np.arange(len(owner)), owner)[0, 1]) < 0.2
    groups = {tuple(sorted(first[at : at + together])) for at in range(0, len(first), together)}
    again = {tuple(sorted(second[at : at + together])) for at in range(0, len(first), together)}
    if together < parts:
        assert len(groups & again) < len(groups) / 4, "which parts go together is drawn as well"
    plain = Order(length=things * parts, batch_size=12, shuffle=True)
    assert np.array_equal(
        plain.permutation(3), Order(length=things * parts, batch_size=12, shuffle=True, parts=parts).permutation(3)
    )
