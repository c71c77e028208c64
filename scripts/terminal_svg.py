"""A terminal's lines as an SVG picture that needs no font to be exact: block characters are drawn as rectangles."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from rich.style import Style
from rich.terminal_theme import TerminalTheme

from fulltilt.report.markup import Markup, tag

CELL_WIDTH, CELL_HEIGHT, FONT_SIZE = 8.4, 18.0, 14.0
MARGIN, TITLE_HEIGHT = 16.0, 34.0

# Black, red, green, yellow, blue, magenta, cyan, white; then their bright sisters. The page's night palette.
_NORMAL = [(22, 26, 31), (255, 123, 107), (63, 203, 158), (239, 188, 80)]
_NORMAL += [(106, 140, 255), (223, 151, 204), (90, 182, 239), (233, 235, 238)]
_BRIGHT = [(139, 149, 160), *_NORMAL[1:]]
NIGHT = TerminalTheme((15, 18, 21), (233, 235, 238), _NORMAL, _BRIGHT)


def terminal_svg(lines: Sequence[Sequence[tuple[str, str]]], *, columns: int, title: str) -> str:
    """The picture of `lines`, each a sequence of (text, rich style), in a window of that many columns."""
    width = columns * CELL_WIDTH + 2 * MARGIN
    height = len(lines) * CELL_HEIGHT + TITLE_HEIGHT + MARGIN
    shapes = [
        tag("rect", width=f"{width:g}", height=f"{height:g}", rx=8, fill=NIGHT.background_color.hex),
        *(
            tag("circle", cx=f"{MARGIN + 6 + 18 * index:g}", cy=17, r=5.5, fill=colour)
            for index, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
        ),
        tag("text", title, x=f"{width / 2:g}", y=22, text_anchor="middle", fill="#8b95a0"),
    ]
    for row, line in enumerate(lines):
        column = 0
        for text, style in line:
            for piece in _pieces(text):
                shapes += _drawn(piece, Style.parse(style), column, row)
                column += len(piece)
    return tag(
        "svg",
        *shapes,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        width=f"{width:g}",
        height=f"{height:g}",
        font_family="ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace",
        font_size=f"{FONT_SIZE:g}",
        role="img",
        aria_label=title,
    )


def _pieces(text: str) -> list[str]:
    """The text cut where it has to be drawn in another way: runs of one block character, or words."""
    return ["".join(run) for _, run in groupby(text, key=lambda char: char if _is_block(char) or char in "─·" else "")]


def _drawn(piece: str, style: Style, column: int, row: int) -> list[Markup]:
    colour = style.color.get_truecolor(NIGHT).hex if style.color else NIGHT.foreground_color.hex
    x, y = MARGIN + column * CELL_WIDTH, TITLE_HEIGHT + row * CELL_HEIGHT
    width = len(piece) * CELL_WIDTH
    if _is_block(piece[0]):
        # ▁ … █ fill from below by eighths; █ ▉ … ▏ from the left.
        index = ord(piece[0]) - 0x2580
        if index <= 8:
            return [_box(x, y + CELL_HEIGHT * (1 - index / 8), width, CELL_HEIGHT * index / 8, colour)]
        return [_box(x, y, CELL_WIDTH * (16 - index) / 8, CELL_HEIGHT, colour)]
    if piece[0] == "─":
        return [_box(x, y + CELL_HEIGHT / 2 - 0.5, width, 1, colour)]
    return [
        tag(
            "text",
            words.group(),
            x=f"{x + words.start() * CELL_WIDTH:.1f}",
            y=f"{y + CELL_HEIGHT * 0.74:.1f}",
            fill=colour,
            font_weight="bold" if style.bold else None,
            textLength=f"{len(words.group()) * CELL_WIDTH:.1f}",
            lengthAdjust="spacingAndGlyphs",
        )
        for words in re.finditer(r"\S+(?: \S+)*", piece)
    ]


def _box(x: float, y: float, width: float, height: float, colour: str) -> Markup:
    return tag(
        "rect",
        x=f"{x:.2f}",
        y=f"{y:.2f}",
        width=f"{width:.2f}",
        height=f"{height:.2f}",
        fill=colour,
        shape_rendering="crispEdges",
    )


def _is_block(char: str) -> bool:
    return "▁" <= char <= "▏"
