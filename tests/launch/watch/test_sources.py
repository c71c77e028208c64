"""Batches' host memory: held as long as the script does, given back where the time is counted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from weakref import ref

import pytest

from fulltilt.launch.job import Job
from fulltilt.launch.watch.transfers import _copying, _moving
from fulltilt.launch.watch.watch import Watch
from fulltilt.measure.timeline import COPY, FORWARD, OTHER

SECONDS = 0.02


class Host:
    """A tensor whose memory takes a while to be given back."""

    is_cuda = False
    nbytes = 40

    def is_pinned(self) -> bool:
        return False

    def __del__(self) -> None:
        time.sleep(SECONDS)


class Device:
    is_cuda = True


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    watch = Watch(Job(out=str(tmp_path)))
    watch.span_samples = 8  # a batch has come
    return watch


def forward(watch: Watch) -> None:
    if watch.sources:
        watch.sources.forward(watch.timeline)
    watch.timeline.enter(FORWARD)
    watch.timeline.leave()


@pytest.mark.parametrize("through", ["to", "copy_"])
def test_a_batch_that_is_replaced_by_its_copy_is_given_back_before_the_forward(watch: Watch, through: str) -> None:
    gone = []
    for _ in range(3):
        batch: Any = Host()
        gone.append(ref(batch))
        if through == "to":
            batch = _moving(watch, "to", lambda *_: Device())(batch, "cuda")
        else:
            _copying(watch, lambda self, _: self)(Device(), batch)
            batch = None
        assert gone[-1]() is not None, "held for a moment"
        forward(watch)
        assert gone[-1]() is None
    spent = watch.timeline.rest().phases_ns
    assert spent[COPY] >= 3 * SECONDS * 1e9
    assert spent[OTHER] < SECONDS * 1e9


def test_a_batch_that_the_loop_keeps_is_given_back_when_the_next_has_come(watch: Watch) -> None:
    move = _moving(watch, "to", lambda *_: Device())
    kept = Host()
    first = ref(kept)
    move(kept, "cuda")
    forward(watch)
    forward(watch)  # a second one of the same step
    kept = Host()
    assert first() is not None
    watch.sources.next_batch()
    watch.timeline.rest()
    move(kept, "cuda")
    assert first() is None, "at the copy of the next"
    spent = watch.timeline.rest().phases_ns
    assert spent[COPY] >= SECONDS * 1e9 > spent[OTHER]


def test_what_is_copied_before_any_batch_is_left_alone(watch: Watch) -> None:
    watch.span_samples = 0
    whole = Host()
    gone = ref(whole)
    whole = _moving(watch, "to", lambda *_: Device())(whole, "cuda")
    assert gone() is None, "a data set that is moved as a whole has no room to wait"


def test_nothing_is_held_while_nobody_watches(watch: Watch) -> None:
    kept = Host()
    _moving(watch, "to", lambda *_: Device())(kept, "cuda")
    watch.sources.clear()
    gone = ref(kept)
    del kept
    assert gone() is None
