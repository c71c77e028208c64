"""Pictures in rows and columns with words beside and below them, drawn with Pillow and its own font."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fulltilt.augment.preview.overlay import Colour, Labels, Pixels, colour_of, hatching, overlay

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

_PAPER, _INK, _QUIET, _LINE = (250, 250, 248), (28, 30, 34), (112, 116, 122), (222, 222, 218)
_MARGIN, _GAP = 24, 10
_NAME_WIDTH = 172
_GLYPHS = frozenset("°±·…")
"""What Pillow's font has beyond ASCII."""
_MOST_LEGEND = 16


@dataclass(frozen=True, kw_only=True, eq=False)
class Cell:
    """One picture and what stands below it."""

    image: Pixels
    """H × W × 3"""
    labels: Labels | None = None
    fill: bool = True
    """Labels are filled with colour; otherwise only their contours are drawn, and the image's own colours seen."""
    captions: Sequence[str] = ()
    """The first in ink, the others quiet."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Row:
    """Pictures that belong together, and what stands beside them."""

    group: str
    """A heading above the first row of each group."""
    name: str
    details: Sequence[str] = ()
    cells: Sequence[Cell] = ()


@dataclass(kw_only=True)
class Sheet:
    """All rows of one picture."""

    title: str
    rows: Sequence[Row]
    columns: int
    cell_pixels: int
    labels: Sequence[int] = ()
    """Class numbers for the legend."""
    ignore: int | None = None
    fonts: dict[int, Any] = field(default_factory=dict)

    def draw(self) -> Image:
        """The finished picture."""
        from PIL import Image, ImageDraw

        width = 2 * _MARGIN + _NAME_WIDTH + self.columns * (self.cell_pixels + _GAP) - _GAP
        pictures = [[self.picture(cell) for cell in row.cells] for row in self.rows]
        captions = [[self.caption_lines(cell) for cell in row.cells] for row in self.rows]
        heads = [self.head_lines(row) for row in self.rows]
        below = [max((len(lines) for lines in row), default=0) * 15 + 4 for row in captions]
        heights = [
            max(max((image.height for image in images), default=0) + text, sum(step for *_, step in head)) + _GAP
            for images, text, head in zip(pictures, below, heads, strict=True)
        ]
        groups = [k == 0 or self.rows[k - 1].group != row.group for k, row in enumerate(self.rows)]
        top = _MARGIN + (34 if self.title else 0)
        sheet = Image.new("RGB", (width, top + sum(heights) + 38 * sum(groups) + _MARGIN - _GAP), _PAPER)
        pen = ImageDraw.Draw(sheet)
        if self.title:
            self.write(pen, (_MARGIN, _MARGIN - 6), self.title, 18, _INK)
        for k, row in enumerate(self.rows):
            if groups[k]:
                self.heading(pen, sheet, row.group, top, width)
                top += 38
            at = top
            for text, size, ink, step in heads[k]:
                self.write(pen, (_MARGIN, at), text, size, ink)
                at += step
            for j, image in enumerate(pictures[k]):
                left = _MARGIN + _NAME_WIDTH + j * (self.cell_pixels + _GAP)
                sheet.paste(image, (left, top))
                for n, (line, ink) in enumerate(captions[k][j]):
                    self.write(pen, (left, top + image.height + 4 + n * 15), line, 12, ink)
            top += heights[k]
        return sheet

    def heading(self, pen: ImageDraw, sheet: Image, text: str, top: int, width: int) -> None:
        pen.line([(_MARGIN, top + 4), (width - _MARGIN, top + 4)], fill=_LINE)
        self.write(pen, (_MARGIN, top + 12), text, 14, _QUIET)
        if text == self.rows[0].group and self.labels:
            self.legend(pen, sheet, top + 13, width)

    def legend(self, pen: ImageDraw, sheet: Image, top: int, width: int) -> None:
        """The classes' colours, right-aligned in the first heading."""
        from PIL import Image

        shown: list[tuple[str, Colour | None]] = [
            (f"class {label}", colour_of(label)) for label in self.labels if label not in (0, self.ignore)
        ]
        more = len(shown) - _MOST_LEGEND
        shown = shown[:_MOST_LEGEND]
        if self.ignore is not None:
            shown.append((f"ignored ({self.ignore})", None))
        if more > 0:
            shown.append((f"and {more} more", _PAPER))
        left = float(width - _MARGIN)
        for text, colour in reversed(shown):
            left -= self.font(12).getlength(text)
            if left < _MARGIN + _NAME_WIDTH:
                return
            self.write(pen, (round(left), top), text, 12, _QUIET)
            box = (round(left) - 17, top + 1)
            if colour is None:
                sheet.paste(Image.fromarray(hatching(12, 12)), box)
            else:
                sheet.paste(Image.new("RGB", (12, 12), colour), box)
            left -= 17 + 14

    def caption_lines(self, cell: Cell) -> list[tuple[str, Colour]]:
        return [
            (line, _QUIET if k else _INK)
            for k, caption in enumerate(cell.captions)
            for line in self.lines([caption], 12, self.cell_pixels)
        ]

    def head_lines(self, row: Row) -> list[tuple[str, int, Colour, int]]:
        """Text, size, colour and height of each line beside a row."""
        names = self.lines([row.name.replace("_", "_\u200b")], 14, _NAME_WIDTH - 14)
        details = self.lines(row.details, 12, _NAME_WIDTH - 14)
        return [(line, 14, _INK, 18) for line in names] + [(line, 12, _QUIET, 16) for line in details]

    def picture(self, cell: Cell) -> Image:
        """Fitted into the cell: small ones by whole pixels, so that they are seen as they are."""
        from PIL import Image

        height, width = cell.image.shape[:2]
        ratio = self.cell_pixels / max(height, width)
        if ratio >= 2.0:
            ratio = float(int(ratio))
        size = max(1, round(width * ratio)), max(1, round(height * ratio))
        how = Image.Resampling.NEAREST if ratio >= 2.0 else Image.Resampling.LANCZOS
        fitted = Image.fromarray(cell.image).resize(size, how)
        if cell.labels is None:
            return fitted
        rows = np.minimum(((np.arange(size[1]) + 0.5) * height / size[1]).astype(int), height - 1)
        columns = np.minimum(((np.arange(size[0]) + 0.5) * width / size[0]).astype(int), width - 1)
        return Image.fromarray(
            overlay(np.asarray(fitted), cell.labels[rows][:, columns], ignore=self.ignore, fill=cell.fill)
        )

    def lines(self, texts: Sequence[str], size: int, width: int) -> list[str]:
        """Texts broken into lines of at most `width`: at spaces, not at no-break ones, and at zero-width ones."""
        lines = []
        for text in texts:
            line = ""
            for word in text.replace("\u200b", " \u200b").split(" "):
                glue = "" if not line or word.startswith("\u200b") else " "
                longer = f"{line}{glue}{word.strip(chr(0x200B))}"
                if line and self.font(size).getlength(_drawable(longer)) > width:
                    lines.append(line)
                    longer = word.strip("\u200b")
                line = longer
            lines.append(self.cut(line, size, width))
        return lines

    def cut(self, line: str, size: int, width: int) -> str:
        """A single word too long for its line ends in dots."""
        if self.font(size).getlength(_drawable(line)) <= width:
            return line
        while line and self.font(size).getlength(_drawable(line) + "…") > width:
            line = line[:-1]
        return line + "…"

    def write(self, pen: ImageDraw, at: tuple[int, int], text: str, size: int, colour: Colour) -> None:
        pen.text(at, _drawable(text), font=self.font(size), fill=colour)

    def font(self, size: int) -> Any:
        from PIL import ImageFont

        if size not in self.fonts:
            self.fonts[size] = ImageFont.load_default(size)
        return self.fonts[size]


def _drawable(text: str) -> str:
    """Letters that the font lacks as question marks, instead of as boxes."""
    text = text.replace("\u00a0", " ")
    return "".join(letter if letter.isascii() or letter in _GLYPHS else "?" for letter in text)
