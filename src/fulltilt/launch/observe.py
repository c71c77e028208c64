"""Run the user's command in fresh processes and see what it does. What everything else in this room builds on.

observe(command) ─► job file ─► python train.py … (hooks inside) ─► rank-N-PID.json ─► Observation per rank
"""

from __future__ import annotations

import itertools
import math
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from fulltilt import words
from fulltilt.errors import FulltiltError, InputError, cause
from fulltilt.launch import job as jobs
from fulltilt.launch.around import Around
from fulltilt.launch.command import Command
from fulltilt.launch.ending import end_group, ended_tidily
from fulltilt.launch.scratch import room_or_told, scratch
from fulltilt.launch.untouched import changes, state
from fulltilt.machine.ranks import told_world
from fulltilt.machine.sample import Sample
from fulltilt.measure.observation import Ended, Mode, Observation, read

GRACE_SECONDS = 10.0
"""How long processes may take to leave once rank 0 has said what it saw."""
LIMITS_SECONDS = 30.0
"""How long limits may take behind the steps, and `LIMITS_STEPS` of the longest on top: they are looked after at the end
of a step, and a script may evaluate for an hour before its next, or hang with batches that it did not expect."""
LIMITS_STEPS = 4
POLL_SECONDS = 0.05
LEAST_STEPS = 10
"""A script that leaves with an exit status sooner has failed: it can hardly have trained."""
TAIL_LINES = 15
FULL_BYTES = 64 << 20
FULL_SHARE = 0.1
"""A disk with less room than both is full, as far as a script is concerned that has failed."""

QUIET = {
    "PYTHONDONTWRITEBYTECODE": "1",  # the interpreter itself writes beside the user's modules
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
}
"""A trial leaves no trace, with services that keep figures neither."""
_LOGS = "PET_LOG_DIR"
"""As torchrun's --log-dir."""
_meetings = itertools.count(1)

Progress = Callable[[float, bool], None]
"""Called a few times per second with the seconds so far, and whether limits are measured now, behind the steps."""


def observe(command: Command, **options: Any) -> Observation:
    """Rank 0 of `observe_all`, with the same options."""
    return observe_all(command, **options)[0]


def observe_all(
    command: Command,
    *,
    mode: Mode = "as is",
    settings: Mapping[str, Any] | None = None,
    max_steps: int = 200,
    max_seconds: float = 120.0,
    full: bool = False,
    then: tuple[Mode, ...] = (),
    seed: int | None = None,
    tie_draws: bool = False,
    tie_dropout: bool = False,
    shield: bool = True,
    echo: bool = False,
    first_step_seconds: float | None = None,
    deadline_seconds: float | None = None,
    own_status: int | None = None,
    on_progress: Progress | None = None,
    on_sample: Callable[[Sample], Any] | None = None,
) -> tuple[Observation, ...]:
    """Run the command until enough was seen of it; an observation for each rank, rank 0's first.

    `max_seconds` counts from the first step; the others, where given, from the command's start: `first_step_seconds`
    ends one that has not trained until then, `deadline_seconds` any that has not come to what is wanted of it. Limits
    that are named in `then` are measured behind the last step, the step's where one rank trains alone and goes on so
    long: see `Observation.replayed` and `Loader.samples_per_second`. With `echo` the script's output is the terminal's;
    else its last lines are in the notes where it failed. `own_status` is what it leaves with by itself, as was seen
    before: to end so is no failure. `on_sample` is given what is read of the machine meanwhile, on a thread.
    """
    if mode not in get_args(Mode):
        raise InputError(f"a script is observed in one of the modes {', '.join(get_args(Mode))}, found {mode!r}")
    with ended_tidily(), scratch() as folder:
        out = folder / "out"
        out.mkdir()
        guarded = sorted({here := _here(), command.folder or here})
        job = jobs.Job(
            out=str(out),
            mode=mode,
            settings=dict(settings or {}),
            max_steps=max_steps,
            max_seconds=max_seconds,
            full=full,
            then=then,
            seed=seed,
            tie_draws=tie_draws,
            tie_dropout=tie_dropout,
            shield=str(folder / "shield") if shield else None,
            guarded=tuple(str(folder) for folder in guarded),
            agree_by_store=by_torchrun(),
            starts_ranks=command.processes is not None,
            command=command.words,
        )
        file = folder / "job.json"
        with room_or_told():
            job.write(file)
        log = None if echo else folder / "output.txt"
        before = state(guarded) if shield else {}
        began = time.monotonic()
        status, late, around = _run(
            command, file, log=log, out=out, first_step=first_step_seconds, deadline=deadline_seconds,
            progress=on_progress, on_sample=on_sample, shield=shield, looks=not tie_draws,
        )  # fmt: skip
        seconds = time.monotonic() - began
        begun = max(seconds - _age(out / jobs.BEGUN), 0.0)
        changed = changes(before, state(guarded)) if shield else ()
        reports = [read(path) for path in _files(out, jobs.REPORT) or _files(out, jobs.AS_IS)]
        raised = any(one.ended == "failed" for one in reports)
        found = _best(reports)
        if not found:
            found = [
                Observation(command=command.words, mode=mode, applied=job.settings, ended="script", seconds=seconds)
            ]
        tail = _tail(log) if log is not None else ()
        no_space = _is_full(folder) if shield else ()
        return tuple(
            replace(
                one,
                notes=(*one.notes, *changed, *(no_space if one.ended in ("failed", "killed") else ())),
                surroundings=around.seen(
                    None if one.training is None else one.training.device,
                    begun=begun,
                    since=one.warm_up_seconds or 0.0,
                    until=_trained_until(one),
                ),
            )
            for one in (
                _ended(one, status=status, own=own_status, late=late, raised=raised, tail=tail) for one in found
            )
        )


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise FulltiltError("the folder that this was started in is no more; change into one that is there") from None


def environment(file: Path, *, shield: bool = False) -> dict[str, str]:
    """What the command is started with: its own environment, and the way to us."""
    folder = str(Path(__file__).parent / "site")
    paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        **_own_meeting_place(),
        **torchruns_logs(file.parent, trial=shield),
        jobs.VARIABLE: str(file),
        jobs.LAUNCHER: str(os.getpid()),
        "PYTHONPATH": os.pathsep.join(paths),
        **(QUIET if shield else {}),
    }


def _own_meeting_place() -> dict[str, str]:
    """Where torchrun has started us, once for each rank: our commands' ranks meet at a port of their own each time.

    At torchrun's they would find what the run before has left there. All ranks observe the same runs in the same
    order, so that they count alike.
    """
    if not by_torchrun() or "MASTER_PORT" not in os.environ:
        return {}
    port = int(os.environ["MASTER_PORT"]) + next(_meetings)
    return {"MASTER_PORT": str(port if port < 65536 else port - 20000), "TORCHELASTIC_USE_AGENT_STORE": "False"}


def torchruns_logs(scratch: Path, *, trial: bool = False) -> dict[str, str]:
    """Where a torchrun of ours keeps what it writes of each run: it would leave a folder among the temporary ones. In
    the script's own run the user may have said where; a trial leaves nothing there either."""
    return {} if _LOGS in os.environ and not trial else {_LOGS: str(scratch / "out" / "torchrun")}


def by_torchrun() -> bool:
    """Whether we ourselves are one of several ranks."""
    return told_world() > 1 and "RANK" in os.environ


def _run(
    command: Command,
    file: Path,
    *,
    log: Path | None,
    out: Path,
    first_step: float | None,
    deadline: float | None,
    progress: Progress | None,
    on_sample: Callable[[Sample], Any] | None,
    shield: bool,
    looks: bool,
) -> tuple[int | None, bool, Around]:
    """Exit status (None where we ended it), whether that was for the time, and what went on around it; nobody `looks`
    at that where losses are compared, and several run side by side."""
    began = time.monotonic()
    sink = None if log is None else log.open("wb")
    try:
        process = subprocess.Popen(
            command.argv(), env=environment(file, shield=shield), stdout=sink, stderr=sink, start_new_session=True
        )
        around = Around(process.pid, on_sample)
        reported: float | None = None
        seen_until: float | None = None
        try:
            with around if looks else nullcontext():
                while process.poll() is None:
                    time.sleep(POLL_SECONDS)
                    now = time.monotonic()
                    if reported is None and _files(out, jobs.REPORT):
                        reported = now
                    if seen_until is None and (as_is := _files(out, jobs.AS_IS)):
                        seen_until = now + LIMITS_SECONDS + LIMITS_STEPS * _longest_step(as_is[0])
                    if progress is not None:
                        progress(now - began, seen_until is not None and reported is None)
                    if reported is not None and now - reported > GRACE_SECONDS:
                        return None, False, around
                    if reported is not None:
                        continue
                    if seen_until is not None and now > seen_until:
                        return None, False, around
                    if deadline is not None and now - began > deadline:
                        return None, True, around
                    if first_step is not None and now - began > first_step and not (out / jobs.BEGUN).exists():
                        return None, True, around
            return process.returncode, False, around
        finally:
            end_group(process)
    finally:
        if sink is not None:
            sink.close()


def _files(out: Path, name: str) -> list[Path]:
    return sorted(out.glob(name.format(rank="*", pid="*")))


def _age(file: Path) -> float:
    """Seconds since it was made; endless where it was not."""
    try:
        return time.time() - file.stat().st_mtime
    except OSError:
        return math.inf


def _longest_step(file: Path) -> float:
    return max((step.seconds for step in read(file).steps), default=0.0)


def _best(reports: Sequence[Observation]) -> list[Observation]:
    """One per rank: of processes that share a rank, the one that trained most."""
    best: dict[int, Observation] = {}
    for one in reports:
        known = best.get(one.rank)
        if known is None or len(one.steps) > len(known.steps):
            best[one.rank] = one
    return [best[rank] for rank in sorted(best)]


def _trained_until(one: Observation) -> float:
    """The end of the last step that counts: kernels are counted behind it, which the profiler takes its time for."""
    return one.steps[-1].started + one.steps[-1].seconds if one.steps else one.seconds


def _ended(
    one: Observation, *, status: int | None, own: int | None, late: bool, raised: bool, tail: tuple[str, ...]
) -> Observation:
    """The end as the parent saw it: it alone knows the exit status.

    A script that has trained and ends with a status of its own has come to its end, unless an exception has `raised`
    it there: what the status means is the script's. In a trial another one than its `own` may mean that a setting was
    more than it could bear.
    """
    ended: Ended = one.ended
    notes = list(one.notes)
    if ended in ("script", "failed"):
        if late:
            ended = "time"
            notes.append("the script was ended: it had not trained before its time was up")
        elif status is not None and status < 0:
            ended = "killed"
            notes.append(f"the script was killed by {cause(status)}")
        elif status and (raised or (status != own and (one.applied or len(one.steps) < LEAST_STEPS))):
            ended = "failed"
    if not one.steps and ended == "script":
        notes.append("the script ended without a step of an optimizer")
    if ended in ("failed", "killed"):
        notes += [f"its output ended with: {line}" for line in tail[-TAIL_LINES:]]
    return replace(one, ended=ended, exit_status=status, raised=raised, notes=tuple(notes))


def _is_full(scratch: Path) -> tuple[str, ...]:
    """Asked for while what the script has written lies there."""
    disk = shutil.disk_usage(scratch)
    if disk.free >= min(FULL_BYTES, FULL_SHARE * disk.total):
        return ()
    free, total = words.disk_size(disk.free), words.disk_size(disk.total)
    return (f"{jobs.FULL}: {free} of {total} are left in {scratch.parent}; set TMPDIR to a folder with more space",)


def _tail(log: Path) -> tuple[str, ...]:
    lines = log.read_text(errors="replace").splitlines()
    return tuple(line for line in lines[-TAIL_LINES:] if line.strip())
