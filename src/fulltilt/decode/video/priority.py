"""Processes that only decode give way to the one that trains, and feeds the GPU's video engines."""

from __future__ import annotations

import os

_NICE = 10
"""As of the processes that decode images."""


def give_way() -> None:
    """This thread, and those that it starts later, behind others where cores are short.

    A thread of the trainer that loses its core while it holds the interpreter lock keeps all others of it waiting, and
    with them the engines that they feed.
    """
    os.setpriority(os.PRIO_PROCESS, 0, max(_NICE, os.getpriority(os.PRIO_PROCESS, 0)))
