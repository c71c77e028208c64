"""How the usable cores are shared out before anything has been measured.

    usable ≥ system + training + loading + assist        over all ranks; what doesn't divide among them stays free

It is where a run begins and where tuning searches from, so it follows rules that have worked in practice:

    16 cores, 2 GPUs     2 to 4 for the system, 8 to 12 for loading (6 workers a rank), 2 to 4 for the rest
    loader workers       half the cores and at most 8 a rank, 32 a machine; 2 to 4 when the GPU augments; 0 to debug
    CPU assistance       4 + 3 threads from 8 cores on, 2 + 2 from 4, 1 + 1 below

Where they ask for more than there is, they are cut down: a thread too many makes the one that launches kernels wait.
"""

from __future__ import annotations

from dataclasses import dataclass

from fulltilt.errors import InputError
from fulltilt.machine.decision import Decision

MAX_WORKERS_PER_RANK = 8
MAX_WORKERS_PER_RANK_DECODING = 4
"""When the GPU augments and the workers only decode."""
MAX_WORKERS_PER_MACHINE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreBudget:
    """Cores over the whole machine, then the processes and threads of each rank."""

    usable: int
    ranks: int
    system: Decision[int]
    """Cores left to the system, the monitor, the writing of checkpoints."""
    training: Decision[int]
    """Cores for the processes that launch the GPU's work."""
    loading: Decision[int]
    """Cores for decoding and CPU augmentation; a feed of threads takes as many threads."""
    assist: Decision[int]
    """Cores for CPU work beside training: metrics, features, preprocessing."""
    workers_per_rank: Decision[int]
    """`num_workers` of a rank's DataLoader; with 0 the training process loads."""
    assist_workers: Decision[int]
    """Threads of a rank that take CPU tasks from a queue."""
    async_workers: Decision[int]
    """Threads of a rank that preprocess in the background."""


def core_budget(
    usable: int, *, ranks: int = 1, gpu_augmentation: bool = True, assist: bool = False, debug: bool = False
) -> CoreBudget:
    """Share `usable` cores among the system and `ranks` training processes, one per GPU, with their loading."""
    if usable < 1 or ranks < 1:
        raise InputError(f"a core budget needs at least 1 core and 1 rank; found {usable} and {ranks}")
    system = _system(usable, ranks)
    helpers = 0
    if usable < 2 * ranks:
        loading = Decision(value=min(max(1, usable // 2), ranks), reason=_CROWDED)
        training = Decision(value=min(usable - loading.value, ranks), reason=_CROWDED)
    else:
        pool = (usable - system.value) // ranks - 1
        wanted = _wanted_helpers(usable // ranks) if assist else 0
        helpers = min(wanted, pool - _kept_for_loading(pool, gpu_augmentation))
        training = Decision(value=ranks, reason=f"{_one_for(ranks)}: a busy core delays the launch of kernels")
        loading = Decision(value=ranks * (pool - helpers), reason="what the others leave")
    why = "not asked for" if not assist else "no core is left for it" if not helpers else _HELPERS
    return CoreBudget(
        usable=usable,
        ranks=ranks,
        system=system,
        training=training,
        loading=loading,
        assist=Decision(value=ranks * helpers, reason=why),
        workers_per_rank=_workers(usable, ranks, loading.value, gpu_augmentation=gpu_augmentation, debug=debug),
        assist_workers=Decision(value=(helpers + 1) // 2, reason=why),
        async_workers=Decision(value=helpers // 2, reason=why),
    )


_CROWDED = "fewer than 2 cores a rank: training and loading take turns"


def _system(usable: int, ranks: int) -> Decision[int]:
    if usable < 4:
        return Decision(value=0, reason="fewer than 4 cores: none is kept free")
    kept = 1 if usable < 16 else min(usable // 8, 4)
    if usable - kept < 2 * ranks:
        return Decision(value=0, reason="the ranks need every core: none is kept free")
    why = "fewer than 16 cores: one is kept free" if kept == 1 else "an eighth, from 2 on 16 cores to at most 4"
    return Decision(value=kept, reason=why)


def _workers(usable: int, ranks: int, loading: int, *, gpu_augmentation: bool, debug: bool) -> Decision[int]:
    if debug:
        return Decision(value=0, reason="debugging: errors and breakpoints stay in the training process")
    if usable < 2 * ranks:
        return Decision(value=0, reason="fewer than 2 cores a rank: the training process loads")
    bounds = [
        (loading // ranks, "the rank's share of the loading cores"),
        (max(1, usable // 2), "half the cores"),
        (MAX_WORKERS_PER_MACHINE // ranks, f"at most {MAX_WORKERS_PER_MACHINE} on a machine"),
        (MAX_WORKERS_PER_RANK, f"at most {MAX_WORKERS_PER_RANK} a rank"),
    ]
    if gpu_augmentation:
        limit = MAX_WORKERS_PER_RANK_DECODING
        bounds.append((limit, f"at most {limit} a rank when the GPU augments: they only decode"))
    value, reason = min(bounds, key=lambda bound: bound[0])
    return Decision(value=value, reason=reason)


_HELPERS = "7 threads a rank from 8 cores on, 4 from 4, 2 below, as far as loading can spare the cores"


def _wanted_helpers(cores_of_rank: int) -> int:
    return 7 if cores_of_rank >= 8 else 4 if cores_of_rank >= 4 else 2


def _kept_for_loading(pool: int, gpu_augmentation: bool) -> int:
    """Half of a rank's cores go on loading before assistance takes any, up to the fewest workers that feed a GPU."""
    return min((pool + 1) // 2, 2 if gpu_augmentation else 4)


def _one_for(ranks: int) -> str:
    return "one" if ranks == 1 else f"one for each of {ranks} ranks"
