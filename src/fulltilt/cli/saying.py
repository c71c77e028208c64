"""Lines beside a command's output."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """To stderr, at once: stdout is for what was asked for."""
    print(f"fulltilt: {text}", file=sys.stderr, flush=True)
