"""All of the benchmark in order, so that nothing else runs while something is timed."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace

import torch

from fulltilt.bench.augment.cases import Plan, get_ready, plans
from fulltilt.bench.augment.check import check_call
from fulltilt.bench.augment.compiled import WANTED, Compiling
from fulltilt.bench.augment.figures import AugmentBench, Case, Check, Peer, Timing
from fulltilt.bench.augment.loader import WORKERS, measure_loader
from fulltilt.bench.augment.peers import contenders, float_inputs, measure_peer
from fulltilt.bench.augment.task import Task
from fulltilt.bench.augment.timing import copy_tb_per_s, graph_ms, time_on_cpu, time_on_gpu
from fulltilt.bench.ground import Say, machine_facts, now, said
from fulltilt.machine.cores import read_cores

_PACKAGES = {"kornia": "kornia", "torchvision": "torchvision", "triton_augment": "triton_augment"}


COMPILE_LIMIT_SECONDS = 40.0
_CPU_BATCH, _CPU_SIZE = 4, 128
"""Without a GPU nothing larger is measured: it would take minutes and say no more."""
_RATIOS = {"Kornia": "times_kornia", "triton-augment": "times_triton_augment"}


def measure(*, batch: int, size: int, masks: bool, quick: bool, say: Say) -> AugmentBench:
    """Everything that this machine can run; `say` hears what comes next."""
    began = time.monotonic()
    if torch.cuda.is_available():
        found = _on_gpu(Task(batch=batch, size=size, masks=masks, device="cuda"), quick=quick, say=say)
    else:
        found = _without_gpu(batch=batch, size=size, masks=masks, quick=quick, say=say)
    return replace(found, seconds=time.monotonic() - began)


def _on_gpu(task: Task, *, quick: bool, say: Say) -> AugmentBench:
    loaders = _loaders(task, quick=quick, say=say)
    wanted = plans(task, quick=quick)
    with ExitStack() as stack:
        children = [] if quick else [Compiling(one, task) for one in WANTED]
        for child in children:
            stack.callback(child.close)
        say("compiling, and checking every case against the torch path")
        checks = [_checked(plan, task.device) for plan in wanted]
        for child in children:
            child.wait(limit_seconds=COMPILE_LIMIT_SECONDS)
        compiled = tuple(child.measure() for child in children)
    say("the rate of a copy in device memory")
    rate = copy_tb_per_s()
    cases = []
    for plan, check in zip(wanted, checks, strict=True):
        say(f"ours: {plan.title}")
        cases.append(_measured(plan, check, rate, task.device))
        torch.cuda.empty_cache()
    peers = _peers(task, quick=quick, say=say) + compiled + loaders
    return AugmentBench(
        machine=machine_facts(_PACKAGES),
        date=now(),
        seconds=0.0,
        task=_task(task),
        copy_tb_per_s=rate,
        cases=(_with_ratios(cases[0], peers), *cases[1:]),
        peers=peers,
    )


def _without_gpu(*, batch: int, size: int, masks: bool, quick: bool, say: Say) -> AugmentBench:
    task = Task(batch=min(batch, _CPU_BATCH), size=min(size, _CPU_SIZE), masks=masks, device="cpu")
    say(f"ours in torch: {task.title}")
    plan = replace(plans(task, quick=True)[0], wanted=())
    ours = Case(key=plan.key, title=plan.title, timing=time_on_cpu(get_ready(plan, device="cpu")))
    return AugmentBench(
        machine=machine_facts(_PACKAGES),
        date=now(),
        seconds=0.0,
        task=_task(task),
        cases=(ours,),
        peers=_peers(task, quick=quick, say=say) + _loaders(task, quick=quick, say=say),
        problem=f"GPU figures need an NVIDIA GPU that torch can use: only what runs on the CPU was measured, "
        f"with {task.batch}×{task.size}².",
    )


def _checked(plan: Plan, device: str) -> Check | str:
    """Compiles the case's kernels on the way. A failure is the case's own line, and the others go on."""
    ready = get_ready(plan, device=device, sets=1)
    try:
        return check_call(ready.module, *ready.inputs[0])
    except Exception as error:
        return said(error)


def _measured(plan: Plan, check: Check | str, rate_tb_per_s: float, device: str) -> Case:
    case = Case(
        key=plan.key,
        title=plan.title,
        wanted=plan.wanted,
        floor_ms=plan.bytes_moved / rate_tb_per_s / 1e9,
    )
    if isinstance(check, str):
        return replace(case, problem=check)
    case = replace(case, check=check)
    timing: Timing | None = None
    try:
        ready = get_ready(plan, device=device)
        timing = time_on_gpu(ready)
        if plan.graph:
            timing = replace(timing, graph_ms=graph_ms(ready))
    except Exception as error:
        return replace(case, timing=timing, problem=said(error))
    return replace(case, timing=timing)


def _peers(task: Task, *, quick: bool, say: Say) -> tuple[Peer, ...]:
    inputs = float_inputs(task)
    found = []
    for contender in contenders(task, quick=quick):
        say(contender.name)
        found.append(measure_peer(contender, task, inputs))
    return tuple(found)


def _loaders(task: Task, *, quick: bool, say: Say) -> tuple[Peer, ...]:
    cores = read_cores().usable
    found = []
    for workers in WORKERS[:1] if quick else WORKERS:
        say(f"CPU, {workers} workers")
        found.append(measure_loader(workers, task, cores=cores, seconds=0.3 if task.device == "cpu" else 1.5))
    return tuple(found)


def _with_ratios(case: Case, peers: tuple[Peer, ...]) -> Case:
    if case.timing is None:
        return case
    ratios = {
        _RATIOS[peer.name]: peer.timing.wall_ms / case.timing.wall_ms
        for peer in peers
        if peer.name in _RATIOS and peer.timing is not None
    }
    return replace(case, ratios=ratios)


def _task(task: Task) -> str:
    return f"{task.title}: flip, rotation, brightness, contrast, normalise; ours uint8 N×H×W×C to bf16 channels_last"
