"""HTML and SVG built from Python values; whatever is not `Markup` is escaped.

Documents come out well-formed as XML too (quoted attributes, closed elements), which is what the tests parse.
"""

from __future__ import annotations

import re
from html import escape

Child = str | int | float | None

# Elements that never have content: in HTML the void ones, in SVG the shapes.
_EMPTY = frozenset({"br", "circle", "line", "meta", "path", "rect"})
# Neither HTML nor XML can carry these; a lone surrogate can't even be encoded.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class Markup(str):
    """Text that is markup already and is not escaped again."""

    __slots__ = ()


def text(value: Child) -> Markup:
    """A value as markup: escaped, and with what no document can carry replaced by U+FFFD."""
    if isinstance(value, Markup):
        return value
    return Markup("" if value is None else escape(_UNPRINTABLE.sub("\ufffd", str(value)), quote=True))


def join(*parts: Child, separator: str = "") -> Markup:
    """Several parts as one."""
    return Markup(text(separator).join(text(part) for part in parts))


def tag(name: str, /, *children: Child, **attributes: Child) -> Markup:
    """One element; `class_` is `class`, `aria_label` is `aria-label`, and an attribute that is None is left out."""
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    written = "".join(f' {key}="{text(value)}"' for key, value in given.items())
    if name in _EMPTY:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def bound(words: str) -> str:
    """The words with no line break between a number and its unit."""
    return words.replace(" %", "\u00a0%").replace(" °C", "\u00a0°C")
