from __future__ import annotations

from typing import Any

from fulltilt.launch.watch.places import Spot, place, spot


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
