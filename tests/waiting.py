"""For what comes about in another thread or process."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(happened: Callable[[], object], seconds: float = 60.0) -> None:
    """Returns as soon as it has happened; fails where it does not."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.005)
