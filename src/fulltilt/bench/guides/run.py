"""All workloads, all contestants: one process after the other, each with its share of the time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fulltilt.bench.ground import Say, machine_facts, now, said
from fulltilt.bench.guides.claims import CLAIMS, WORKLOADS
from fulltilt.bench.guides.figures import Case, GuidesBench, about, beside, cases_in, compared
from fulltilt.bench.guides.order import AFTER, BEFORE, CONTESTANTS, WHERE, Answer, Contestant, Order
from fulltilt.bench.guides.watch import Watch
from fulltilt.bench.results import alike, as_measured
from fulltilt.errors import InputError
from fulltilt.recipes.generated import ROOT

Keep = Callable[[GuidesBench], None]

NO_GPU = "The targets need an NVIDIA GPU that torch can use: the workloads were run on the CPU."
SMALL = "The targets are for the full size."
_PACKAGES = {"torchvision": "torchvision", "lightning": "lightning", "accelerate": "accelerate"}
_LEAST_SECONDS = 8.0
"""A contestant that has less left is not begun."""
_GRACE_SECONDS = 5.0
_ANSWER_SECONDS = 0.3
"""For a contestant to say where it is."""
_MOST_SHARE = 0.6
"""Of a workload's time for one contestant: the others shall have theirs."""
_LAST_LINES = 8
"""Of what a contestant said that failed."""
_WHERE = "(most recent call first)"
"""The head of what `WHERE` is answered with."""
_INSTALLED = re.compile(r"(?<=\")/[^\"]*/(?:site-packages|dist-packages|src)/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How long it may take."""

    each_seconds: float
    """For each contestant to train in, where it is measured."""
    before_seconds: float
    """For *before* to train in, and all others with as many samples as it has seen, however long they take: of these
    larger batches make fewer steps, and a training of a hundred steps says what a small batch is good for, no more."""
    workload_seconds: float
    """For all contestants of a workload, starting and compiling in it."""


FULL = Scale(each_seconds=8.0, before_seconds=24.0, workload_seconds=700.0)
FEW = Scale(each_seconds=3.0, before_seconds=3.0, workload_seconds=240.0)

Parts = Mapping[str, Sequence[Contestant]]


def parts_of(text: str) -> dict[str, tuple[Contestant, ...]]:
    """`video,forecast/after` as workloads with their contestants, in the order in which they are run."""
    every = [f"{workload}/{one.key}" for workload in WORKLOADS for one in CONTESTANTS]
    wanted = {name.strip() for name in text.split(",") if name.strip()}
    unknown = sorted(wanted - {*WORKLOADS, *every})
    if unknown or not wanted:
        raise InputError(
            f"--only: found {', '.join(unknown) or 'nothing'}; allowed: {', '.join(WORKLOADS)}, or one contestant of "
            f"them, such as {every[0]}: {', '.join(one.key for one in CONTESTANTS)}"
        )
    found = {
        workload: tuple(one for one in CONTESTANTS if workload in wanted or f"{workload}/{one.key}" in wanted)
        for workload in WORKLOADS
    }
    return {workload: contestants for workload, contestants in found.items() if contestants}


def measure(
    *,
    only: Parts,
    small: bool,
    scale: Scale,
    say: Say,
    keep: Keep = lambda _: None,
    earlier: Mapping[str, Any] | None = None,
    has_gpu: bool | None = None,
) -> GuidesBench:
    """Everything that this machine can run; `keep` has what there is after each contestant.

    Args:
        earlier: the JSON of a run before. Contestants that it has, and that are not run now, stand beside those that
            are, where it is of the same machine and size, and nothing of the one run is compared with the other.
    """
    began = time.monotonic()
    run = now()
    machine = machine_facts(_PACKAGES)
    gpu = bool(machine["gpus"]) and _torch_has_gpu() if has_gpu is None else has_gpu
    problem = NO_GPU if not gpu else SMALL if small else None
    if not alike(earlier, {"machine": as_measured(machine), "small": small or None}):
        earlier = None
    before = {name: [] if earlier is None else cases_in(earlier, name) for name in only}
    done: list[Case] = []
    told: dict[str, dict[str, Any]] = {}

    def so_far(cases: Sequence[Case]) -> GuidesBench:
        found = GuidesBench(
            machine=machine,
            date=now(),
            small=small or None,
            workloads=told,
            cases=(*done, *cases),
            seconds=time.monotonic() - began,
            problem=problem,
        )
        keep(found)
        return found

    with Watch() as watch:
        for name, contestants in only.items():
            cases: list[Case] = []
            known: list[Case] = []
            for case in _workload(
                name, told, contestants, watch, before[name], run=run, small=small, scale=scale, say=say
            ):
                cases.append(case)
                known = compared(beside(before[name], cases), hold=problem is None)
                so_far(known)
            done += known
    if Path(ROOT).is_dir():
        say(f"generated data stay in {ROOT}, as the recipes keep them, for the next time")
    return so_far([])


def _workload(
    name: str,
    told: dict[str, dict[str, Any]],
    contestants: Sequence[Contestant],
    watch: Watch,
    earlier: Sequence[Case],
    *,
    run: str,
    small: bool,
    scale: Scale,
    say: Say,
) -> Iterator[Case]:
    """A case for each contestant; a workload that can't even begin is one line, and the next goes on."""
    told[name] = about(name, "", CLAIMS.get(name))
    try:
        from fulltilt.recipes.catalog import recipe_named

        recipe = recipe_named(name)
        told[name] = about(recipe.title, recipe.metric, CLAIMS.get(name))
        say(f"{name}: data")
        make_data(name, small=small)
    except Exception as error:  # whatever it is: minutes of the others are worth more than its traceback
        trace = last_words("".join(traceback.format_exception(error)))
        yield Case(workload=name, key=name, title="all of it", answer=Answer(trace=trace), run=run, problem=said(error))
        return
    until = time.monotonic() + scale.workload_seconds
    known = {case.key: case.answer for case in earlier}
    for one in contestants:
        case = Case(workload=name, key=one.key, title=one.title, answer=Answer(), date=now(), run=run)
        left = until - time.monotonic()
        why_not = None
        if one.needs is not None and find_spec(one.needs) is None:
            why_not = f"{one.needs} is not installed"
        elif left < min(_LEAST_SECONDS, scale.workload_seconds):
            why_not = f"no time was left of {scale.workload_seconds:g} s"
        if why_not is not None:
            say(f"{name}: {one.title}: {why_not}")
            if one.key in known:
                case = next(case for case in earlier if case.key == one.key)  # it stays as it was
            else:
                case = replace(case, problem=why_not)
            yield case
            continue
        say(f"{name}: {one.title}")
        answer = contend(
            name, one.key, small=small, seconds=scale.before_seconds if one.key == BEFORE else scale.each_seconds,
            before=Answer() if one.key == BEFORE else known.get(BEFORE, Answer()),
            batch_size=known.get(AFTER, Answer()).batch_size,
            most_seconds=min(left, _MOST_SHARE * scale.workload_seconds),
        )  # fmt: skip
        known[one.key] = answer
        if answer.problem is not None:
            say(f"{name}: {one.title}: {answer.problem}")
        whole = [] if answer.window is None else [answer.window]
        yield replace(
            case,
            answer=answer,
            gpu=watch.utilisation(answer.stretches, answer.gpu_uuid),
            gpu_whole=watch.utilisation(whole, answer.gpu_uuid),
            problem=answer.problem,
        )


def contend(
    recipe: str,
    contestant: str,
    *,
    small: bool,
    seconds: float,
    before: Answer,
    batch_size: int | None,
    most_seconds: float,
) -> Answer:
    """One contestant in a process of its own; what it has found when its time is up counts.

    Args:
        before: what *before* has found: all train with as many samples.
    """
    with tempfile.TemporaryDirectory(prefix="fulltilt-bench-", ignore_cleanup_errors=True) as folder:
        file = Path(folder) / "answer.json"
        order = Order(
            recipe=recipe, contestant=contestant, folder=str(Path(folder) / "run"), answer=str(file), seconds=seconds,
            small=small, samples=before.samples, batch_size=batch_size, before_took_seconds=before.seconds,
            metric=before.metric,
        )  # fmt: skip
        command = [sys.executable, "-m", "fulltilt.bench.guides.contestant", order.to_json(), str(os.getpid())]
        with (Path(folder) / "errors").open("w+b") as errors:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
            try:
                status = process.wait(timeout=most_seconds)
            except subprocess.TimeoutExpired:
                status = None
                process.send_signal(WHERE)
                time.sleep(_ANSWER_SECONDS)
            finally:
                end(process)
            errors.seek(0)
            last = last_words(errors.read().decode(errors="replace"))
        answer = Answer.read(file)
        if status is None:
            answer.problem = f"stopped after {most_seconds:.0f} s"
        elif status and answer.problem is None:
            answer.problem = f"status {status}: {last[-1] if last else ''}"[:200]
        answer.trace = last if answer.problem is not None else []
        return answer


def last_words(text: str) -> list[str]:
    """The last lines of what was said: of an error its end, of a place in the program its innermost calls.

    Files by what they are called in a package: where this machine has them is nobody's business in a result.
    """
    lines = [_INSTALLED.sub("", line.rstrip())[:200] for line in text.splitlines() if line.strip()]
    heads = [at for at, line in enumerate(lines) if _WHERE in line]
    return lines[heads[-1] + 1 :][:_LAST_LINES] if heads else lines[-_LAST_LINES:]


def end(process: subprocess.Popen[bytes]) -> None:
    """Asked, and made to after a while. Its workers notice that it is gone."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def make_data(name: str, *, small: bool) -> None:
    """All read the same files: they are made before the first one starts its clock."""
    from fulltilt.recipes import plain
    from fulltilt.recipes.catalog import recipe_named

    plain.loaders(recipe_named(name).config("before", small=small))


def _torch_has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
