"""What the rates in `fulltilt run`'s summary count."""

from __future__ import annotations

import pytest

from fulltilt.cli.run import _unit
from fulltilt.diagnose import diagnose
from fulltilt.launch.search.tune import NotTuned
from fulltilt.measure.observation import Observation, Step


def seen(samples: int | None) -> Observation:
    step = Step(number=0, started=0.0, seconds=0.1, phases={"forward": 0.1}, samples=samples)
    return Observation(command=("train.py",), ended="script", seconds=1.0, steps=(step,) * 5)


@pytest.mark.parametrize(("samples", "unit"), [(8, "samples/s"), (None, "steps/s")])
def test_samples_where_a_loader_counts_them_and_steps_elsewhere(samples: int | None, unit: str) -> None:
    assert _unit(None, seen(samples)) == unit
    found = NotTuned(reason="", diagnosis=diagnose(seen(samples)))
    assert _unit(found, None) == unit
    assert _unit(found, seen(3)) == unit, "the rate before was counted when the plan was made"


def test_nothing_is_said_of_what_was_not_seen() -> None:
    assert _unit(None, None) == "per second"
