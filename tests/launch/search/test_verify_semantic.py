"""Another training, held to what chance does."""

from __future__ import annotations

import math
import random

import pytest

from fulltilt.launch.search.verify_semantic import Run, verdict


def run(seed: int, *, factor: float = 1.0, mean: float = 0.0, spread: float = 1.0, steps: int = 40) -> Run:
    drawn = random.Random(seed)
    losses = tuple(factor * 2.3 * 0.99**step + drawn.gauss(0, 0.1) for step in range(steps))
    inputs = tuple((mean + drawn.gauss(0, 0.02), spread * (1 + drawn.gauss(0, 0.01))) for _ in range(8))
    return Run(losses=losses, inputs=inputs)


def test_other_draws_hold() -> None:
    found = [verdict(run(seed), run(seed + 100), run(seed + 200)) for seed in range(50)]
    assert all(one.holds for one in found), [one.reason for one in found if not one.holds]
    assert "where it was" in found[0].reason


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (run(1, factor=1.3), "half became"),
        (run(1, factor=0.7), "half became"),
        (run(1, mean=0.5), "another mean"),
        (run(1, spread=1.5), "spread otherwise"),
        (run(1, spread=0.5), "spread otherwise"),
        (run(1, steps=6), "10 are needed"),
        (Run(losses=(*run(1).losses[:39], math.nan)), "with the settings 39 of 40 are figures"),
    ],
)
def test_another_training_does_not(after: Run, reason: str) -> None:
    found = verdict(run(0), after, run(2))
    assert not found.holds
    assert reason in found.reason


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_losses_that_are_no_figures_by_themselves_prove_nothing(broken: float) -> None:
    """In both halves: as it is, chance would allow anything."""
    losses = run(0).losses
    lost = Run(losses=(*losses[:3], broken, *losses[4:30], broken, *losses[31:]))
    far = Run(losses=(9.0,) * 40)
    for found, whose in ((verdict(lost, far, run(2)), "it is"), (verdict(run(0), far, lost), "from another seed,")):
        assert not found.holds
        assert found.reason.startswith("the losses could not be compared: as it is")
        assert f"{whose} 38 of 40 are figures" in found.reason


def test_a_larger_batch_may_be_ahead_but_not_behind() -> None:
    assert verdict(run(0), run(1, factor=0.7), run(2), larger_batch=True).holds
    assert not verdict(run(0), run(1, factor=1.3), run(2), larger_batch=True).holds
