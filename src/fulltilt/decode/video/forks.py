"""Files that are open when a process is forked, as a DataLoader's workers are: in the child they are the parent's.

Both would read on from one place in the file, each moving it under the other, and a decoder's threads do not exist in
the child: to use it, or to end it, would wait for them for ever. So the child leaves alone what it has inherited, and
opens the file for itself when it is asked for a frame.

PyAV's own conversions are such threads as well, from 19 on: `keep_converters`.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import weakref
from typing import Any, Protocol


class Inherited(Protocol):
    def abandon(self) -> Any:
        """Let go of what is open, without ending it; what that was."""


_here: weakref.WeakSet[Any] = weakref.WeakSet()
"""What is to be abandoned in a child."""
_kept: list[Any] = []
"""What is never ended in this process, for it is another's."""
_converters: list[Any] = []
"""Of all threads, as they were before the last fork."""


def watch(one: Inherited) -> None:
    _register()
    _here.add(one)


def keep(what: Any) -> None:
    """Until this process ends."""
    _kept.append(what)


@functools.cache
def keep_converters() -> None:
    """Once in a process: whatever is forked from it neither uses nor ends the converters that PyAV has made here.

    From 19 on, `frame.reformat`, and with it `to_ndarray` and `to_image`, keeps one for each thread that has called it,
    with threads of its own. In a child the next conversion would wait for these for ever. So would the fork itself
    where another thread than the one that forks has converted: Python ends there what other threads have kept.
    """
    os.register_at_fork(before=_find_converters, after_in_child=_leave_converters)


def _by_thread() -> Any | None:
    """Where PyAV keeps them; None before 19, or as long as nobody has imported it."""
    return getattr(sys.modules.get("av.video.frame"), "_thread_local", None)


def _find_converters() -> None:
    """Python shows a thread its own alone. The collector is told of a dictionary with those of all threads."""
    threads = [found for found in gc.get_referents(_by_thread()) if isinstance(found, dict)]
    # In the parent it stays until the next fork: emptied behind this one, it would be empty for one of another thread.
    _converters[:] = [list(own.values()) for found in threads for own in list(found.values())]


def _leave_converters() -> None:
    keep(list(_converters))
    by_thread = _by_thread()
    if by_thread is not None:
        vars(by_thread).clear()


@functools.cache
def _register() -> None:
    os.register_at_fork(after_in_child=_abandon)


def _abandon() -> None:
    for one in list(_here):
        keep(one.abandon())
