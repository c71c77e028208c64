"""Everything that the computer has, in one look."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fulltilt.machine.budget import CoreBudget, core_budget
from fulltilt.machine.cgroup import ROOT
from fulltilt.machine.cores import Cores, read_cores
from fulltilt.machine.gpus import Gpu, read_gpus
from fulltilt.machine.memory import Disk, Memory, SharedMemory, read_disks, read_memory, read_shared_memory
from fulltilt.machine.paths import OptionalPath, find_paths
from fulltilt.machine.plain import plain
from fulltilt.machine.software import Versions, read_versions, torch_build


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the computer has, as this process sees it."""

    cores: Cores
    memory: Memory
    shared_memory: SharedMemory | None
    disks: tuple[Disk, ...]
    gpus: tuple[Gpu, ...]
    """Whole GPUs and MIG slices, in the driver's order."""
    gpu_problem: str | None
    """Why there are no GPUs, in one sentence."""
    versions: Versions
    paths: tuple[OptionalPath, ...]
    budget: CoreBudget

    def to_json(self) -> dict[str, Any]:
        """The plain dictionary that `fulltilt env --json` prints; what is unknown is absent."""
        machine = {"cores": self.cores, "memory": self.memory, "shm": self.shared_memory, "disk": self.disks}
        parts = {
            "machine": {key: part for key, part in machine.items() if part is not None},
            "gpus": self.gpus,
            **({} if self.gpu_problem is None else {"gpu_problem": self.gpu_problem}),
            "versions": self.versions,
            "paths": {path.name: path for path in self.paths},
            "budget": self.budget,
        }
        flat: dict[str, Any] = plain(parts)
        return flat


def inspect(*, ranks: int | None = None, try_paths: bool = False, root: Path = ROOT) -> Machine:
    """Look at this machine; imports no torch and starts no CUDA.

    The budget is for `ranks` training processes: one per visible GPU unless said. With `try_paths` each optional path
    is used once, in a process of its own, which takes as long as the slowest import. `root` is where cgroups are read.
    """
    cores = read_cores(root)
    seen = read_gpus()
    budget = core_budget(
        cores.usable, ranks=max(1, seen.visible) if ranks is None else ranks, gpu_augmentation=seen.visible > 0
    )
    return Machine(
        cores=cores,
        memory=read_memory(root),
        shared_memory=read_shared_memory(),
        disks=read_disks(),
        gpus=seen.gpus,
        gpu_problem=seen.problem,
        versions=read_versions(driver=seen.driver, driver_cuda=seen.driver_cuda),
        paths=find_paths(seen, torch_build(), try_them=try_paths),
        budget=budget,
    )
