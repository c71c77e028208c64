"""For mkdocs: names with * in the navigation, and links of pages to files outside of docs/."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]*)\]\((\.\./[^)#]+)\)")


def on_config(config: Any) -> Any:
    config.nav = expanded(config.nav, Path(config.docs_dir))
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    return without_outside_links(markdown)


def expanded(nav: list[Any], folder: Path) -> list[Any]:
    """Entries with * as the pages that there are; a section without pages is left out."""
    found: list[Any] = []
    for entry in nav:
        if isinstance(entry, dict):
            for title, pages in entry.items():
                inside = expanded(pages, folder) if isinstance(pages, list) else pages
                found += [{title: inside}] if inside else []
        elif "*" in entry:
            found += sorted(page.name for page in folder.glob(entry))
        else:
            found.append(entry)
    return found


def without_outside_links(markdown: str) -> str:
    """A file of the repository is no part of the site: its path is named instead."""
    return _OUTSIDE.sub(_named, markdown)


def _named(link: re.Match[str]) -> str:
    words, path = link[1], link[2].removeprefix("../")
    plain = words.strip("`")
    return f"`{path}`" if plain in (path, Path(path).name) else f"{words} (`{path}`)"
