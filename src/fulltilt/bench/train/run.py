"""All of the benchmark in order, so that nothing else runs while something is measured."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import torch

from fulltilt.bench.ground import machine_facts, said
from fulltilt.bench.train.contest import Contestant, Say, contest
from fulltilt.bench.train.figures import Case, TrainBench
from fulltilt.bench.train.workloads import Workload, ours, workloads
from fulltilt.errors import InputError

WORKLOADS = ("resnet50", "unet", "windows")
NO_GPU = "The targets need an NVIDIA GPU that torch can use: tiny models were run on the CPU."
STEP_AT_LEAST = 0.99
"""Of the fastest step by hand."""


def parts_of(text: str) -> tuple[str, ...]:
    """`unet,windows` as workloads, in the order in which they are run."""
    wanted = {name.strip() for name in text.split(",") if name.strip()}
    unknown = sorted(wanted - set(WORKLOADS))
    if unknown or not wanted:
        raise InputError(f"--only: found {', '.join(unknown) or 'nothing'}; allowed: {', '.join(WORKLOADS)}")
    return tuple(name for name in WORKLOADS if name in wanted)


def contestants(work: Workload, *, gpu: bool) -> list[Contestant]:
    """By hand in every way that is worth trying, and ours. Whatever else is to be compared joins here."""
    hand = [
        Contestant(key=f"hand_{index}", title=f"by hand: {title}", make=make, reference=True)
        for index, (title, make) in enumerate(work.by_hand.items())
    ]
    step = Contestant(
        key="step", title="ours, all at auto", make=ours, at_least=STEP_AT_LEAST if gpu else None
    )  # fmt: skip
    return [*hand, step]


def measure(*, quick: bool, only: Sequence[str], say: Say) -> TrainBench:
    """Everything that this machine can run; `say` hears what comes next."""
    began = time.monotonic()
    gpu = torch.cuda.is_available()
    rounds, seconds = (3, 0.5) if gpu and quick else (7, 1.0) if gpu else (3, 0.02) if quick else (5, 0.2)
    made = workloads(gpu=gpu)
    titles: dict[str, str] = {}
    cases: list[Case] = []
    for name in only:
        cases += _workload(name, made[name], titles, gpu=gpu, rounds=rounds, seconds=seconds, say=say)
        if gpu:
            gc.collect()
            torch.compiler.reset()
            torch.cuda.empty_cache()
    return TrainBench(
        machine=machine_facts({"torchvision": "torchvision"}),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        workloads=titles,
        cases=tuple(cases),
        seconds=time.monotonic() - began,
        problem=None if gpu else NO_GPU,
    )


def _workload(
    name: str,
    make: Callable[[], Workload],
    titles: dict[str, str],
    *,
    gpu: bool,
    rounds: int,
    seconds: float,
    say: Say,
) -> list[Case]:
    """A workload that can't even begin is one line; the next goes on."""
    try:
        work = make()
        titles[name] = work.title
        return contest(work, contestants(work, gpu=gpu), rounds=rounds, seconds=seconds, say=say)
    except Exception as error:
        return [Case(workload=name, key=name, title="all of it", problem=said(error))]
