"""Whose warnings count while a piece of work is tried; tests/gpu has real waits."""

from __future__ import annotations

import _thread
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fulltilt.measure.heard import heard, tell_of_waiting


def waits(whose: str) -> None:
    warnings.warn(f"called a synchronizing CUDA operation ({whose})", UserWarning, stacklevel=1)


def in_a_thread_of_the_program(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def in_a_thread_that_python_has_not_started(work: Callable[[], None]) -> None:
    """As autograd's are, which go backward on a GPU."""
    done = threading.Event()

    def begin() -> None:
        work()
        done.set()

    _thread.start_new_thread(begin, ())
    assert done.wait(10)


def test_waits_of_other_threads_are_theirs_and_autograds_are_ours() -> None:
    with heard() as said:
        in_a_thread_of_the_program(lambda: waits("a loader's"))
        assert not tell_of_waiting(said)
        in_a_thread_that_python_has_not_started(lambda: waits("autograd's"))
        waits("its own")
        warnings.warn("something else", UserWarning, stacklevel=1)
    assert [one.split("(")[-1] for one in said] == ["autograd's)", "its own)", "something else"]
    assert tell_of_waiting(said)
    assert not tell_of_waiting(said[2:])


def test_one_that_autograd_has_made_itself_known_by_is_no_thread_of_the_program() -> None:
    """Something it calls asks for the current thread, as logging does: Python makes one up."""

    def logs_and_waits() -> None:
        assert threading.current_thread().name.startswith("Dummy")
        waits("autograd's")

    with heard() as said:
        in_a_thread_that_python_has_not_started(logs_and_waits)
    assert tell_of_waiting(said)


def test_nothing_is_shown_and_all_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    mode: list[Any] = ["error"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: mode[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", mode.append)
    with warnings.catch_warnings(record=True) as shown:
        with pytest.raises(ZeroDivisionError), heard() as said:  # noqa: PT012
            waits("its own")
            raise ZeroDivisionError
        assert said
        assert not shown
        assert mode == ["error", "warn", "error"]
        warnings.simplefilter("always")
        waits("another's")
    assert len(shown) == 1
