"""What a terminal shows of a diagnosis."""

from __future__ import annotations

import pytest
from rich.console import Console

from fulltilt.cli.diagnose_view import view
from fulltilt.diagnose import diagnose
from fulltilt.measure.observation import Observation, Step


@pytest.mark.parametrize(("world", "told"), [(1, False), (2, True)])
def test_rates_of_one_rank_are_called_so(world, told):
    step = Step(number=0, started=0.0, seconds=0.1, phases={"forward": 0.1}, samples=32)
    seen = Observation(command=("train.py",), ended="stable", seconds=1.0, steps=(step,) * 5, world=world)
    console = Console(width=100)
    with console.capture() as shown:
        console.print(view(diagnose(seen, replay=seen), width=100))
    now = next(line for line in shown.get().splitlines() if line.strip().startswith("now"))
    assert ("320 samples/s per rank  ━" in now) is told
    assert len(now.rstrip()) <= 100
