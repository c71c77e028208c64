"""The hooks on tensors, with stand-ins for those of a GPU; tests/gpu has the real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fulltilt.launch.job import Job
from fulltilt.launch.watch.places import place
from fulltilt.launch.watch.replay import Replay
from fulltilt.launch.watch.transfers import _blocking, _copying, _moving, _waiting
from fulltilt.launch.watch.watch import Watch
from fulltilt.measure.timeline import CHECKPOINT, COPY, SYNC


class Stand:
    """As much of a tensor as the hooks ask for."""

    def __init__(self, *, is_cuda: bool = False, pinned: bool = False) -> None:
        self.is_cuda = is_cuda
        self._pinned = pinned

    def is_pinned(self) -> bool:
        return self._pinned

    @property
    def nbytes(self) -> int:
        return 40


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(Job(out=str(tmp_path)))


def to_gpu(self: Any, *args: Any, **kwargs: Any) -> Stand:
    return Stand(is_cuda=True)


def to_host(self: Any, *args: Any, **kwargs: Any) -> Stand:
    return Stand()


def same(self: Any, *args: Any, **kwargs: Any) -> Any:
    return self


def phase(watch: Watch, which: int) -> int:
    return watch.timeline.rest().phases_ns[which]


def test_a_copy_to_the_device_by_line(watch: Watch) -> None:
    move = _moving(watch, "to", to_gpu)
    for _ in range(3):
        move(Stand(pinned=True), "cuda", non_blocking=True)  # this line
    ((at, free), (count, spent, size, pinned)) = next(iter(watch.copies.items()))
    found = place(at)
    assert found is not None
    assert found.text.endswith("# this line")
    assert (free, count, size, pinned) == (True, 3, 3 * 40, True)
    assert phase(watch, COPY) == spent > 0
    assert not watch.syncs


def test_a_copy_to_the_host_waits_unless_it_was_asked_not_to(watch: Watch) -> None:
    move = _moving(watch, "to", to_host)
    move(Stand(is_cuda=True), "cpu", non_blocking=True)
    assert not watch.syncs
    move(Stand(is_cuda=True), "cpu")
    (((_, kind), (count, spent)),) = watch.syncs.items()
    assert (kind, count) == ("cpu", 1)
    assert phase(watch, SYNC) == spent > 0


def test_what_moves_nothing_is_not_noted(watch: Watch) -> None:
    _moving(watch, "to", same)(Stand(), "cpu")
    _moving(watch, "to", to_host)(Stand(), "float64")
    assert not watch.copies
    assert not watch.syncs


def test_copies_into_a_buffer(watch: Watch) -> None:
    copy = _copying(watch, same)
    copy(Stand(is_cuda=True), Stand())
    copy(Stand(is_cuda=True), Stand(), True)
    copy(Stand(), Stand(is_cuda=True))
    copy(Stand(), Stand())
    assert [(free, count) for (_, free), (count, *_) in watch.copies.items()] == [(False, 1), (True, 1)]
    assert [kind for _, kind in watch.syncs] == ["copy_"]


def test_a_value_that_is_asked_for_is_a_wait_only_on_the_gpu(watch: Watch) -> None:
    item = _waiting(watch, "item", lambda self: 1.0)
    assert item(Stand()) == 1.0
    assert not watch.syncs
    assert item(Stand(is_cuda=True)) == 1.0
    assert [kind for _, kind in watch.syncs] == ["item"]


def test_a_print_is_one_wait_whatever_it_calls(watch: Watch) -> None:
    item = _waiting(watch, "item", lambda self: 1.0)
    shown = _waiting(watch, "print", lambda self: f"{item(self)} {item(self)}", nested=True)
    assert shown(Stand(is_cuda=True)) == "1.0 1.0"
    assert [(kind, count) for (_, kind), (count, _) in watch.syncs.items()] == [("print", 1)]


def test_in_a_checkpoint_nothing_is_a_wait(watch: Watch) -> None:
    watch.timeline.enter(CHECKPOINT)
    _waiting(watch, "item", lambda self: 1.0)(Stand(is_cuda=True))
    _moving(watch, "cpu", to_host)(Stand(is_cuda=True))
    _blocking(watch, "synchronize", lambda: None)()
    assert not watch.syncs


def test_what_we_do_ourselves_is_not_noted(watch: Watch) -> None:
    with watch.unseen():
        _blocking(watch, "synchronize", lambda: None)()
        _waiting(watch, "item", lambda self: 1.0)(Stand(is_cuda=True))
    assert not watch.syncs
    _blocking(watch, "synchronize", lambda: None)()
    assert [kind for _, kind in watch.syncs] == ["synchronize"]


def test_a_replayed_batch_is_moved_once(watch: Watch) -> None:
    import torch

    replay = watch.replay = Replay()
    tensor, calls = torch.ones(2), []

    def moved(self: Any, *args: Any) -> Any:
        calls.append(args)
        return Moved(torch.ones(2))

    class Moved(torch.Tensor):
        is_cuda = True

    move = _moving(watch, "to", moved)
    replay.is_ours(tensor)
    first = move(tensor, "cuda")
    assert move(tensor, "cuda") is first
    assert len(calls) == 1
    move(tensor, "other")
    assert len(calls) == 2
