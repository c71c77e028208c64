"""All of the benchmark in order, so that nothing else runs while something is measured."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import torch

from fulltilt.bench.assist.figures import AssistBench
from fulltilt.bench.assist.metrics import measure_metrics
from fulltilt.bench.assist.tasks import measure_many, measure_tasks
from fulltilt.bench.ground import machine_facts
from fulltilt.bench.train.contest import Say

NO_GPU = "What metrics cost the step is a question to an NVIDIA GPU: a tiny model was run on the CPU."


def measure(*, quick: bool, say: Say) -> AssistBench:
    """Everything that this machine can run; `say` hears what comes next."""
    began = time.monotonic()
    gpu = torch.cuda.is_available()
    rounds, seconds = (3, 1.0) if gpu and quick else (4, 1.25) if gpu else (1, 0.02) if quick else (3, 0.5)
    say("tasks: trivial ones, against concurrent.futures")
    tasks = measure_tasks(tasks=2_000 if quick else 20_000, rounds=3 if quick else 7)
    count = 20_000 if quick else 1_000_000
    say(f"tasks: {count:,} of them")
    many = measure_many(tasks=count)
    title, cases = measure_metrics(gpu=gpu, rounds=rounds, seconds=seconds, say=say)
    return AssistBench(
        machine=machine_facts({"torchmetrics": "torchmetrics"}),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        title=title,
        cases=tuple(cases),
        tasks=tasks,
        many=many,
        seconds=time.monotonic() - began,
        problem=None if gpu else NO_GPU,
    )
