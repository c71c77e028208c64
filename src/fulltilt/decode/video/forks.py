"""Files that are open when a process is forked, as a DataLoader's workers are: in the child they are the parent's.

Both would read on from one place in the file, each moving it under the other, and a decoder's threads do not exist in
the child: to use it, or to end it, would wait for them for ever. So the child leaves alone what it has inherited, and
opens the file for itself when it is asked for a frame.
"""

from __future__ import annotations

import functools
import os
import weakref
from typing import Any, Protocol


class Inherited(Protocol):
    def abandon(self) -> Any:
        """Let go of what is open, without ending it; what that was."""


_here: weakref.WeakSet[Any] = weakref.WeakSet()
"""What is to be abandoned in a child."""
_kept: list[Any] = []
"""What is never ended in this process, for it is another's."""


def watch(one: Inherited) -> None:
    _register()
    _here.add(one)


def keep(what: Any) -> None:
    """Until this process ends."""
    _kept.append(what)


@functools.cache
def _register() -> None:
    os.register_at_fork(after_in_child=_abandon)


def _abandon() -> None:
    for one in list(_here):
        keep(one.abandon())
