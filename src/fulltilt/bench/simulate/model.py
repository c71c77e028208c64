"""Training on many GPUs as stations with capacities. A rate is the least of them; the least has a name.

    disk ─► cores (decode) ─► bus ─► GPU (step, a share of the decoding) ─► all-reduce ─► next step
    └────── of a machine ───────┘   └─ of a GPU ─┘                        └─ of all ─┘

Nothing here was measured and nothing runs: a workload is what rates.py read from results, a fleet is assumed. What is
left out: processes that wait for a slower one, machines that differ, the network shared with other people.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

BUCKET_BYTES = 25 * 2**20
"""DistributedDataParallel's default: gradients leave in pieces of this size while backward goes on."""
BACKWARD_SHARE = 2 / 3
"""Of a step; what an all-reduce can hide behind."""
_NOTICEABLE = 0.02
"""All-reduce and decoding are named when they cost the GPU more than this share of the step."""
_SHARES = 64
"""Steps in which the share of decoding by the GPU is tried, as the feed's controller would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one sample and one step take, as measured on one GPU."""

    name: str
    title: str
    batch: int
    """Samples a step, on each GPU."""
    limit_per_second: float
    """Samples of one GPU with its batch on the device already."""
    core_seconds: float
    """CPU time to make one sample, launching the step's kernels apart."""
    gpu_decode_seconds: float | None = None
    """GPU time to decode one sample there; None: it can't be."""
    file_bytes: int
    """Read from the disk for a sample."""
    sample_bytes: int
    """Over the bus for a sample."""
    gradient_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Machines, all alike. Assumed, not measured."""

    gpus_per_machine: int = 8
    cores_per_machine: int = 96
    launch_cores_per_gpu: float = 1.0
    """Taken from loading: one process per GPU launches kernels. No more than half of the cores: they take turns."""
    bus_bytes_per_second: float = 50e9
    """To each GPU: PCIe 5.0 ×16 with a tenth lost."""
    disk_bytes_per_second: float = 12e9
    """Of a machine's own disks, read at random; every epoch is read anew."""
    storage_bytes_per_second: float | None = None
    """Of one storage for all machines, in place of their own disks."""
    local_bytes_per_second: float = 300e9
    """Between GPUs of a machine, each way: NVLink."""
    local_latency_seconds: float = 5e-6
    """One hop of a ring inside a machine."""
    network_bytes_per_second: float = 50e9
    """Of a machine, each way: 400 Gbit/s."""
    network_latency_seconds: float = 15e-6
    """One hop of a ring between machines."""
    gpu_decoding: bool = True
    """GPUs take a share of the decoding where that pays."""

    def machines(self, gpus: int) -> int:
        return ceil(gpus / self.gpus_per_machine)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What so many GPUs give."""

    gpus: int
    samples_per_second: float
    efficiency: float
    """Of the ideal: the number of GPUs × the limit of one."""
    saturated: str
    """The station that holds the rest up; `GPU` where only the model does."""
    gpu_share: float
    """Of the decoding, done by the GPUs."""
    exposed_seconds: float
    """All-reduce of each step that backward does not hide."""
    used: Mapping[str, float]
    """Station to the share of its capacity that is in use."""


def simulate(work: Workload, fleet: Fleet, gpus: int) -> Outcome:
    """The best that `gpus` can do together, whatever share of the decoding the GPUs have to take for it."""
    if gpus < 1:
        raise ValueError(f"gpus: expected 1 or more, found {gpus}")
    can = fleet.gpu_decoding and work.gpu_decode_seconds is not None
    shares = [step / _SHARES for step in range(_SHARES + 1)] if can else [0.0]
    outcomes = [_at(work, fleet, gpus, share) for share in shares]
    best = max(one.samples_per_second for one in outcomes)
    return next(one for one in outcomes if one.samples_per_second >= best * (1 - 1e-9))  # the smallest share


def feed_stations(work: Workload, fleet: Fleet, gpus: int, gpu_share: float) -> dict[str, float]:
    """Samples a second of all machines together, by what brings samples to the GPUs."""
    machines = fleet.machines(gpus)
    cores = fleet.cores_per_machine * machines
    loading = max(cores / 2, cores - fleet.launch_cores_per_gpu * gpus)
    by_cores = work.core_seconds * (1 - gpu_share)
    storage = fleet.storage_bytes_per_second
    disks = fleet.disk_bytes_per_second * machines if storage is None else storage
    crossing = gpu_share * work.file_bytes + (1 - gpu_share) * work.sample_bytes
    return {
        "decode cores": loading / by_cores if by_cores else float("inf"),
        "bus": fleet.bus_bytes_per_second * gpus / crossing if crossing else float("inf"),
        "disk" if storage is None else "storage": disks / work.file_bytes if work.file_bytes else float("inf"),
    }


def all_reduce_seconds(work: Workload, fleet: Fleet, gpus: int) -> float:
    """Rings inside the machines, then one between them; each bucket pays every hop's latency."""
    buckets = ceil(work.gradient_bytes / BUCKET_BYTES)
    machines = fleet.machines(gpus)
    inside = min(gpus, fleet.gpus_per_machine)
    return _ring(
        inside, work.gradient_bytes, fleet.local_bytes_per_second, buckets * fleet.local_latency_seconds
    ) + _ring(machines, work.gradient_bytes, fleet.network_bytes_per_second, buckets * fleet.network_latency_seconds)


def exposed_seconds(work: Workload, fleet: Fleet, gpus: int, step_seconds: float) -> float:
    """The all-reduce that backward can't hide: always the last bucket, and all that is longer than backward."""
    whole = all_reduce_seconds(work, fleet, gpus)
    return max(whole / ceil(work.gradient_bytes / BUCKET_BYTES), whole - BACKWARD_SHARE * step_seconds)


def one_machine(*, cores: int, gpu_decoding: bool) -> Fleet:
    """One GPU with so many cores: what the model is held against where that was measured."""
    return replace(Fleet(), gpus_per_machine=1, cores_per_machine=cores, gpu_decoding=gpu_decoding)


def _ring(members: int, size: int, bytes_per_second: float, latency_seconds: float) -> float:
    hops = 2 * (members - 1)
    return hops * (size / members / bytes_per_second + latency_seconds)


def _at(work: Workload, fleet: Fleet, gpus: int, gpu_share: float) -> Outcome:
    stations = feed_stations(work, fleet, gpus, gpu_share)
    step = work.batch * (1 / work.limit_per_second + gpu_share * (work.gpu_decode_seconds or 0.0))
    exposed = exposed_seconds(work, fleet, gpus, step)
    stepping = gpus * work.batch / (step + exposed)
    slowest = min(stations, key=stations.__getitem__)
    rate = min(stepping, stations[slowest])
    if stations[slowest] < stepping:
        saturated = slowest
    else:
        decoding = step - work.batch / work.limit_per_second
        cost, name = max((exposed, "all-reduce"), (decoding, "GPU decoding"))
        saturated = name if cost > _NOTICEABLE * step else "GPU"
    used = {name: rate / capacity for name, capacity in stations.items()}
    return Outcome(
        gpus=gpus,
        samples_per_second=rate,
        efficiency=rate / (gpus * work.limit_per_second),
        saturated=saturated,
        gpu_share=gpu_share,
        exposed_seconds=exposed,
        used={**used, "GPU": rate / stepping},
    )
