"""Ordinary scripts under `fulltilt run`: how fast they are by themselves, with the plan, and at its limit.

A script's own last line (`… images per second`) is what counts for before and after; the limit is the plan's.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fulltilt.bench.bars import Bar, Group, draw
from fulltilt.bench.ground import now
from fulltilt.bench.running import output_of
from fulltilt.bench.tables import console_or, figures_table, print_lines
from fulltilt.bench.target import Target, in_json, target_lines
from fulltilt.errors import FulltiltError, InputError, last_line
from fulltilt.machine.cores import read_cores
from fulltilt.recipes.making import in_processes

SCRIPTS = ("resnet50_plain", "unet_plain")
TITLES = {
    "resnet50_plain": "ResNet-50: float32, batch 32, Pillow, 4 workers",
    "unet_plain": "U-Net, 512²: float32, batch 32, OpenCV, 4 workers",
}
TARGETS = {"resnet50_plain": 3.0, "unet_plain": 2.5}
"""How many times faster they are to become on the GPU host, at level numeric."""
_CLASSES = 8
_RATE = re.compile(r"([\d.]+) images per second")
_NAMES = 4
"""Of each photograph in class folders: an epoch of a few dozen steps would be mostly its start, before and after."""
_PHOTO_SIZE = {"resnet50_plain": (500, 375), "unet_plain": (512, 512)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptFigures:
    script: str
    before: float
    """Images per second, by the script's own clock, without us."""
    after: float
    """The same, with the plan."""
    limit: float | None
    """The step's, with the plan, its batches on the device."""
    speed_up: float
    verified: str
    settings: dict[str, Any]
    tuning_seconds: float
    verdict: str = ""
    trials: list[dict[str, Any]] = field(default_factory=list)
    remaining: str | None = None
    """What keeps it below the limit, where it is."""
    losses: dict[str, Any] | None = None
    """Of the first steps, before and after, with the band, as they were judged last."""

    @property
    def target(self) -> Target:
        return Target(figure="speed_up", wanted=TARGETS[self.script], found=self.speed_up, unit="×")


def measure(
    folder: Path,
    *,
    scripts: Path,
    only: Sequence[str] = SCRIPTS,
    count: int = 2048,
    steps: int = 400,
    level: str = "numeric",
    max_seconds: float = 180.0,
    extra: Sequence[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[ScriptFigures]:
    """Make the data (kept in `folder` for a next time), then each script by itself and under `fulltilt run`."""
    for name in only:
        if name not in SCRIPTS:
            raise InputError(f"--only: there is no script {name!r}; allowed: {', '.join(SCRIPTS)}")
        script = scripts / f"{name}.py"
        if not script.exists():
            raise InputError(f"there is no {script}; name the folder that has benchmarks/scripts with --scripts")

    def one(name: str) -> ScriptFigures:
        say(f"making {count} photographs for {name}")
        data, script = make_data(folder / name, name, count), scripts / f"{name}.py"
        return _one(script, data, steps=steps, level=level, max_seconds=max_seconds, extra=extra, say=say)

    return (one(name) for name in only)


def _one(
    script: Path,
    data: Path,
    *,
    steps: int,
    level: str,
    max_seconds: float,
    extra: Sequence[str],
    say: Callable[[str], None],
) -> ScriptFigures:
    say(f"{script.stem} by itself")
    before = _rate([sys.executable, str(script), str(data), "--steps", str(max(40, steps // 3)), *extra])
    with tempfile.TemporaryDirectory(prefix="fulltilt-") as scratch:
        result = Path(scratch) / "run.json"
        ours = ["--level", level, "--max-seconds", str(max_seconds), "--plan", str(Path(scratch) / "plan.toml")]
        command = [sys.executable, "-m", "fulltilt", "run", *ours, "--json", str(result)]
        say(f"{script.stem} under fulltilt run")
        began = time.monotonic()
        after = _rate([*command, str(script), str(data), "--steps", str(steps), *extra])
        seconds = time.monotonic() - began
        told = json.loads(result.read_text())
    plan = told["plan"]
    if plan is None:
        raise FulltiltError(f"{script.stem} could not be tuned; run `fulltilt run` on it to see why")
    return ScriptFigures(
        script=script.stem,
        before=before,
        after=after,
        limit=plan["limit"],
        speed_up=after / before,
        verified=plan["verified"],
        settings=plan["settings"],
        tuning_seconds=round(seconds, 1),
        verdict=told["diagnosis"]["verdict"],
        trials=told["trials"],
        remaining=None if told["after"] is None else told["after"]["remaining"],
        losses=told["losses"],
    )


def _rate(command: list[str]) -> float:
    """The rate that a script prints at its end; our own lines pass through to stderr."""
    status, output = output_of(command)
    printed = _RATE.findall(output)
    if status or not printed:
        why = last_line(output, "no output")
        raise FulltiltError(f"`{' '.join(command)}` ended with status {status} ({why})")
    return float(printed[-1])


def make_data(folder: Path, script: str, count: int) -> Path:
    """What the script reads: class folders, or images with masks; made once."""
    done = folder / "made"
    told = f"{count} × {_NAMES}"
    if done.exists() and done.read_text() == told:
        return folder / "data"
    each = -(-count // _CLASSES)
    write = partial(_make_part, script=script, count=each, size=_PHOTO_SIZE[script])
    in_processes(folder / "data", _CLASSES, write, min(_CLASSES, read_cores().usable), lambda _: None)
    done.write_text(told)
    return folder / "data"


def _make_part(data: Path, number: int, *, script: str, count: int, size: tuple[int, int]) -> None:
    from fulltilt.bench.photos import make_photos

    if script == "resnet50_plain":
        for path in make_photos(data / f"class-{number}", count, size=size, seed=number):
            for copy in range(1, _NAMES):
                other = path.with_stem(f"{path.stem}-{copy}")
                other.unlink(missing_ok=True)
                other.hardlink_to(path)
        return
    from PIL import Image

    made = make_photos(data / f"part-{number}", count, size=size, seed=number, vary=0.0)
    for kind in ("images", "masks"):
        (data / kind).mkdir(parents=True, exist_ok=True)
    for path in made:
        name = f"{number}-{path.stem}"
        with Image.open(path) as image:
            bright = image.convert("L").reduce(8).resize(size).point(lambda light: 255 * (light > 128))
        bright.save(data / "masks" / f"{name}.png")
        path.rename(data / "images" / f"{name}.jpg")
    (data / f"part-{number}").rmdir()


def to_json(found: Sequence[ScriptFigures]) -> dict[str, Any]:
    from fulltilt.bench.ground import machine_facts

    return {
        "machine": machine_facts({}),
        "date": now(),
        "cases": [{**asdict(one), "targets": in_json([one.target])} for one in found],
    }


def show(found: Sequence[ScriptFigures]) -> None:
    table = figures_table("Images per second", "before", "after", "limit", "times", name="script")
    for one in found:
        limit = "–" if one.limit is None else f"{one.limit:,.0f}"
        table.add_row(one.script, f"{one.before:,.0f}", f"{one.after:,.0f}", limit, f"{one.speed_up:.2f}")
    console = console_or(None)
    console.print(table)
    print_lines(console, target_lines((one.script, one.target) for one in found))


def chart(result: dict[str, Any]) -> str | None:
    """Of the benchmark's JSON: each script before and after, against its plan's limit; None where none is known."""

    def group(one: dict[str, Any]) -> Group:
        before = Bar(
            title="as it is", share=one["before"] / one["limit"], kind="before", note=f"{one['before']:,.0f}/s"
        )
        after = Bar(
            title=f"under fulltilt run: {one['after'] / one['before']:.1f} times as fast",
            share=one["after"] / one["limit"], kind="after", note=f"{one['after']:,.0f}/s",
        )  # fmt: skip
        return Group(title=TITLES[one["script"]], bars=[before, after])

    known = [one for one in result["cases"] if one["limit"]]
    return draw("Ordinary scripts, as a share of their limit", [group(one) for one in known]) if known else None
