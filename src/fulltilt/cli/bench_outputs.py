"""What `fulltilt bench` leaves behind: figures as JSON, a chart; and the options that ask for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer

from fulltilt.cli.saying import say

Chart = Callable[[dict[str, Any]], str | None]

JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the figures to this file, as JSON.")
]


@dataclass(frozen=True, slots=True)
class Outputs:
    """The files that were asked for. What can't be written is said here, not after minutes of measuring."""

    json_file: Path | None
    chart_file: Path | None = None

    def __post_init__(self) -> None:
        from fulltilt.machine.files import check_writable

        for file, option in ((self.json_file, "--json"), (self.chart_file, "--chart")):
            if file is not None:
                check_writable(file, option=option)

    def join(
        self, found: dict[str, Any], *, by: str, order: Sequence[str] | None, chart: Chart = lambda _: None
    ) -> None:
        """With what the file has of earlier runs."""
        from fulltilt.bench.results import joined

        self.write(joined(self.json_file, found, by=by, order=order), chart)

    def write(self, result: dict[str, Any], chart: Chart = lambda _: None) -> None:
        from fulltilt.machine.files import write_whole

        if self.json_file is not None:
            _spare(self.json_file, result)
            write_whole(self.json_file, json.dumps(result, indent=2, ensure_ascii=False) + "\n")
        if self.chart_file is not None and (drawn := chart(result)) is not None:
            write_whole(self.chart_file, drawn)


def _spare(file: Path, result: dict[str, Any]) -> None:
    """Figures of another machine or size can't stand beside these, and can't be had again: they get another name."""
    from fulltilt.bench.results import alike, earlier_in

    if file.is_file() and not alike(earlier_in(file), result):
        names = (file.with_name(f"{file.stem}-earlier{number or ''}{file.suffix}") for number in count())
        aside = next(name for name in names if not name.exists())
        file.rename(aside)
        say(f"{file} was not of this machine and size; it is kept as {aside}")
