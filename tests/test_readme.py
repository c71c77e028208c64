"""README and docs say what is true: figures from committed results, links that lead somewhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
TABLES = [sys.executable, str(ROOT / "scripts" / "tables.py")]
PAGES = [README, ROOT / "README.zh-CN.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def tables(*arguments):
    return subprocess.run([*TABLES, *map(str, arguments)], check=False, capture_output=True, text=True)


def test_the_figures_are_those_of_the_committed_results():
    done = tables("--check")
    assert done.returncode == 0, done.stderr


def test_a_changed_figure_is_noticed_and_put_right(tmp_path):
    shown = json.loads((ROOT / "benchmarks/results/h200/monitor.json").read_text())["costs"][0]["core_percent"]
    text = README.read_text()
    changed = tmp_path / "README.md"
    changed.write_text(text.replace(f"{shown:.2f} % of one core", "0.01 % of one core", 1))
    assert changed.read_text() != text
    assert tables("--check", "--readme", changed).returncode == 1
    done = tables("--readme", changed)
    assert done.stdout == f"{changed} rewritten\n", "no other page is touched"
    assert changed.read_text() == text


def test_both_languages_show_the_same_figures():
    def figures(page):
        inside = page.read_text().split("<!-- figures:begin -->")[1].split("<!-- figures:end -->")[0]
        return [sorted(re.findall(r"\d+(?:[,.]\d+)*", row)) for row in inside.strip().splitlines()[2:]]

    assert figures(README) == figures(ROOT / "README.zh-CN.md")
    assert all(figures(README))


def test_a_readme_without_the_marks_is_left_alone(tmp_path):
    bare = tmp_path / "README.md"
    bare.write_text("# nothing\n")
    done = tables("--readme", bare)
    assert done.returncode == 1
    assert "figures:begin" in done.stderr
    assert bare.read_text() == "# nothing\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert missing == []


def test_the_feed_s_page_names_every_option():
    import inspect

    from fulltilt.feed import feed

    section = (ROOT / "docs" / "feed.md").read_text().split("## Options\n")[1].split("\n## ")[0]
    named = {
        name
        for row in section.splitlines()
        if row.startswith("| `")
        for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    assert named == set(inspect.signature(feed).parameters) - {"source"}
