"""What `fulltilt cache` shows: a bar, or lines where there is no terminal; a table."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fulltilt.words import duration

if TYPE_CHECKING:
    from rich.table import Table

    from fulltilt.cache.info import Info

_LINE_SECONDS = 10.0


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
            print(f"fulltilt: {self._verb} {progress_line(done, total, size, now - self._started)}", file=sys.stderr)

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


def progress_line(done: int, total: int, size: int, seconds: float) -> str:
    """`1,200 of 5,000 (24%), 680 MB, 812 a second, 5 s left`."""
    from fulltilt.words import disk_size

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

    from fulltilt.words import disk_size

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
