"""What errors and failed processes said, in one line."""

from __future__ import annotations

import pytest

from fulltilt.errors import cause, first_line, last_line


@pytest.mark.parametrize(
    ("said", "plain", "with_kind"),
    [
        ("\nno room\nTraceback", "no room", "ValueError: no room"),
        ("", "ValueError", "ValueError"),
        (" \n", "ValueError", "ValueError"),
    ],
)
def test_the_first_line_of_an_exception(said, plain, with_kind):
    assert first_line(ValueError(said)) == plain
    assert first_line(ValueError(said), kind=True) == with_kind


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("Traceback\nValueError: no\n\n", "ValueError: no"),
        (b"\xff no", "\ufffd no"),
        ("\n", "status 3"),
        (b"", "status 3"),
    ],
)
def test_the_last_line_of_a_process(output, line):
    assert last_line(output, "status 3") == line


@pytest.mark.parametrize(
    ("status", "words"), [(0, "exit status 0"), (3, "exit status 3"), (-9, "signal SIGKILL"), (-40, "signal 40")]
)
def test_how_a_process_ended(status, words):
    assert cause(status) == words
