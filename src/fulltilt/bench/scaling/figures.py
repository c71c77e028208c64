"""Points of curves as plain values, and how they are shown. Nothing runs here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fulltilt.bench.curves import Curve, Panel, draw
from fulltilt.bench.results import Result

PARTS = ("cores", "batch", "size")
X_LABELS = {"cores": "cores", "batch": "samples in a batch", "size": "pixels a side"}
TITLES = {"cores": "Cores", "batch": "Batch size", "size": "Image size"}
LIMIT = "limit"
SERIES = {
    LIMIT: "limit: batch on the device",
    "feed": "feed, decoded by the cores",
    "gpu": "feed, decoded by the GPU",
    "loader": "DataLoader with Pillow",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measurement. What could not be taken is absent."""

    part: str
    series: str
    x: int
    samples_per_second: float | None = None
    wait_share: float | None = None
    cpu_cores: float | None = None
    problem: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingBench(Result):
    workloads: Mapping[str, str]
    """Part to what was trained in it."""
    cases: tuple[Point, ...]


def panels(result: Mapping[str, Any]) -> list[Panel]:
    """One for each part of the JSON that has points."""
    found = []
    for part in PARTS:
        cases = [case for case in result["cases"] if case["part"] == part and "samples_per_second" in case]
        curves = tuple(
            Curve(
                label=title,
                points=tuple(sorted((c["x"], c["samples_per_second"]) for c in cases if c["series"] == series)),
                dashed=series == LIMIT,
            )
            for series, title in SERIES.items()
            if any(case["series"] == series for case in cases)
        )
        if curves:
            found.append(Panel(title=f"Samples/s by {TITLES[part].lower()}", x_label=X_LABELS[part], curves=curves))
    return found


def chart(result: Mapping[str, Any]) -> str | None:
    """The curves as SVG; None where nothing was measured."""
    drawn = panels(result)
    return draw("Training throughput", drawn) if drawn else None


def rows(result: Mapping[str, Any], part: str) -> list[tuple[str, ...]]:
    """A row for each value of x, a column for each series: samples a second."""
    cases = [case for case in result["cases"] if case["part"] == part]
    series = present(cases)

    def cell(x: int, name: str) -> str:
        rate = next(
            (case.get("samples_per_second") for case in cases if case["x"] == x and case["series"] == name), None
        )
        return "–" if rate is None else f"{rate:,.0f}"

    return [(f"{x}", *(cell(x, name) for name in series)) for x in sorted({case["x"] for case in cases})]


def present(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """The series that there are, in the order in which they are shown."""
    return [name for name in SERIES if any(case["series"] == name for case in cases)]
