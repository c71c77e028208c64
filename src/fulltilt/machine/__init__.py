"""What the computer has and is doing: cores, memory, disks, GPUs; one reading of them is a sample.

`inspect()` looks at everything that stays the same; the modules of this room do one part each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fulltilt.lazy import on_first_use

if TYPE_CHECKING:
    from fulltilt.machine.budget import CoreBudget as CoreBudget
    from fulltilt.machine.budget import core_budget as core_budget
    from fulltilt.machine.inspection import Machine as Machine
    from fulltilt.machine.inspection import inspect as inspect

# On first use: most who import a module of this room need only that one.
_HOMES = {
    "CoreBudget": "budget",
    "Machine": "inspection",
    "core_budget": "budget",
    "inspect": "inspection",
}

__all__ = ["CoreBudget", "Machine", "core_budget", "inspect"]

__getattr__ = on_first_use(__name__, _HOMES)
