from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import Any

from fulltilt.launch.watch.places import Spot, place, spot, users_modules


def here() -> Spot | None:
    return spot(2)


def test_a_line_has_one_spot_however_often_and_from_wherever_in_it() -> None:
    found = [(here(), here()) for _ in range(3)]  # this one
    other = here()
    spots = {one for pair in found for one in pair}
    assert len(spots) == 1
    assert other not in spots
    at = place(spots.pop())
    assert at is not None
    assert at.text.endswith("# this one")
    assert at.file == __file__


def test_code_that_is_equal_but_not_the_same_has_lines_of_its_own() -> None:
    scopes: list[dict[str, Any]] = [{"here": here}, {"here": here}]
    for scope in scopes:
        exec(compile("def ask():\n    return here()\n", __file__, "exec"), scope)
    first, second = (scope["ask"]() for scope in scopes)
    assert first is not second
    assert place(first) == place(second)


def test_nothing_outside_of_packages_is_no_place() -> None:
    assert place(None) is None


def test_modules_of_ones_own_are_those_that_were_imported(tmp_path, monkeypatch):
    (tmp_path / "helpers_of_mine.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    made = ModuleType("made_by_a_compiler")
    made.__file__ = str(tmp_path / "made.py")
    monkeypatch.setitem(sys.modules, "made_by_a_compiler", made)
    monkeypatch.setitem(sys.modules, "nothing_at_all", None)
    assert str(tmp_path / "helpers_of_mine.py") not in users_modules()
    importlib.import_module("helpers_of_mine")
    try:
        found = users_modules()
    finally:
        del sys.modules["helpers_of_mine"]
    assert str(tmp_path / "helpers_of_mine.py") in found
    assert made.__file__ not in found
    assert not any("site-packages" in file or f"{os.sep}src{os.sep}fulltilt{os.sep}" in file for file in found)
