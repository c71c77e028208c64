"""Where a task runs: in threads, or, if it holds the interpreter lock, in processes. Seen by a short trial."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from fulltilt.assist.processes import Processes
from fulltilt.errors import InputError
from fulltilt.machine.decision import Decision
from fulltilt.measure.threads import compare_threads

Place = Literal["threads", "processes"]

LIMIT_SECONDS = 30.0
ENOUGH_SPEEDUP = 1.3
"""From here on several threads are worth having."""
SHORT_SECONDS = 0.001
"""Sending a task to a process and back takes about a tenth of that; below it, processes would mostly send."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What was seen. What could not be seen is absent."""

    threads: int = 0
    seconds_per_call: float | None = None
    speedup: float | None = None
    """The rate of so many threads, as a multiple of one's."""
    problem: str | None = None


def place(trial: Trial) -> Decision[Place]:
    """Threads, unless they were seen not to help, and processes could."""
    evidence = {name: value for name, value in asdict(trial).items() if value is not None}
    if trial.problem is not None or trial.speedup is None or trial.seconds_per_call is None:
        return Decision(value="threads", reason=trial.problem or "there is one core", evidence=evidence)
    seen = f"{trial.threads} threads do {trial.speedup:.2f} times the work of one"
    if trial.speedup >= ENOUGH_SPEEDUP:
        return Decision(value="threads", reason=seen, evidence=evidence)
    if trial.seconds_per_call < SHORT_SECONDS:
        reason = f"{seen}, but a call takes {1e6 * trial.seconds_per_call:.0f} µs: too short to be sent to a process"
        return Decision(value="threads", reason=reason, evidence=evidence)
    return Decision(value="processes", reason=f"{seen}: it holds the interpreter lock", evidence=evidence)


def placed(asked: str) -> Decision[Place]:
    if asked not in get_args(Place):
        raise InputError(f"run_in is {asked!r}; it can be 'threads', 'processes' or 'auto'")
    return Decision(value=asked, reason="asked for")  # type: ignore[arg-type]  # one of the literals


def probe(
    processes: Processes,
    function: Callable[..., Any],
    example: tuple[Any, ...],
    *,
    threads: int,
    limit_seconds: float = LIMIT_SECONDS,
) -> Trial:
    """Try a task on an example, in a process: what it opens, draws or breaks stays there."""
    if threads < 2:
        return Trial(threads=threads)
    call = processes.call(look)
    watch = threading.Timer(limit_seconds, call.stop)
    watch.daemon = True
    watch.start()
    try:
        found = call(function, example, threads)
    except Exception as error:  # whatever it is, threads can still run it, and will tell
        return Trial(threads=threads, problem=f"it could not be tried: {type(error).__name__}: {error}")
    finally:
        watch.cancel()
    return Trial(threads=threads, seconds_per_call=found[0], speedup=found[1])


def look(function: Callable[..., Any], example: tuple[Any, ...], threads: int) -> tuple[float, float]:
    """Seconds per call by one thread, and the rate of several as a multiple of one's."""
    function(*example)  # a warm-up
    compared = compare_threads(lambda: function(*example), threads)
    return compared.seconds_per_call, compared.speedup
