"""Bars, history lines and cells out of block characters. Pure: numbers and a width in, styled text out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Span = tuple[str, str]
"""Text and the name of its style."""
Line = list[Span]

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = " ▁▂▃▄▅▆▇█"
_CORE_ROWS = 3
"""At most."""

DIM = "bright_black"
UTIL = "cyan"
SM = "magenta"
MEMORY = "blue"
VERDICT_STYLES = {
    "idle": "bold bright_black",
    "starved": "bold red",
    "bursty": "bold yellow",
    "underused": "bold yellow",
    "small-kernels": "bold magenta",
    "healthy": "bold green",
}
FLAG_STYLE = "bold red"


def bar(percent: float | None, width: int, style: str) -> Line:
    """A horizontal bar, exact to an eighth of a cell; an unmeasured value has an empty track."""
    if percent is None:
        return [("·" * width, DIM)]
    eighths = round(min(100.0, max(0.0, percent)) / 100 * width * 8)
    full, rest = divmod(eighths, 8)
    drawn = "█" * full + (_EIGHTHS[rest] if rest else "")
    return [(drawn, style), ("─" * (width - len(drawn)), DIM)]


def history(values: Sequence[float | None], width: int, style: str, *, rows: int = 1) -> list[Line]:
    """The last `width` values as columns, newest at the right, `rows` lines high; a gap where nothing was measured."""
    shown = list(values)[-width:] if width > 0 else []
    gap = " " * (width - len(shown))
    return [[(gap + "".join(_cell(value, row, rows) for value in shown), style)] for row in reversed(range(rows))]


def _cell(value: float | None, row: int, rows: int) -> str:
    if value is None:
        return " "
    eighths = round(min(100.0, max(0.0, value)) / 100 * rows * 8) - row * 8
    if row == 0:
        eighths = max(1, eighths)  # a measured zero shows as a thin line, so that it differs from a gap
    return _LEVELS[min(8, max(0, eighths))]


def core_cells(cores: Sequence[float], width: int) -> list[Line]:
    """A cell per core, coloured by how busy it is, as wide as there is room for.

    Neighbours share a cell, and show the busier of them, when there are too many for the rows.
    """
    if not cores or width <= 0:
        return []
    share = -(-len(cores) // (width * _CORE_ROWS))
    busy = [max(cores[first : first + share]) for first in range(0, len(cores), share)]
    wide = min(5, max(1, width // len(busy)))
    gap = " " if wide > 1 else ""
    cells = [
        (_LEVELS[max(1, round(min(100.0, value) / 100 * 8))] * (wide - len(gap)) + gap, heat(value)) for value in busy
    ]
    per_row = width // wide
    return [joined(cells[first : first + per_row]) for first in range(0, len(cells), per_row)]


def heat(percent: float) -> str:
    """From grey to red as a core fills."""
    for limit, style in ((10, DIM), (50, "green"), (85, "yellow")):
        if percent < limit:
            return style
    return "red"


def joined(spans: Iterable[Span]) -> Line:
    """Neighbours of one style as one span: fewer escape codes on the wire."""
    line: Line = []
    for text, style in spans:
        if line and line[-1][1] == style:
            line[-1] = (line[-1][0] + text, style)
        else:
            line.append((text, style))
    return line


def fitted(line: Line, width: int) -> Line:
    """The line cut to the width, with an ellipsis where it was."""
    room = width
    kept: Line = []
    for text, style in line:
        if len(text) > room:
            kept.append((text[: max(0, room - 1)] + "…" if room > 0 else "", style))
            return kept
        kept.append((text, style))
        room -= len(text)
    return kept


def flowed(line: Line, width: int) -> Line:
    """As many of the line's spans as fit whole; those at the end matter least."""
    while len(line) > 1 and length(line) > width:
        line = line[:-1]
    return line


def spread(left: Line, right: Line, width: int) -> Line:
    """`left` at the left edge, `right` at the right; `left` gives way."""
    room = width - length(right)
    if room < 8:
        return fitted(left, width)
    left = fitted(left, room - 1)
    return [*left, (" " * (room - length(left)), ""), *right]


def length(line: Line) -> int:
    return sum(len(text) for text, _ in line)
