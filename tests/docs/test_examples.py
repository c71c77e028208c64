"""Every code block in the documentation runs, and its tables say what the code says."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest
from tests.decode.video.support import make

from fulltilt.augment import GPUAugmentation, Settings
from fulltilt.bench.photos import photos

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[str, int, str]]:
    """File, line and code of each block."""
    found = []
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        found += [(page.name, text.count("\n", 0, match.start(1)), match[1]) for match in BLOCK.finditer(text)]
    return found


@pytest.mark.parametrize(("page", "line", "code"), [pytest.param(*b, id=f"{b[0]}:{b[1]}") for b in blocks()])
def test_block(page, line, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("photo.jpg").write_bytes(next(photos(1)))
    if page == "video.md":
        make(Path("ball"))
    tree = ast.increment_lineno(ast.parse(code), line)
    exec(compile(tree, DOCS / page, "exec"), {"__name__": "example"})


def test_there_are_blocks():
    assert sum(page == "augmentation.md" for page, _, _ in blocks()) >= 12


def test_every_option_is_in_the_table_with_its_default():
    text = (DOCS / "augmentation.md").read_text(encoding="utf-8").split("## Options")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| `([^`]*)` \| (.+) \|$", text, re.MULTILINE)
    settings = GPUAugmentation().settings
    assert [(name, ast.literal_eval(default)) for name, default, _ in rows] == [
        (f.name, _rounded(getattr(settings, f.name))) for f in fields(Settings)
    ]
    assert set(get_type_hints(Settings)) == {name for name, _, _ in rows}


def _rounded(value: object) -> object:
    """3/4 and 4/3 are written in three digits."""
    return tuple(round(v, 3) for v in value) if isinstance(value, tuple) else value


def test_every_image_and_page_that_is_linked_exists():
    for page in DOCS.glob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links {target}"
