"""`fulltilt run`: any training script, unmodified, at its limit: find a plan for it once, then run it with that."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fulltilt.cli.diagnose import INTERRUPTED, SCRIPT_HELP, command_of
from fulltilt.cli.run_view import earlier, remaining_of, show_plan, summarise
from fulltilt.cli.saying import say
from fulltilt.errors import FulltiltError, InputError

if TYPE_CHECKING:
    from fulltilt.launch.command import Command
    from fulltilt.launch.search.plan import Plan
    from fulltilt.launch.search.tune import NotTuned, Tuned
    from fulltilt.measure.observation import Observation


class LevelName(StrEnum):
    EXACT = "exact"
    NUMERIC = "numeric"
    SEMANTIC = "semantic"


def run(
    context: typer.Context,
    words: Annotated[list[str] | None, typer.Argument(metavar="SCRIPT [ARGS]", help=SCRIPT_HELP)] = None,
    *,
    nproc_per_node: Annotated[int | None, typer.Option(help="Run it under torchrun with this many processes.")] = None,
    level: Annotated[
        LevelName,
        typer.Option(
            help="exact: same order, maths, draws. numeric: losses within rounding. semantic: also draws, batch size."
        ),
    ] = LevelName.NUMERIC,
    plan_file: Annotated[
        Path | None, typer.Option("--plan", help="Use this plan file; it is made where it is missing.")
    ] = None,
    tune: Annotated[
        bool | None,
        typer.Option(
            "--tune/--no-tune",
            help="Search again although there is a plan; or don't search: use the plan there is, or none.",
            show_default="search where no plan fits",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan and the edits to make by hand; don't run the script.")
    ] = False,
    max_seconds: Annotated[
        float, typer.Option(help="Most seconds that the search for a plan may take: 10 to 86400.")
    ] = 180.0,
    html: Annotated[Path | None, typer.Option(help="Write one self-contained page.")] = None,
    as_json: Annotated[Path | None, typer.Option("--json", help="Write all of it as JSON.")] = None,
) -> None:
    """Find what makes a training script faster, check that its first losses stay the same, and run it with that.

    Settings are tried from outside, in short runs whose files are kept away from the script's own.

    What pays is kept as a plan and used again next time. The script's output and exit status are its own.
    """
    from fulltilt.machine.files import check_writable

    for option, path in (("--html", html), ("--json", as_json)):
        if path is not None:
            check_writable(path, option=option)
    if not 10 <= max_seconds <= 86_400:
        raise InputError(f"--max-seconds: expected 10 to 86400, found {max_seconds:g}")
    if plan_file is not None and tune is not False and (tune or not plan_file.is_file()):
        check_writable(plan_file, option="--plan")
    command = command_of(context, words or [], processes=nproc_per_node)
    if command is None:
        return
    try:
        with _input_kept():
            plan, found = _plan_or_none(command, level, plan_file, tune=tune, max_seconds=max_seconds)
    except KeyboardInterrupt:
        say("interrupted while looking: no plan is kept, and the script was not run")
        raise typer.Exit(INTERRUPTED) from None
    if dry_run:
        show_plan(command, plan, found)
        _write(plan, found, None, None, html=html, as_json=as_json)
        return
    from fulltilt.launch.run import execute
    from fulltilt.launch.search.plan import default_path

    try:
        status, seen = execute(command, {} if plan is None else plan.settings)
    except FulltiltError as error:
        say(f"{error}: the script is run as it is")
        plan = None
        status, seen = execute(command, {})
    left = remaining_of(plan, seen)
    try:
        _write(plan, found, seen, left, html=html, as_json=as_json)
    except FulltiltError as error:  # the exit status is the script's
        say(str(error))
    summarise(plan, found, seen, left)
    _tell_draws(plan, seen, plan_file or default_path(command))
    raise typer.Exit(status)


@contextmanager
def _input_kept() -> Iterator[None]:
    """What comes in on standard input is for the script's full run: trials get none of it."""
    try:
        kept = os.dup(0)
    except OSError:  # it is closed, and will be for the script
        kept = None
    nothing = os.open(os.devnull, os.O_RDONLY)
    if nothing != 0:  # the lowest number that is free
        os.dup2(nothing, 0)
        os.close(nothing)
    try:
        yield
    finally:
        if kept is None:
            os.close(0)
        else:
            os.dup2(kept, 0)
            os.close(kept)


def _plan_or_none(
    command: Command, level: LevelName, file: Path | None, *, tune: bool | None, max_seconds: float
) -> tuple[Plan | None, Tuned | NotTuned | None]:
    """The plan, and none where looking for it fails as it never should: the script is what was asked for."""
    try:
        return _plan(command, level, file, tune=tune, max_seconds=max_seconds)
    except InputError:
        raise
    except Exception as error:
        from fulltilt.launch.observe import by_torchrun
        from fulltilt.launch.search.tune import NotTuned

        if by_torchrun():  # the other ranks may go on looking: one that trains alone would wait for them
            raise
        if isinstance(error, FulltiltError):
            say(f"{error}: the script is run as it is")
            return None, NotTuned(reason=str(error))
        reason = f"looking for a plan failed, as it should not ({type(error).__name__}: {' '.join(str(error).split())})"
        say(f"{reason}: the script is run as it is; to report: {_traceback_kept(command)}")
        return None, NotTuned(reason=reason)


def _traceback_kept(command: Command) -> str:
    """The file that has it now, or itself."""
    import traceback

    from fulltilt.launch.search.plan import default_path
    from fulltilt.machine.files import write_whole

    told = traceback.format_exc()
    file = default_path(command).with_suffix(".traceback.txt")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, told)
    except (OSError, FulltiltError):
        return told
    return f"the traceback in {file}"


def _plan(
    command: Command, level: LevelName, file: Path | None, *, tune: bool | None, max_seconds: float
) -> tuple[Plan | None, Tuned | NotTuned | None]:
    """The plan there is, where it fits; else, or where `tune` says so, one that is searched for now."""
    from fulltilt.launch.search import plan as plans

    path = file or plans.default_path(command)
    known = None if tune else _known(command, level, path, named=file is not None)
    if known is not None or tune is False:
        return known, None
    return _tuned(command, level, path, max_seconds=max_seconds)


def _known(command: Command, level: LevelName, path: Path, *, named: bool) -> Plan | None:
    from fulltilt.launch.search import plan as plans
    from fulltilt.launch.search.candidates import allowed
    from fulltilt.launch.search.redrawn import level_in_run

    if not path.exists():
        return None
    try:
        plan = plans.read(path)
    except InputError as error:
        say(str(error))
        return None
    stale = plan.why_not(plans.key_of(command))
    if stale is None and not allowed(level_in_run(plan.settings), level.value):
        stale = f"it is of level {level_in_run(plan.settings)}, asked for is {level}"
    if stale is None and not allowed(level.value, plan.level):
        stale = f"it was looked for at level {plan.level}, asked for is {level}"
    if stale is not None:
        say(f"the plan {path} does not fit: {stale}")
        return None
    which = f"the plan of {path}" if named else f"the plan found before ({path})"
    say(which if plan.settings else f"{which}: {earlier(plan)}")
    return plan


def _tuned(
    command: Command, level: LevelName, path: Path, *, max_seconds: float
) -> tuple[Plan | None, Tuned | NotTuned]:
    from fulltilt.launch.observe import observe_all
    from fulltilt.launch.search import plan as plans
    from fulltilt.launch.search.tune import NotTuned, Tuner
    from fulltilt.machine.cores import read_cores

    say(f"looking for what makes {Path(command.target).name} faster, for at most {max_seconds:g} s")
    found = Tuner(
        command=command,
        key=plans.key_of(command),
        level=level.value,
        cores=read_cores().usable,
        seconds=max_seconds,
        observe=observe_all,
        say=say,
    ).tune()
    if isinstance(found, NotTuned):
        say(f"{found.reason}: the script is run as it is")
        return None, found
    if not found.settled:
        from fulltilt.diagnose.diagnosis import BUSIER

        late = f"not all could be tried in {max_seconds:g} s, so no plan is kept: a larger --max-seconds looks further"
        busy = f"nothing was found that pays, but {BUSIER}; no plan is kept: try again when it is quiet"
        say(busy if found.complete else late)
        return found.plan, found
    try:
        plans.write(found.plan, path)
        say(f"the plan is kept in {path} ({found.seconds:.0f} s)")
    except FulltiltError as error:  # it is used all the same, this once
        say(f"the plan is not kept: {error} ({found.seconds:.0f} s)")
    return found.plan, found


def _tell_draws(plan: Plan | None, seen: Observation | None, path: Path) -> None:
    """Samples that drew in the run itself, where that was not seen when the plan was made: what was said of it was not
    all. A plan of level exact leaves their workers alone from then on."""
    from fulltilt.launch.search import plan as plans
    from fulltilt.launch.search import redrawn

    names = () if plan is None or seen is None else redrawn.after_all(plan, seen)
    if plan is None or not names:
        return
    say(
        f"samples of {', '.join(names)} drew random numbers, which was not seen when the plan was made: with other "
        "workers than the script's own they were others"
    )
    if redrawn.level_in_run(plan.settings) != "exact" or not path.exists():
        return
    try:
        plans.write(redrawn.without(plan, names), path)
        say(f"the plan {path} leaves their workers alone from now on")
    except FulltiltError as error:
        say(str(error))


def _write(
    plan: Plan | None,
    found: Tuned | NotTuned | None,
    seen: Observation | None,
    left: str | None,
    *,
    html: Path | None,
    as_json: Path | None,
) -> None:
    from dataclasses import asdict, replace

    from fulltilt.launch.search.rate import rate_of
    from fulltilt.launch.search.tune import NotTuned
    from fulltilt.machine.files import write_whole

    tuned = None if isinstance(found, NotTuned) else found
    diagnosis = None if found is None else found.diagnosis
    after = None if tuned is None else tuned.after
    if after is not None and seen is not None:
        rate = rate_of(seen)
        reached = after.samples_per_second if rate is None else rate.value
        after = replace(after, observation=seen, samples_per_second=reached, remaining=left)
    if as_json is not None:
        import json

        from fulltilt.diagnose.serial import plain, to_json

        data: dict[str, Any] = {
            "plan": None if plan is None else asdict(plan),
            "not_tuned": found.reason if isinstance(found, NotTuned) else None,
            "diagnosis": None if diagnosis is None else to_json(diagnosis),
            "trials": [] if tuned is None else [asdict(trial) for trial in tuned.trials],
            "after": None if after is None else asdict(after),
            "losses": None if tuned is None or tuned.losses is None else asdict(tuned.losses),
        }
        write_whole(as_json, json.dumps(plain(data), indent=1, allow_nan=False))
        say(f"wrote {as_json}")
    if html is not None and diagnosis is None:
        say("no page was written: it shows what a search finds, and none was made this time; --tune makes one")
    elif html is not None and diagnosis is not None:
        from fulltilt.report import diagnosis_page

        page = diagnosis_page(
            diagnosis,
            trials=() if tuned is None else tuned.trials,
            after=after,
            losses=None if tuned is None else tuned.losses,
            untuned=found.reason if isinstance(found, NotTuned) else None,
            written_by="fulltilt run",
        )
        write_whole(html, page)
        say(f"wrote {html}")
