"""The core budget: the guides' rules as examples, and what must hold for every machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulltilt.errors import InputError
from fulltilt.machine.budget import CoreBudget, core_budget

cores = st.integers(1, 512)
ranks = st.integers(1, 32)
flags = st.fixed_dictionaries({"gpu_augmentation": st.booleans(), "assist": st.booleans(), "debug": st.booleans()})


def shares(budget: CoreBudget) -> tuple[int, int, int, int]:
    return budget.system.value, budget.training.value, budget.loading.value, budget.assist.value


def test_sixteen_cores_and_two_gpus_with_cpu_augmentation():
    budget = core_budget(16, ranks=2, gpu_augmentation=False)
    assert shares(budget) == (2, 2, 12, 0)
    assert budget.workers_per_rank.value == 6


@pytest.mark.parametrize(
    ("usable", "count", "gpu_augmentation", "workers"),
    [
        (16, 1, False, 8),  # half the cores, at most 8
        (8, 1, False, 4),
        (16, 1, True, 4),  # 2 to 4 when the GPU augments
        (4, 1, True, 2),
        (64, 4, False, 8),  # 8 for each GPU, 32 in all
        (64, 8, False, 4),  # 32 in all, for more GPUs
        (1, 1, False, 0),
    ],
)
def test_workers_per_rank(usable, count, gpu_augmentation, workers):
    budget = core_budget(usable, ranks=count, gpu_augmentation=gpu_augmentation)
    assert budget.workers_per_rank.value == workers


def test_debugging_loads_in_the_training_process():
    assert core_budget(16, debug=True).workers_per_rank.value == 0


@pytest.mark.parametrize(
    ("usable", "threads"),
    [(16, (4, 3)), (8, (2, 2)), (4, (1, 0)), (2, (0, 0))],  # 4 + 3 where they fit; fewer where loading needs the cores
)
def test_assistance(usable, threads):
    budget = core_budget(usable, assist=True)
    assert (budget.assist_workers.value, budget.async_workers.value) == threads


def test_assistance_takes_nothing_unless_asked_for():
    budget = core_budget(16)
    assert (budget.assist.value, budget.assist_workers.value, budget.async_workers.value) == (0, 0, 0)
    assert budget.assist.reason == "not asked for"


def test_one_core_is_shared():
    assert shares(core_budget(1)) == (0, 0, 1, 0)


def test_more_ranks_than_cores():
    budget = core_budget(2, ranks=8)
    assert shares(budget) == (0, 1, 1, 0)
    assert budget.workers_per_rank.value == 0


@given(cores, ranks, flags)
def test_never_more_than_the_usable_cores(usable, count, how):
    budget = core_budget(usable, ranks=count, **how)
    assert all(share >= 0 for share in shares(budget))
    assert sum(shares(budget)) <= usable


@given(cores, ranks, flags)
def test_loading_always_has_a_core(usable, count, how):
    assert core_budget(usable, ranks=count, **how).loading.value >= 1


@given(cores, ranks, flags)
def test_workers_and_threads_fit_their_shares(usable, count, how):
    budget = core_budget(usable, ranks=count, **how)
    assert count * budget.workers_per_rank.value <= min(budget.loading.value, 32)
    assert count * (budget.assist_workers.value + budget.async_workers.value) == budget.assist.value


@given(cores, ranks, flags)
def test_where_each_rank_can_have_two_cores_it_has_its_own_and_a_worker(usable, count, how):
    budget = core_budget(usable, ranks=count, **how)
    if usable >= 2 * count:
        assert budget.training.value == count
        assert budget.loading.value >= count
        assert budget.workers_per_rank.value >= (0 if how["debug"] else 1)


@given(cores, ranks, flags)
def test_another_core_takes_nothing_from_loading(usable, count, how):
    fewer, more = (core_budget(number, ranks=count, **how) for number in (usable, usable + 1))
    assert more.loading.value >= fewer.loading.value
    assert more.workers_per_rank.value >= fewer.workers_per_rank.value
    assert more.assist.value >= fewer.assist.value


@given(cores, ranks, flags)
def test_another_rank_gives_no_rank_more(usable, count, how):
    fewer, more = (core_budget(usable, ranks=number, **how) for number in (count, count + 1))
    assert more.workers_per_rank.value <= fewer.workers_per_rank.value


@given(cores, ranks, st.booleans())
def test_gpu_augmentation_never_needs_more_workers(usable, count, assist):
    gpu, cpu = (core_budget(usable, ranks=count, gpu_augmentation=where, assist=assist) for where in (True, False))
    assert gpu.workers_per_rank.value <= cpu.workers_per_rank.value


@given(cores, ranks, flags)
def test_little_lies_idle(usable, count, how):
    """What is planned for nobody is what doesn't divide among the ranks."""
    assert usable - sum(shares(core_budget(usable, ranks=count, **how))) < count


@given(cores, ranks, flags)
def test_every_number_has_its_reason(usable, count, how):
    budget = core_budget(usable, ranks=count, **how)
    for name in ("system", "training", "loading", "assist", "workers_per_rank", "assist_workers", "async_workers"):
        assert getattr(budget, name).reason


@pytest.mark.parametrize(("usable", "count"), [(0, 1), (-2, 1), (4, 0)])
def test_nothing_to_share_is_refused(usable, count):
    with pytest.raises(InputError, match=f"found {usable} and {count}"):
        core_budget(usable, ranks=count)
