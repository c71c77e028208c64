"""All of the benchmark in order, so that nothing else runs while something is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from fulltilt.bench.assist.balance import measure_balance
from fulltilt.bench.assist.figures import AssistBench
from fulltilt.bench.assist.metrics import measure_metrics
from fulltilt.bench.assist.tasks import measure_many, measure_tasks
from fulltilt.bench.ground import Say, machine_facts, now
from fulltilt.machine.cores import read_cores

NO_GPU = "What metrics cost the step is a question to an NVIDIA GPU: a tiny model was run on the CPU."


def measure(
    *, quick: bool, only: Sequence[str], say: Say, keep: Callable[[AssistBench], None] = lambda _: None
) -> AssistBench:
    """Everything that this machine can run; `say` hears what comes next, `keep` gets what there is after each part."""
    began = time.monotonic()
    gpu = torch.cuda.is_available()
    found = AssistBench(
        machine=machine_facts({"torchmetrics": "torchmetrics"}),
        date=now(),
        seconds=0.0,
        problem=None if gpu else NO_GPU,
    )
    if "tasks" in only:
        say("tasks: trivial ones, against concurrent.futures")
        tasks = measure_tasks(tasks=2_000 if quick else 20_000, rounds=3 if quick else 7)
        count = 20_000 if quick else 1_000_000
        say(f"tasks: {count:,} of them")
        found = replace(found, tasks=tasks, many=measure_many(tasks=count))
        keep(found)
    if "metrics" in only:
        rounds, seconds = (3, 2.0) if gpu and quick else (3, 5.0) if gpu else (1, 0.02) if quick else (3, 0.5)
        title, cases = measure_metrics(gpu=gpu, rounds=rounds, seconds=seconds, say=say)
        found = replace(found, title=title, cases=tuple(cases))
        keep(found)
    if "balance" in only:
        pace = 1.0 if gpu else 0.1 if quick else 0.5
        found = replace(found, balance=measure_balance(cores=read_cores().usable, say=say, gpu=gpu, pace=pace))
    found = replace(found, seconds=time.monotonic() - began)
    keep(found)
    return found
