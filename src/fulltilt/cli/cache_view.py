"""What is shown of caches, of images and of videos: a bar, or lines where there is no terminal; a report; a table."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fulltilt.cli.saying import say
from fulltilt.words import disk_size, duration

if TYPE_CHECKING:
    from rich.table import Table

    from fulltilt.cache.build import BuildReport
    from fulltilt.cache.info import Info
    from fulltilt.cache.predict import Prediction
    from fulltilt.cache.video import VideoReport

_LINE_SECONDS = 10.0
_LISTED = 10


class Bar:
    """Progress with rate and remaining time on standard error."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._bar: Any = None
        self._started = self._told = 0.0

    def __enter__(self) -> Bar:
        return self

    def __call__(self, done: int, total: int, size: int = 0) -> None:
        """The first call starts the clock."""
        now = time.monotonic()
        if not self._started:
            self._started = self._told = now
        if sys.stderr.isatty():
            self._draw(done, total, size, now)
        elif now - self._told >= _LINE_SECONDS:
            self._told = now
            say(f"{self._verb} {progress_line(done, total, size, now - self._started)}")

    def _draw(self, done: int, total: int, size: int, now: float) -> None:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            columns = TextColumn(self._verb), BarColumn(), TextColumn("{task.fields[line]}")
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.add_task(self._verb, total=total, line="")
            self._bar.start()
        line = progress_line(done, total, size, now - self._started)
        self._bar.update(self._bar.task_ids[0], completed=done, line=line)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


@contextmanager
def decoding() -> Iterator[Bar]:
    """A build under way; Ctrl-C says that nothing is lost."""
    with Bar("decoding") as bar:
        try:
            yield bar
        except KeyboardInterrupt:
            say("stopped; what was made is kept, and the same command continues from there")
            raise typer.Exit(130) from None


def say_plan(prediction: Prediction, *, noun: str = "samples") -> None:
    there = f"{prediction.present:,} {noun} are there, " if prediction.present else ""
    if not prediction.samples:
        return say(f"{there}nothing to add")
    margin = f" ± {disk_size(prediction.margin_bytes)}" if prediction.margin_bytes else ""
    return say(
        f"{there}{prediction.samples:,} to add: about {disk_size(prediction.bytes)}{margin} of "
        f"{disk_size(prediction.free_bytes)} free"
    )


def show_build(
    report: BuildReport | VideoReport, decoded: int, *, frames: bool = False, known: int = 0, as_json: bool
) -> None:
    """What was made, and what was left out: then the command ends with 1.

    Args:
        frames: these were decoded, of videos.
        known: samples known by their content.
    """
    rate = f", {decoded / report.seconds:,.0f} a second" if decoded else ""
    also = f", {known:,} known by their content" if known else ""
    what, there = ("frames decoded", "videos there") if frames else ("decoded", "there")
    say(f"{decoded:,} {what} ({disk_size(report.bytes)}{rate}){also}, {report.present:,} {there} before")
    if report.failures:
        say(f"{len(report.failures):,} left out:")
        list_of([f"{failure.path}: {failure.error}" for failure in report.failures])
    if as_json:
        print_json(report)
    if report.failures:
        raise typer.Exit(1)


def list_of(lines: Sequence[str]) -> None:
    """All of them go to a file or pipe; a terminal gets the first few."""
    shown = lines if not sys.stderr.isatty() else lines[:_LISTED]
    for line in shown:
        print(f"  {line}", file=sys.stderr)
    if len(shown) < len(lines):
        print(f"  and {len(lines) - len(shown):,} more (--json lists them all)", file=sys.stderr)


def print_json(value: Any) -> None:
    from fulltilt.machine.plain import plain

    print(json.dumps(plain(value), indent=2))


def progress_line(done: int, total: int, size: int, seconds: float) -> str:
    """`1,200 of 5,000 (24%), 680 MB, 812 a second, 5 s left`."""
    parts = [f"{done:,} of {total:,} ({done / max(total, 1):.0%})"]
    if size:
        parts.append(disk_size(size))
    if seconds > 0 and done:
        rate = done / seconds
        parts.append(f"{rate:,.0f} a second")
        parts.append(f"{duration((total - done) / rate)} left")
    return ", ".join(parts)


def info_table(folder: Path, info: Info) -> Table:
    from rich import box
    from rich.table import Table

    settings = info.settings
    size = "whole images" if settings.size is None else f"shorter side {settings.size}"
    rows = [
        ("entries", f"{info.entries:,}" + (f", {info.masks:,} with a mask" if info.masks else "")),
        ("size", f"{disk_size(info.bytes)} in {info.shards:,} shard{'' if info.shards == 1 else 's'}"),
        ("settings", f"{size}, {settings.channels} channels, {settings.quality}, decoder {settings.decode_version}"),
    ]
    if info.mean_bytes is not None:
        rows.insert(2, ("a sample", disk_size(info.mean_bytes)))
    if not info.is_current:
        rows.append(("outdated", "this fulltilt decodes differently: nothing is served; clear it and build again"))
    if info.superseded:
        rows.append(("superseded", f"{info.superseded:,} records, {disk_size(info.unused_bytes)} unused"))
    if info.damaged:
        rows.append(("damaged", f"{info.damaged:,} records; `fulltilt cache verify {folder}` names them"))
    if info.source is not None:
        rows.append(("hit rate", f"{info.source.rate:.1%} ({info.source.hits:,} of {info.source.samples:,})"))
    table = Table(box=box.SIMPLE, show_header=False, title=f"cache {folder}", title_justify="left")
    for name, value in rows:
        table.add_row(name, value)
    return table
