"""All of the benchmark in order, so that nothing else runs while something is measured."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence

import torch

from fulltilt.bench.ground import Say, machine_facts, now, said
from fulltilt.bench.train.contest import Contestant, contest
from fulltilt.bench.train.figures import Case, TrainBench
from fulltilt.bench.train.loops import loop, plain_loader
from fulltilt.bench.train.workloads import Workload, ours, workloads

WORKLOADS = ("resnet50", "unet", "windows")
NO_GPU = "The targets need an NVIDIA GPU that torch can use: tiny models were run on the CPU."
STEP_AT_LEAST, LOOP_AT_LEAST = 0.99, 0.97
"""Of the fastest step by hand."""
SAVING_EVERY, SAVING_AT_LEAST = 50, 0.99
"""Steps between two checkpoints; of the loop without them."""
TIMES_LOADER = 10.0
"""Training from memory, against a plain loop over a DataLoader."""


def contestants(work: Workload, *, gpu: bool) -> list[Contestant]:
    """By hand in every way that is worth trying, and ours. Whatever else is to be compared joins here."""
    hand = [
        Contestant(key=f"hand_{index}", title=f"by hand: {title}", make=make, reference=True)
        for index, (title, make) in enumerate(work.by_hand.items())
    ]

    def target(at_least: float) -> float | None:
        return at_least if gpu else None

    found = [
        *hand,
        Contestant(key="step", title="our step, all at auto", make=ours, at_least=target(STEP_AT_LEAST)),
        Contestant(key="loop", title="Trainer: log, metrics, progress", make=loop(), at_least=target(LOOP_AT_LEAST)),
    ]
    if work.key != "windows":  # fifty of its steps take ten milliseconds
        found.append(
            Contestant(
                key="saving",
                title=f"Trainer, a checkpoint every {SAVING_EVERY} steps",
                make=loop(checkpoint_every=SAVING_EVERY if gpu else 2),
                at_least=target(SAVING_AT_LEAST),
                against="loop",
            )
        )
    if work.key == "windows":
        found += [
            Contestant(key="plain", title="plain loop over a DataLoader", make=plain_loader),
            Contestant(
                key="memory",
                title="Trainer over data in memory",
                make=loop(from_memory=True),
                at_least=target(TIMES_LOADER),
                against="plain",
            ),
        ]
    return found


def measure(
    *, quick: bool, only: Sequence[str], say: Say, keep: Callable[[TrainBench], None] = lambda _: None
) -> TrainBench:
    """Everything that this machine can run; `say` hears what comes next, `keep` what there is after each workload."""
    began = time.monotonic()
    gpu = torch.cuda.is_available()
    rounds, seconds = (3, 0.5) if gpu and quick else (5, 1.0) if gpu else (3, 0.02) if quick else (5, 0.2)
    made = workloads(gpu=gpu)
    titles: dict[str, str] = {}
    cases: list[Case] = []
    for name in only:
        cases += _workload(name, made[name], titles, gpu=gpu, rounds=rounds, seconds=seconds, say=say)
        if gpu:
            gc.collect()
            torch.compiler.reset()
            torch.cuda.empty_cache()
        found = TrainBench(
            machine=machine_facts({"torchvision": "torchvision"}),
            date=now(),
            workloads=titles,
            cases=tuple(cases),
            seconds=time.monotonic() - began,
            problem=None if gpu else NO_GPU,
        )
        keep(found)
    return found


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
