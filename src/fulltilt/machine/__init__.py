"""What the computer has and is doing: cores, memory, disks, GPUs; one reading of them is a sample.

`inspect()` looks at everything that stays the same; the modules of this room do one part each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fulltilt.machine.budget import CoreBudget as CoreBudget
    from fulltilt.machine.budget import core_budget as core_budget
    from fulltilt.machine.inspection import Machine as Machine
    from fulltilt.machine.inspection import inspect as inspect

# On first use: most who import a module of this room need only that one.
_HOMES = {
    "CoreBudget": "fulltilt.machine.budget",
    "Machine": "fulltilt.machine.inspection",
    "core_budget": "fulltilt.machine.budget",
    "inspect": "fulltilt.machine.inspection",
}

__all__ = ["CoreBudget", "Machine", "core_budget", "inspect"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
