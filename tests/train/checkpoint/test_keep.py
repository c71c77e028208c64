"""Which checkpoints stay."""

from __future__ import annotations

import math
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from fulltilt.train.checkpoint.keep import Entry, best_first, newest_first, superfluous


def entry(sequence, metric=None, step=None):
    return Entry(path=Path(f"{sequence}-{step}"), sequence=sequence, step=step or sequence, metric=metric)


def test_the_last_and_the_best_stay():
    entries = [entry(1, 0.5), entry(2, 0.1), entry(3, 0.4), entry(4), entry(5, math.nan)]
    go = superfluous(entries, keep_last=2, keep_best=1, mode="min")
    assert [e.sequence for e in go] == [1, 3]
    go = superfluous(entries, keep_last=1, keep_best=1, mode="max")
    assert [e.sequence for e in go] == [2, 3, 4]


def test_of_equal_ones_the_first_is_the_best():
    assert best_first([entry(3, 1.0), entry(2, 1.0)], "max")[0].sequence == 2


def test_what_was_saved_last_is_newest_whatever_its_step():
    assert newest_first([entry(1, step=500), entry(2, step=10)])[0].step == 10


metrics = st.none() | st.floats()


@given(
    st.lists(metrics, min_size=1, max_size=12), st.integers(1, 4), st.integers(0, 3), st.sampled_from(["min", "max"])
)
def test_never_too_many_and_never_the_wrong_ones(values, keep_last, keep_best, mode):
    """Saving one after another, as it is done."""
    here: list[Entry] = []
    for sequence, metric in enumerate(values):
        here.append(entry(sequence, metric))
        go = superfluous(here, keep_last=keep_last, keep_best=keep_best, mode=mode)
        assert here[-1] not in go
        here = [e for e in here if e not in go]
        assert len(here) <= keep_last + keep_best
    measured = [m for m in values if m is not None and not math.isnan(m)]
    if measured and keep_best:
        best = (min if mode == "min" else max)(measured)
        assert best in [e.metric for e in here]
