"""The document around a report: one file that needs nothing else, neither a network nor a script to be read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .markup import Child, Markup, tag
from .script import SCRIPT
from .style import css

# Nothing may be loaded from anywhere, whatever a recording's strings hold; the browser enforces it.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def document(title: str, *content: Child, style: str = "", script: str = "") -> str:
    """A whole page; `style` and `script` are what one report has beyond those that all share."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(css() + style)),
    )
    # Scripts aren't escaped in HTML; the comment markers keep the page well-formed as XML too.
    script = tag("script", Markup(f"//<![CDATA[{SCRIPT}{script}//]]>"))
    body = tag("body", tag("main", *content), script)
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def card(*content: Child, id_: str | None = None, label: str | None = None) -> Markup:
    """One part of a page."""
    return tag("section", *content, class_="card", id_=id_, aria_label=label)


def tiles(figures: Iterable[tuple[str, str, str]]) -> Markup:
    """Figures side by side: (name, value, what follows the value in small)."""
    boxes = (tag("div", tag("dt", name), tag("dd", value, tag("small", rest))) for name, value, rest in figures)
    return tag("dl", *boxes, class_="tiles")


def table(head: Sequence[str], rows: Iterable[Sequence[Child]], *, numeric: frozenset[int] = frozenset()) -> Markup:
    """A table that scrolls by itself on a narrow page; `numeric` columns are set to the right."""

    def line(kind: str, values: Sequence[Child]) -> Markup:
        cells = (tag(kind, value, class_="num" if at in numeric else None) for at, value in enumerate(values))
        return tag("tr", *cells)

    body = tag("tbody", *(line("td", row) for row in rows))
    return tag("div", tag("table", tag("thead", line("th", head)), body), class_="scroll")
