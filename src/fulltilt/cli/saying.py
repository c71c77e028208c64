"""Lines beside a command's output."""

from __future__ import annotations

import sys
from contextlib import suppress


def say(text: str) -> None:
    """To stderr, at once: stdout is for what was asked for. What is done goes on where nobody can be told of it."""
    with suppress(OSError):  # a full disk behind a redirection, a terminal that is gone
        print(f"fulltilt: {text}", file=sys.stderr, flush=True)
