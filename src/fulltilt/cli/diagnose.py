"""`fulltilt diagnose`: why a script trains as fast as it does, without a change to it."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from fulltilt.cli.saying import say
from fulltilt.cli.script_words import options_of, say_late
from fulltilt.errors import FulltiltError, InputError
from fulltilt.machine.ranks import told_local_rank, told_local_world, told_world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fulltilt.diagnose import Diagnosis
    from fulltilt.launch.command import Command
    from fulltilt.machine.sample import Sample
    from fulltilt.measure.observation import Observation
    from fulltilt.monitor.watch import Kept

PASS_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False}
"""All that follows the script, and `-m` with its module, is the script's own."""

SCRIPT_HELP = "The script with its own arguments, or -m MODULE [ARGS]; fulltilt's options go before the script."

_REPLAY_STEPS = 100
_LIMIT_SECONDS = 20.0
_START_SECONDS = 60.0
"""A run for a limit may take that much longer to its first step than the script as it is did."""
_SIGNAL = 128
INTERRUPTED = 130
"""Exit status after Ctrl-C."""
_TORCHRUN = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE",
)  # fmt: skip


def diagnose(
    context: typer.Context,
    words: Annotated[list[str] | None, typer.Argument(metavar="SCRIPT [ARGS]", help=SCRIPT_HELP)] = None,
    *,
    nproc_per_node: Annotated[int | None, typer.Option(help="Run it under torchrun with this many processes.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write one self-contained page.")] = None,
    as_json: Annotated[Path | None, typer.Option("--json", help="Write all of it as JSON.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Watch the script to its end.")] = False,
    max_steps: Annotated[int, typer.Option(help="Watch at most this many steps.")] = 200,
    max_seconds: Annotated[
        float, typer.Option(help="Watch for at most this many seconds, from the first step on.")
    ] = 120.0,
) -> None:
    """Run a training script as it is, and say what keeps it from its limit, what that costs, and how to fix it.

    It runs for a short while: as it is, then with batches that it had already, then its loader alone.

    The second gives the step's limit. What the script would write is kept away from its files.
    """
    from fulltilt.machine.files import check_writable

    for option, path in (("--html", html), ("--json", as_json)):
        if path is not None:
            check_writable(path, option=option)
    if max_steps < 5:
        raise InputError(f"--max-steps: expected at least 5, found {max_steps}; fewer say nothing about a rate")
    if not 1 <= max_seconds < float("inf"):
        raise InputError(f"--max-seconds: expected at least 1, found {max_seconds:g}")
    command = command_of(context, words or [], processes=nproc_per_node)
    if command is None:
        return
    recording = None
    if html is not None:
        from fulltilt.monitor.watch import Kept

        recording = Kept()
    try:
        found = examine(command, full=full, max_steps=max_steps, max_seconds=max_seconds, recording=recording)
    except KeyboardInterrupt:
        say("interrupted while watching: there is no diagnosis")
        raise typer.Exit(INTERRUPTED) from None
    _show(found)
    _write(found, html=html, as_json=as_json, recording=() if recording is None else recording.samples)
    seen = found.observation
    if seen.ended == "script" and seen.exit_status:
        say(f"{Path(command.target).name} ended with exit status {seen.exit_status}, which is ours too")
        leave_with(seen)


def command_of(context: typer.Context, words: Sequence[str], *, processes: int | None) -> Command | None:
    """The command; None in a process of torchrun that has nothing to do, because its first one does it for all.

    Under torchrun the script is started anew, several times, by a torchrun of our own: one rendezvous serves one run.
    """
    from fulltilt.launch.command import parse

    if "TORCHELASTIC_RUN_ID" in os.environ:
        here, all_of_them = told_local_world(), told_world()
        if here != all_of_them:
            raise InputError(
                f"torchrun started {all_of_them} processes, {here} of them on this machine; one machine is supported: "
                "start it on one, with --nnodes 1"
            )
        first = told_local_rank() == 0
        for name in _TORCHRUN:
            os.environ.pop(name, None)
        if not first:
            return None
        processes = here
    name, options = context.info_name or "run", options_of(context)
    command = parse(words, processes=processes, name=name, options=tuple(options))
    say_late(command, name, options)
    return command


def examine(
    command: Command, *, full: bool, max_steps: int, max_seconds: float, recording: Kept | None = None
) -> Diagnosis:
    """Observe it as it is, measure its limits, diagnose. A script that fails ends us with its own exit status."""
    from fulltilt.diagnose import diagnose as made_of
    from fulltilt.launch.job import FULL
    from fulltilt.launch.observe import LEAST_STEPS, observe_all

    name = Path(command.target).name
    span = "to its end" if full else f"for at most {max_steps} steps or {max_seconds:g} s"
    say(f"watching {name} as it is, {span}{'' if full else ', then its limits'}")
    with _shown("its limits") as tell:

        def limits_told(seconds: float, measured: bool) -> None:
            if measured:
                tell(seconds)

        ranks = observe_all(
            command, max_steps=max_steps, max_seconds=max_seconds, full=full, echo=True,
            then=() if full else ("replay", "loader"), on_progress=limits_told,
            on_sample=None if recording is None else recording.add,
        )  # fmt: skip
    seen = ranks[0]
    if recording is not None and seen.ended != "script":
        recording.cut(seen.seconds - seen.behind_seconds)  # nobody wants to see the limits being measured
    if seen.ended in ("failed", "killed"):
        if len(seen.steps) >= LEAST_STEPS:
            say(f"{name} failed; what fails is not diagnosed (--max-steps stops it sooner)")
        for note in seen.notes:
            if note.startswith(FULL):
                say(note)
        leave_with(seen)
    if not seen.steps and seen.backwards:
        raise FulltiltError(_unstepped(name, seen))
    if not seen.steps:
        reason = "; ".join(seen.notes) or "no optimizer took a step"
        raise FulltiltError(
            f"{name} was not seen to train ({reason}), so there is nothing to diagnose; "
            "is it the script that trains, and are its arguments complete?"
        )
    replay = loader = None
    if seen.can_replay:
        limits: dict[str, Any] = {
            "max_steps": min(max_steps, _REPLAY_STEPS), "max_seconds": min(max_seconds, _LIMIT_SECONDS),
            "deadline_seconds": _START_SECONDS + 2 * seen.seconds,
        }  # fmt: skip
        replay = seen.replayed or _quietly(command, "its step's limit", mode="replay", **limits)
        loader = seen.alone or _quietly(command, "its loader alone", mode="loader", **limits)
    several = ranks if len(ranks) > 1 else ()
    return made_of(seen, replay=replay, loader=loader, ranks=several)


def _unstepped(name: str, seen: Observation) -> str:
    """What to say of a script that trains, but not by an optimizer that we would know."""
    times = "1 backward" if seen.backwards == 1 else f"{seen.backwards:,} backwards"
    notes = "".join(f"; {note}" for note in seen.notes)
    return (
        f"{name}: {times}, but no step of a torch optimizer: fulltilt counts steps by these, so there is nothing to "
        f"diagnose{notes}. Change the weights by an optimizer's step(), at least while it is diagnosed: "
        "torch.optim.SGD(parameters, lr) does what p.data.add_(p.grad, alpha=-lr) does"
    )


def leave_with(seen: Observation) -> NoReturn:
    """With the exit status of a script that failed, was killed, or came to its end."""
    status = seen.exit_status or (0 if seen.ended == "script" else 1)
    raise typer.Exit(status if status >= 0 else _SIGNAL - status)


def _quietly(command: Command, what: str, **options: Any) -> Observation:
    """A run whose output nobody wants, behind a line that says how long it takes."""
    from fulltilt.launch.observe import observe

    with _shown(what) as tell:
        tell(0.0)
        return observe(command, on_progress=lambda seconds, _: tell(seconds), **options)


@contextmanager
def _shown(what: str) -> Iterator[Callable[[float], None]]:
    """What to call with the seconds of a run, from where `what` is measured in it: then a line says how long it takes,
    or once, where there is no terminal, that it is measured."""
    from rich.console import Console
    from rich.status import Status

    began: float | None = None
    with ExitStack() as shown:
        status = Status(f"measuring {what}", console=Console(stderr=True))

        def tell(seconds: float) -> None:
            nonlocal began
            if began is None:
                began = seconds
                if sys.stderr.isatty():
                    shown.enter_context(status)
                else:
                    say(f"measuring {what}")
            status.update(f"measuring {what}: {seconds - began:.0f} s")

        yield tell


def _show(found: Diagnosis) -> None:
    from rich.console import Console

    from fulltilt.cli.diagnose_view import view

    console = Console(highlight=False)
    if console.is_terminal:
        console.print(view(found, width=console.width))
        return
    console = Console(highlight=False, width=100)
    with console.capture() as captured:
        console.print(view(found, width=console.width))
    for line in captured.get().splitlines():  # a file wants no blanks at the ends of its lines
        print(line.rstrip())


def _write(found: Diagnosis, *, html: Path | None, as_json: Path | None, recording: Sequence[Sample]) -> None:
    from fulltilt.machine.files import write_whole

    if as_json is not None:
        import json

        from fulltilt.diagnose.serial import to_json

        write_whole(as_json, json.dumps(to_json(found), indent=1))
        say(f"wrote {as_json}")
    if html is not None:
        from fulltilt.report import diagnosis_page

        write_whole(html, diagnosis_page(found, recording=recording))
        say(f"wrote {html}")
