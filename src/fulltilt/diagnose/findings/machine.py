"""The machine and its neighbours: threads, memory, clocks, other processes, other ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import fsum
from statistics import median

from fulltilt import words
from fulltilt.measure.observation import Observation, Phase, Surroundings

from .. import edits
from ..figures import Figures
from ..finding import About, Finding, Limits
from ..thresholds import THRESHOLDS

_EACH_RANKS_OWN: tuple[Phase, ...] = ("data wait", "epoch start", "copy", "forward", "logging", "eval", "other")
"""Not backward, optimizer and sync: in these the ranks wait for each other."""
_LEAST_READINGS = 8


def machine(figures: Figures) -> list[Finding]:
    found = figures.observation.surroundings
    if found is None or not figures.steps:
        return []
    return [*_threads(figures), *_throttled(found), *_shared(found), *_growing(figures, found)]


def _threads(figures: Figures) -> list[Finding]:
    """Threads that wait for a core while others wait for them."""
    training = figures.observation.training
    if training is None or figures.on_gpu:
        return []
    ranks, threads = figures.local_ranks, training.threads
    if ranks * threads <= figures.cores:
        return _threads_beside_workers(figures, threads)
    wanted = max(1, figures.cores // ranks)
    if wanted >= threads:
        return []
    on_cores = f"on {words.many(figures.cores, 'core')}"
    return [
        _fewer_threads(
            figures,
            wanted,
            title=f"{ranks} ranks compute with {threads} threads each, {on_cores}"
            if ranks > 1
            else f"torch computes with {threads} threads {on_cores}",
            evidence=f"{ranks * threads / figures.cores:.2g} threads take turns on each core, and wait for each other",
            gain=None,  # between nothing and many times: it depends on how the threads wait
            about="feeding" if ranks > 1 else "step",
        )
    ]


def _threads_beside_workers(figures: Figures, threads: int) -> list[Finding]:
    """No more threads than cores, but workers want these, too: a team of threads waits for the one without a core.

    Counted is what is left if fewer threads take as many times longer: often they don't.
    """
    loader, limit = figures.train_loader, figures.limit
    if loader is None or limit is None or not figures.crowding:
        return []
    wanted = max(1, figures.cores // figures.local_ranks - loader.num_workers)
    alone = limit * threads / wanted
    beside = limit + figures.crowding
    if wanted >= threads or beside < THRESHOLDS.contention * alone:
        return []
    workers = words.many(loader.num_workers, "worker")
    return [
        _fewer_threads(
            figures,
            wanted,
            title=f"torch computes with {threads} threads beside {workers}, on {figures.cores} cores",
            evidence=(
                f"the step's own work takes {words.seconds(figures.own)} beside them and {words.seconds(limit)} alone: "
                "threads that have no core hold up those that have"
            ),
            gain=figures.gain(step=figures.fed(figures.loader, own=figures.own - (beside - alone))),
            about="feeding",
        )
    ]


def _fewer_threads(
    figures: Figures, wanted: int, *, title: str, evidence: str, gain: float | None, about: About
) -> Finding:
    call = f"torch.set_num_threads({wanted})"
    script = edits.script_of(figures.observation.command)
    return Finding(
        cause="too-many-threads",
        title=title,
        evidence=(evidence,),
        gain=gain,
        fix=f"{call}, or OMP_NUM_THREADS={wanted} in the environment",
        diff=edits.edited(figures.read_source, script, edits.replaced_call("set_num_threads", call)),
        settings={"threads": wanted},
        about=about,
    )


def _throttled(found: Surroundings) -> list[Finding]:
    if found.throttled is None:
        return []
    return [
        Finding(
            cause="throttled",
            title=f"The GPU's clocks are held down: {found.throttled}",
            evidence=(f"the driver says {found.throttled} for {found.gpu or 'the GPU'}",),
            gain=None,
            fix="Look after its cooling and power (nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE)",
            about="between",
        )
    ]


def _shared(found: Surroundings) -> list[Finding]:
    if found.other_processes <= 0:
        return []
    several = found.other_processes > 1
    return [
        Finding(
            cause="shared-gpu",
            title="The GPU is shared with " + ("other processes" if several else "another process"),
            evidence=(
                f"{found.other_processes} other process{'es' * several} computed on {found.gpu or 'it'} meanwhile",
            ),
            gain=None,
            fix="End them, or train on another GPU (nvidia-smi names them; CUDA_VISIBLE_DEVICES=…)",
            about="between",
        )
    ]


def _growing(figures: Figures, found: Surroundings) -> list[Finding]:
    """Memory that rises through all of the second half of the time watched."""
    readings = found.memory_bytes
    if len(readings) < _LEAST_READINGS:
        return []
    half = readings[len(readings) // 2 :]
    third = max(len(half) // 3, 1)
    first, last = fsum(half[:third]) / third, fsum(half[-third:]) / third
    rises = sum(later > earlier for earlier, later in pairwise(half))
    grown = last - first
    if grown < THRESHOLDS.memory_growth_bytes or grown < THRESHOLDS.memory_growth * first or 2 * rises < len(half) - 1:
        return []
    return [
        Finding(
            cause="memory-growth",
            title="The memory that the script uses keeps growing",
            evidence=(
                f"from {words.memory_size(first)} to {words.memory_size(last)} in the second half of "
                f"{words.seconds(figures.observation.seconds)}",
            ),
            gain=None,
            fix="Sum up loss.item() or loss.detach(), not loss, which keeps its graph; keep a data set's lists as "
            "numpy or Arrow arrays, which workers share",
            about="between",
        )
    ]


def slow_rank(ranks: Sequence[Observation]) -> list[Finding]:
    """One rank comes late to each step, and all others wait for it in backward."""
    figures = [Figures(observation=rank, limits=Limits(step=None, loader=None)) for rank in ranks]
    figures = [figure for figure in figures if figure.steps >= THRESHOLDS.least_steps]
    if len(figures) < 2:
        return []
    own = [fsum(figure.phases[phase] for phase in _EACH_RANKS_OWN) for figure in figures]
    worst = max(range(len(own)), key=own.__getitem__)
    others = [figure for at, figure in enumerate(figures) if at != worst]
    middle = median(value for at, value in enumerate(own) if at != worst)
    late, slow = own[worst] - middle, figures[worst]
    if late < THRESHOLDS.slow_rank * slow.step:
        return []
    phase = max(_EACH_RANKS_OWN, key=lambda name: slow.phases[name] - median(f.phases[name] for f in others))
    usual = median(figure.phases[phase] for figure in others)
    return [
        Finding(
            cause="slow-rank",
            title=f"Rank {slow.observation.rank} is slower than the others, and all wait for it",
            evidence=(
                f"its own part of a step takes {words.seconds(own[worst])}, the others' {words.seconds(middle)}",
                f"most of it in {phase}: {words.seconds(slow.phases[phase])} against {words.seconds(usual)}",
            ),
            gain=slow.gain(step=slow.step - late),
            fix="Look at that rank's GPU, its cores and its share of the data: all ranks need the same",
            seconds=late,
        )
    ]
