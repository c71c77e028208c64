"""Whether torch's compiler was at work: what it has traced guards on what it saw."""

from __future__ import annotations

import sys


def compiles() -> bool:
    """Whether anything was compiled in this process: with a mode on, or within other calls, it would be anew."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"].get("total"))
