"""How long a run of the script may take."""

from __future__ import annotations

from typing import Any

import pytest

from fulltilt.launch.command import Command
from fulltilt.launch.search.budget import COMPILE_SECONDS, FIRST_COMPILE_SECONDS
from fulltilt.launch.search.runs import Runs
from fulltilt.measure.observation import Observation


@pytest.mark.parametrize(
    ("settings", "tied", "more"),
    [
        ({"compile": True}, False, COMPILE_SECONDS),
        ({"compile": True}, True, FIRST_COMPILE_SECONDS),
        ({"channels_last": True}, True, 0.0),
    ],
)
def test_a_model_has_time_to_be_compiled(settings: dict[str, Any], tied: bool, more: float) -> None:
    """All over again, where it drops as the seed says: the compiler's cache has the code that drops otherwise."""
    given: list[float] = []

    def observe(command: Command, *, max_seconds: float, **_: Any) -> tuple[Observation, ...]:
        given.append(max_seconds)
        return (Observation(command=command.words, ended="steps", seconds=1.0),)

    command = Command(target="train.py")
    Runs(command=command, observe=observe, seconds=100.0).run(settings=settings, max_seconds=7.0, tie_dropout=tied)
    assert given == [7.0 + more]
