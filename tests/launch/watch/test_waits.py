"""Waits that no method says, with calls that warn as torch does; tests/gpu has the real ones."""

from __future__ import annotations

import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from fulltilt.launch.job import Job
from fulltilt.launch.watch.places import place
from fulltilt.launch.watch.traced import compiles
from fulltilt.launch.watch.transfers import _waiting
from fulltilt.launch.watch.waits import Waits
from fulltilt.launch.watch.watch import Watch

LIKE_TORCHS = """
import time, warnings
from torch.overrides import handle_torch_function, has_torch_function_unary

def unique(tensor, *, waits=0.01):
    if has_torch_function_unary(tensor):  # whoever has a mode on sees the call
        return handle_torch_function(unique, (tensor,), tensor, waits=waits)
    time.sleep(waits)
    warnings.warn("called a synchronizing CUDA operation (Triggered internally at x.cpp:3)", UserWarning, stacklevel=1)
    return tensor
"""
_made: dict[str, Any] = {}
exec(compile(LIKE_TORCHS, str(Path(torch.__file__).parent / "functional_like.py"), "exec"), _made)
unique: Any = _made["unique"]


def heard(waits: Waits) -> list[tuple[str, str, int, float]]:
    found = []
    for (at, kind), (count, spent) in waits.found.items():
        line = place(at)
        found.append((kind, "" if line is None else line.text, count, spent / 1e9))
    return found


def test_a_call_that_waits_by_name_line_and_time() -> None:
    asked: list[bool] = []
    waits = Waits(listen=asked.append)
    filters = list(warnings.filters)
    waits.begin()
    for _ in range(3):
        unique(torch.ones(2))  # this line
    torch.ones(3).sum()
    waits.end()
    ((kind, line, count, seconds),) = heard(waits)
    assert (kind, count) == ("unique", 3)
    assert line.endswith("# this line")
    assert seconds >= 0.03
    assert asked == [True, False]
    assert list(warnings.filters) == filters
    with pytest.warns(UserWarning, match="synchronizing"):  # no longer ours
        unique(torch.ones(2), waits=0.0)


def test_waits_of_other_threads_are_not_the_loops() -> None:
    waits = Waits(listen=lambda _: None)
    waits.begin()
    thread = threading.Thread(target=unique, args=(torch.ones(2),), kwargs={"waits": 0.0})
    thread.start()
    thread.join()
    waits.end()
    assert heard(waits) == []


def test_warnings_of_others_are_shown_and_those_that_wait_never_raise() -> None:
    waits = Waits(listen=lambda _: None)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("error")
        waits.begin()
        unique(torch.ones(2), waits=0.0)
        warnings.simplefilter("always")
        warnings.warn("something else", UserWarning, stacklevel=1)
        waits.end()
    assert [str(one.message) for one in shown] == ["something else"]
    assert [kind for kind, *_ in heard(waits)] == ["unique"]


def test_what_was_compiled_is_known() -> None:
    from torch._dynamo.utils import counters

    counters.clear()  # others compile, too
    assert not compiles()
    assert torch.compile(lambda value: value + 1, backend="eager")(torch.ones(2)).tolist() == [2, 2]
    assert compiles()


def test_a_wait_within_backward_is_named_without_its_time() -> None:
    backward = type(unique)(unique.__code__, unique.__globals__ | {"unique": unique}, "backward")
    backward.__kwdefaults__ = unique.__kwdefaults__
    waits = Waits(listen=lambda _: None)
    waits.begin()
    waits.called(backward, (torch.ones(2),), {}, time.perf_counter_ns)
    waits.end()
    assert [(kind, seconds) for kind, _, _, seconds in heard(waits) if kind == "backward"] == [("backward", 0.0)]


def test_outside_of_torchs_calls_the_line_is_known() -> None:
    waits = Waits(listen=lambda _: None)
    waits.begin()
    warnings.warn("called a synchronizing CUDA operation", UserWarning, stacklevel=1)  # an extension
    waits.end()
    ((kind, line, count, _),) = heard(waits)
    assert (kind, count) == ("sync", 1)
    assert line.endswith("# an extension")


def test_what_a_hook_counts_is_not_counted_twice(tmp_path: Any) -> None:
    watch = Watch(Job(out=str(tmp_path)))

    class OnGpu(torch.Tensor):
        is_cuda = True

    tensor = torch.ones(2).as_subclass(OnGpu)
    item = _waiting(watch, "item", unique)
    waits = Waits(listen=lambda _: None)
    waits.begin()
    item(tensor)
    waits.end()
    assert heard(waits) == []
    assert [kind for _, kind in watch.syncs] == ["item"]


def test_a_mode_of_the_scripts_that_ends_meanwhile_is_left_alone() -> None:
    waits = Waits(listen=lambda _: None)
    mode = torch.device("cpu")
    mode.__enter__()
    waits.begin()
    torch.overrides._pop_mode()  # type: ignore[attr-defined]
    waits.end()
    mode.__exit__(None, None, None)
    assert torch.overrides._get_current_function_mode() is None  # type: ignore[attr-defined]
