"""All workloads, all contestants: one process after the other, each with its share of the time."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fulltilt.bench.ground import ending_at_sigterm, machine_facts, said
from fulltilt.bench.guides.claims import CLAIMS, WORKLOADS
from fulltilt.bench.guides.figures import Case, GuidesBench, about, compared
from fulltilt.bench.guides.order import AFTER, BEFORE, CONTESTANTS, Answer, Contestant, Order
from fulltilt.bench.guides.watch import Watch
from fulltilt.bench.results import chosen
from fulltilt.recipes.generated import ROOT

Say = Callable[[str], None]
Keep = Callable[[GuidesBench], None]

NO_GPU = "The targets need an NVIDIA GPU that torch can use: the workloads were run on the CPU."
SMALL = "The targets are for the full size."
_PACKAGES = {"torchvision": "torchvision", "lightning": "lightning", "accelerate": "accelerate"}
_LEAST_SECONDS = 8.0
"""A contestant that has less left is not begun."""
_GRACE_SECONDS = 5.0
_MOST_SHARE = 0.7
"""Of a workload's time for one contestant: the others shall have theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How long it may take."""

    each_seconds: float
    """Of training, for each contestant."""
    workload_seconds: float
    """For all contestants of a workload, starting and compiling in it."""


FULL, FEW = Scale(each_seconds=6.0, workload_seconds=120.0), Scale(each_seconds=3.0, workload_seconds=240.0)


def parts_of(text: str) -> tuple[str, ...]:
    """`video,forecast` as workloads, in the order in which they are run."""
    return chosen(text, WORKLOADS)


def measure(
    *,
    only: Sequence[str],
    small: bool,
    scale: Scale,
    contestants: Sequence[Contestant] = CONTESTANTS,
    say: Say,
    keep: Keep = lambda _: None,
    has_gpu: bool | None = None,
) -> GuidesBench:
    """Everything that this machine can run; `keep` has what there is after each contestant."""
    began = time.monotonic()
    machine = machine_facts(_PACKAGES)
    gpu = bool(machine["gpus"]) and _torch_has_gpu() if has_gpu is None else has_gpu
    problem = NO_GPU if not gpu else SMALL if small else None
    done: list[Case] = []
    told: dict[str, dict[str, Any]] = {}

    def so_far(cases: list[Case]) -> GuidesBench:
        found = GuidesBench(
            machine=machine,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            small=small,
            workloads=told,
            cases=(*done, *compared(cases, hold=problem is None)) if cases else tuple(done),
            seconds=time.monotonic() - began,
            problem=problem,
        )
        keep(found)
        return found

    with ending_at_sigterm(), Watch() as watch:
        for name in only:
            cases: list[Case] = []
            for case in _workload(name, told, contestants, watch, small=small, scale=scale, say=say):
                cases.append(case)
                so_far(cases)
            done += compared(cases, hold=problem is None)
    if Path(ROOT).is_dir():
        say(f"generated data stay in {ROOT}, as the recipes keep them, for the next time")
    return so_far([])


def _workload(
    name: str,
    told: dict[str, dict[str, Any]],
    contestants: Sequence[Contestant],
    watch: Watch,
    *,
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
        yield Case(workload=name, key=name, title="all of it", answer=Answer(), problem=said(error))
        return
    until = time.monotonic() + scale.workload_seconds
    steps = batch_size = None
    for one in contestants:
        case = Case(workload=name, key=one.key, title=one.title, answer=Answer())
        left = until - time.monotonic()
        if one.needs is not None and find_spec(one.needs) is None:
            yield _without(case, f"{one.needs} is not installed")
            continue
        if left < min(_LEAST_SECONDS, scale.workload_seconds):
            yield _without(case, f"no time was left of {scale.workload_seconds:g} s")
            continue
        say(f"{name}: {one.title}")
        answer = contend(
            name, one.key, small=small, seconds=scale.each_seconds, steps=steps, batch_size=batch_size,
            most_seconds=min(left, _MOST_SHARE * scale.workload_seconds),
        )  # fmt: skip
        if one.key == BEFORE:
            steps = answer.steps
        if one.key == AFTER:
            batch_size = answer.batch_size
        gpu = None if answer.window is None else watch.utilisation(answer.window, answer.gpu_uuid)
        yield Case(workload=name, key=one.key, title=one.title, answer=answer, gpu=gpu, problem=answer.problem)


def contend(
    recipe: str,
    contestant: str,
    *,
    small: bool,
    seconds: float,
    steps: int | None,
    batch_size: int | None,
    most_seconds: float,
) -> Answer:
    """One contestant in a process of its own; what it has found when its time is up counts."""
    with tempfile.TemporaryDirectory(prefix="fulltilt-bench-", ignore_cleanup_errors=True) as folder:
        file = Path(folder) / "answer.json"
        order = Order(
            recipe=recipe, contestant=contestant, folder=str(Path(folder) / "run"), answer=str(file), seconds=seconds,
            small=small, steps=steps, batch_size=batch_size,
        )  # fmt: skip
        command = [sys.executable, "-m", "fulltilt.bench.guides.contestant", order.to_json()]
        with (Path(folder) / "errors").open("w+b") as errors:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
            try:
                status = process.wait(timeout=most_seconds)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                end(process)
            errors.seek(0)
            last = (errors.read().decode(errors="replace").strip().splitlines() or [""])[-1]
        answer = Answer.read(file)
        if status is None:
            answer.problem = f"stopped after {most_seconds:.0f} s"
        elif status and answer.problem is None:
            answer.problem = f"status {status}: {last}"[:200]
        return answer


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


def joinable(file: Path | None, *, small: bool) -> Path | None:
    """The file, where its figures are of the same size: small ones and full ones never stand in one result."""
    if file is None or not file.exists():
        return file
    try:
        earlier = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return None
    return file if isinstance(earlier, dict) and bool(earlier.get("small")) == small else None


def _without(case: Case, problem: str) -> Case:
    return Case(workload=case.workload, key=case.key, title=case.title, answer=case.answer, problem=problem)


def _torch_has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
