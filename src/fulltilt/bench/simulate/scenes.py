"""The fleets that the page shows: each takes something away from an ample one, so that it is seen what that costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fulltilt.bench.simulate.model import Fleet, Outcome, Workload, simulate

GPUS = (1, 2, 4, 8, 16, 32, 64)
_AMPLE = Fleet()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A workload on a fleet."""

    title: str
    workload: str
    fleet: Fleet = _AMPLE
    drawn: bool = True
    """Whether the chart has it: lines that lie on each other say nothing."""

    def outcomes(self, works: Mapping[str, Workload]) -> list[Outcome]:
        return [simulate(works[self.workload], self.fleet, count) for count in GPUS]


def _disks(fleet: Fleet) -> str:
    return "local disks" if fleet.storage_bytes_per_second is None else "the storage"


def scenes(fleet: Fleet = _AMPLE) -> tuple[Scene, ...]:
    """What is compared; `fleet` is the ample one."""
    half = fleet.cores_per_machine // 2
    return (
        Scene(title=f"JPEG files, {fleet.cores_per_machine} cores in a machine", workload="jpeg", fleet=fleet),
        Scene(
            title=f"… {half} cores, which decode alone",
            workload="jpeg",
            fleet=replace(fleet, gpu_decoding=False, cores_per_machine=half),
        ),
        Scene(
            title=f"… {half} cores, and the GPUs decode a share",
            workload="jpeg",
            fleet=replace(fleet, cores_per_machine=half),
        ),
        Scene(
            title="… one storage of 20 GB/s for all",
            workload="jpeg",
            fleet=replace(fleet, storage_bytes_per_second=20e9),
        ),
        Scene(
            title="… a network of 10 Gbit/s",
            workload="jpeg",
            fleet=replace(fleet, network_bytes_per_second=1.25e9),
        ),
        Scene(title=f"a cache of pixels on {_disks(fleet)}", workload="cache", fleet=fleet),
        Scene(title="U-Net, images and masks", workload="unet", fleet=fleet, drawn=False),
        Scene(title="small CNN, data on the GPU", workload="windows", fleet=fleet),
    )
