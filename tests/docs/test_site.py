"""The site: its pages, its navigation, its reference; nothing in it is loaded from elsewhere."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import yaml

import fulltilt

ROOT = Path(__file__).parents[2]
HOOKS = runpy.run_path(str(ROOT / "scripts" / "site_hooks.py"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_in_the_navigation_and_becomes_one(site):
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")}
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    named = {Path(name).stem for name in _names(HOOKS["expanded"](navigation, ROOT / "docs"))}
    assert pages - named == set(), "add them to nav in mkdocs.yml"
    assert pages <= {page.stem for page in site.glob("*.html")}


def test_nothing_is_loaded_from_elsewhere(site):
    loaded = re.compile(r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?(https?:)?//|<link[^>]*\shref=\"?(https?:)?//")
    pages, sheets = list(site.glob("*.html")), list(site.rglob("*.css"))
    assert len(pages) >= len(list((ROOT / "docs").glob("*.md")))
    assert sheets
    for page in pages:
        assert loaded.search(page.read_text(encoding="utf-8")) is None, page.name
    for sheet in sheets:
        assert re.search(r"(@import|url\()\s*[\"']?(https?:)?//", sheet.read_text(encoding="utf-8")) is None, sheet.name


def test_the_reference_has_every_public_name(site):
    text = (site / "api.html").read_text(encoding="utf-8")
    for name in fulltilt.__all__:
        if not name.startswith("__"):
            assert re.search(rf'id="fulltilt\.[\w.]*{name}"', text), name
    assert "rotation_degrees" in text
    assert re.findall(r'id="fulltilt\.[\w.]*\._\w+"', text) == [], "nothing that is Python's own or ours"


def test_the_reference_has_what_pages_import_from_a_package(site):
    """What a reader is told to import, where its package names it as public, can be looked up."""
    text = (site / "api.html").read_text(encoding="utf-8")
    told = set()
    for page in (ROOT / "docs").glob("*.md"):
        told |= set(
            re.findall(r"^from (fulltilt[\w.]*) import ([\w, ]+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        )
    named = {
        (package, name)
        for package, names in told
        for name in names.split(", ")
        if name in getattr(import_module(package), "__all__", ())
    }
    assert ("fulltilt.feed", "VideoClips") in named
    for package, name in sorted(named):
        assert re.search(rf'id="fulltilt\.[\w.]*\b{name}"', text), f"{package}.{name}"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("[examples/a.py](../examples/a.py)", "`examples/a.py`"),
        ("[the script](../examples/a.py)", "the script (`examples/a.py`)"),
        ("[feed](feed.md)", "[feed](feed.md)"),
    ],
)
def test_links_out_of_the_site_become_names(written, shown):
    assert HOOKS["without_outside_links"](written) == shown


def test_sections_without_pages_are_left_out(tmp_path):
    (tmp_path / "recipe-b.md").touch()
    (tmp_path / "recipe-a.md").touch()
    nav = [{"Home": "index.md"}, {"Recipes": ["recipe*.md"]}, {"Later": ["later*.md"]}]
    assert HOOKS["expanded"](nav, tmp_path) == [{"Home": "index.md"}, {"Recipes": ["recipe-a.md", "recipe-b.md"]}]


def _names(nav: list[object]) -> list[str]:
    found: list[str] = []
    for entry in nav:
        if isinstance(entry, dict):
            for pages in entry.values():
                found += _names(pages) if isinstance(pages, list) else [pages]
        else:
            found.append(str(entry))
    return found


def test_files_that_are_named_as_a_guides_place_are_there():
    text = (ROOT / "docs" / "guides.md").read_text(encoding="utf-8").replace("monitor_gpu.py", "")  # the guide's own
    named = re.findall(r"(?<![\w./])((?:[\w-]+/)*[\w-]+\.(?:py|yaml)|(?:[\w-]+/)+)(?=[\s;,|):])", text)
    assert len(named) > 30
    places = (ROOT, ROOT / "src" / "fulltilt", ROOT / "recipes")
    known = {file.name for place in places[1:] for file in place.rglob("*")}
    for name in named:
        there = any((place / name).exists() for place in places)
        assert there or ("/" not in name and name in known), f"there is no {name}"
