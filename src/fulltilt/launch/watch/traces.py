"""Tracebacks of the user's errors, as they would be without us."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

_OURS = str(Path(__file__).parents[1]) + os.sep


def without_us(error: BaseException | None, known: set[int] | None = None) -> None:
    """Take our frames out of the traceback, and out of those of its causes."""
    known = set() if known is None else known
    if error is None or id(error) in known:
        return
    known.add(id(error))
    frames = []
    at = error.__traceback__
    while at is not None:
        if not at.tb_frame.f_code.co_filename.startswith(_OURS):
            frames.append(at)
        at = at.tb_next
    for frame, following in pairwise(frames):
        frame.tb_next = following
    if frames:  # a syntax error of the script has none
        frames[-1].tb_next = None
        error.__traceback__ = frames[0]
    without_us(error.__cause__, known)
    without_us(error.__context__, known)
