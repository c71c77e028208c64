"""What a script prints while its limits are measured: nothing is to be seen of it."""

from __future__ import annotations

import os
import sys
from contextlib import suppress


class Hush:
    """From here to its end, all that this process prints goes nowhere: Python's own, and what libraries write."""

    def __init__(self) -> None:
        _flush()
        self._kept: list[tuple[int, int]] = []
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            with suppress(OSError):  # closed by the script
                self._kept.append((stream, os.dup(stream)))
                os.dup2(nowhere, stream)
        os.close(nowhere)

    def end(self) -> None:
        _flush()
        for stream, kept in self._kept:
            os.dup2(kept, stream)
            os.close(kept)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the script's own, or none
            stream.flush()
