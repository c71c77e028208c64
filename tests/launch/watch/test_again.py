from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from fulltilt.launch.watch.again import Again


@dataclass
class Loop:
    """As much of a watch as is looked at: a loop whose steps take so long, with something between them."""

    step_seconds: float
    between_seconds: float
    begins_at: int
    """The step from which on batches are given again."""
    steps: int = 40
    now_ns: int = 0
    closed: int | None = None
    again: int | None = None
    replay: Any = None
    gpu: Any = None
    records: list[Any] = field(default_factory=list)

    @property
    def timeline(self) -> Any:
        return SimpleNamespace(clock=lambda: self.now_ns)

    def run(self) -> Again:
        again = Again(self)  # type: ignore[arg-type]
        for place in range(2000):
            self.now_ns += round((self.step_seconds + self.between_seconds) * 1e9)
            self.steps += 1
            self.records.append(SimpleNamespace(step_ns=self.step_seconds * 1e9))
            self.replay.begun = place >= self.begins_at
            if again.step_ended():
                break
        again.end()
        return again


@pytest.mark.parametrize(
    ("step", "between", "steps"),
    [(0.1, 0.0, 30), (0.01, 0.0, 100), (0.001, 0.0, 500), (0.0001, 0.0, 1000), (0.001, 0.05, 150), (0.4, 0.0, 12)],
    ids=["long", "usual", "short", "very short", "an evaluation beside each", "very long"],
)
def test_how_many_steps_are_enough(step: float, between: float, steps: int) -> None:
    loop = Loop(step_seconds=step, between_seconds=between, begins_at=4)
    loop.run()
    assert loop.closed == 40
    assert loop.again == 40 + 5 + 4, "the first of them have copies in them"
    assert loop.steps - loop.again == pytest.approx(steps, rel=0.05, abs=1)


def test_too_few_are_no_limit() -> None:
    loop = Loop(step_seconds=0.8, between_seconds=0.0, begins_at=4)
    loop.run()
    assert loop.again is None


def test_a_loop_that_is_fed_by_something_else_is_soon_given_up() -> None:
    loop = Loop(step_seconds=0.01, between_seconds=0.0, begins_at=3000)
    loop.run()
    assert loop.again is None
    assert loop.steps < 40 + 25
