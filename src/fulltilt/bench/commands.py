"""Commands that nobody here wrote, under `fulltilt run`: somebody's framework, somebody's loop.

    name=command ─► run ─┬► its diagnosis: what share of its time lies in a known phase, what it is told
                         └► how fast before and after, and whether its losses held

Nothing of the command is known here, so rates are those that were watched, not its own.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fulltilt.bench.ground import machine_facts, now
from fulltilt.bench.running import output_of
from fulltilt.bench.tables import console_or, print_lines
from fulltilt.bench.target import Target, in_json, target_lines
from fulltilt.errors import FulltiltError, InputError

ATTRIBUTED_AT_LEAST = 0.95
TIMES_AT_LEAST = 0.98
"""Of the script as it is: never slower."""
PACKAGES = {name: name for name in ("lightning", "transformers", "timm", "torchvision")}
_GAIN = re.compile(r"\+(\d+) %")
_SAID = 300
"""Characters of what a command said last, where it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandFigures:
    name: str
    command: str
    seconds: float
    max_seconds: float
    """That `run` had to find a plan."""
    problem: str | None = None
    """Why there are no figures, or not all."""
    attributed: float | None = None
    """Share of the time watched that lies in a known phase."""
    headroom: float | None = None
    verdict: str = ""
    cause: str | None = None
    """Of the first finding."""
    before: float | None = None
    """Samples per second as it is, beside the trials."""
    after: float | None = None
    """In the full run with the plan; as before where it is left as it is."""
    limit: float | None = None
    side_by_side: float | None = None
    """How many times as fast as the command as it is, in trials by turns. None where it is left as it is. `times` holds
    the whole run against a rate that was watched minutes before: it has in it what else has changed."""
    verified: str = ""
    settings: Mapping[str, Any] | None = None
    tried: Mapping[str, str] | None = None
    """What was tried, and what came of it."""
    remaining: str | None = None

    @property
    def times(self) -> float | None:
        return None if not self.before or self.after is None else self.after / self.before

    @property
    def targets(self) -> tuple[Target, ...]:
        known = Target(figure="attributed", what="of the time known", wanted=ATTRIBUTED_AT_LEAST, percent=True)
        faster = Target(figure="times", what="after / before", wanted=TIMES_AT_LEAST, unit="×")
        return known.given(self.attributed), faster.given(self.times)


def parse(words: Sequence[str]) -> dict[str, list[str]]:
    """`mnist=main.py --epochs 1` as a name with its command."""
    found: dict[str, list[str]] = {}
    for word in words:
        name, equals, command = word.partition("=")
        if not equals or not name.isidentifier() or not shlex.split(command):
            raise InputError(f"{word!r}: expected NAME=COMMAND, such as mnist='main.py --epochs 1'")
        if name in found:
            raise InputError(f"{name}: named twice; each command has its own name")
        found[name] = shlex.split(command)
    return found


def measure(
    commands: Mapping[str, Sequence[str]],
    *,
    level: str = "numeric",
    max_seconds: float = 180.0,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[CommandFigures]:
    """Each in turn; one that fails is a line, and the next goes on."""
    for name, words in commands.items():
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="fulltilt-") as scratch:
            try:
                say(name)
                found = figures(_ran(words, Path(scratch), level=level, max_seconds=max_seconds))
            except FulltiltError as failed:
                found = {"problem": str(failed)}
        took = round(time.monotonic() - began, 1)
        yield CommandFigures(name=name, command=shlex.join(words), seconds=took, max_seconds=max_seconds, **found)


def figures(ran: Mapping[str, Any]) -> dict[str, Any]:
    """From the JSON of `run`."""
    told, plan, after = ran["diagnosis"], ran["plan"], ran["after"]
    found: dict[str, Any] = {}
    if told is not None:
        causes = [finding["cause"] for finding in told["findings"]]
        found = {
            "attributed": told["observation"]["attributed"],
            "headroom": told["headroom"],
            "verdict": told["verdict"],
            "cause": causes[0] if causes else None,
        }
    if plan is None:
        return found | {"problem": f"not tuned: {ran['not_tuned']}"}
    before, beside = plan["before"], plan["after"] if plan["settings"] else None
    return found | {
        "before": before,
        "after": before if after is None else after["samples_per_second"],
        "limit": plan["limit"],
        "side_by_side": beside / before if beside and before else None,
        "verified": plan["verified"],
        "settings": plan["settings"],
        "tried": {trial["title"]: trial["reason"] for trial in ran["trials"]},
        "remaining": None if after is None else after["remaining"],
    }


def side_by_side(one: Mapping[str, Any]) -> float | None:
    """Of a command in the JSON."""
    found: float | None = one["side_by_side"] if "side_by_side" in one else _from_words(one)
    return found


def _from_words(one: Mapping[str, Any]) -> float | None:
    """In results from before the figure was kept (h200/commands.json), the gains stand in the words on the trials."""
    if not one.get("settings"):
        return None
    times = 1.0
    for reason in (one.get("tried") or {}).values():
        if found := _GAIN.fullmatch(reason):
            times *= 1 + int(found[1]) / 100  # against the best so far
        elif reason.startswith("rolled back"):
            times = 1.0
    return times if times > 1 else None


def _ran(words: Sequence[str], scratch: Path, *, level: str, max_seconds: float) -> dict[str, Any]:
    """What `fulltilt run` writes about the command."""
    file, plan = scratch / "run.json", scratch / "plan.toml"
    ours = ["run", "--level", level, "--max-seconds", f"{max_seconds:g}", "--plan", str(plan), "--json", str(file)]
    status, output = output_of([sys.executable, "-m", "fulltilt", *ours, *words], with_errors=True)
    if status or not file.exists():
        last = " / ".join(output.strip().splitlines()[-3:]) or "it said nothing"
        raise FulltiltError(f"run ended with status {status}: {last[-_SAID:]}")
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def to_json(found: Sequence[CommandFigures]) -> dict[str, Any]:
    return {
        "machine": machine_facts(PACKAGES),
        "date": now(),
        "cases": [{**asdict(one), "times": one.times, "targets": in_json(one.targets)} for one in found],
    }


def show(found: Sequence[CommandFigures]) -> None:
    from rich.table import Table

    table = Table("command", "known", "before", "after", "times", "verdict", title="Samples per second")
    for one in found:
        known = "–" if one.attributed is None else f"{100 * one.attributed:.1f} %"
        before, after = ("–" if rate is None else f"{rate:,.0f}" for rate in (one.before, one.after))
        times = "–" if one.times is None else f"{one.times:.2f}"
        table.add_row(one.name, known, before, after, times, one.problem or one.verdict)
    console = console_or(None)
    console.print(table)
    print_lines(console, target_lines((one.name, target) for one in found for target in one.targets))
