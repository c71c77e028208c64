"""Losses before and after, judged by the rule."""

from __future__ import annotations

import math
import random

import pytest

from fulltilt.diagnose.finding import Level
from fulltilt.launch.search.verify import fallbacks, roundings, verdict
from fulltilt.launch.settings import SETTINGS

LOSSES = [2.3 * 0.97**step for step in range(30)]
NUDGED = [loss + 1e-4 * 1.2**step for step, loss in enumerate(LOSSES)]


def test_exact_settings_must_leave_every_bit() -> None:
    assert verdict("exact", LOSSES, LOSSES).holds
    other = [*LOSSES[:12], math.nextafter(LOSSES[12], 9.0), *LOSSES[13:]]
    found = verdict("exact", LOSSES, other, again=LOSSES)
    assert not found.holds
    assert found.step == 12
    assert "step 13" in found.reason


@pytest.mark.parametrize("count", [0, 12])
def test_exact_settings_are_blamed_for_nothing_that_a_second_run_did_not_come_to(count: int) -> None:
    other = [*LOSSES[:12], *[loss + 1e-6 for loss in LOSSES[12:]]]
    found = verdict("exact", LOSSES, other, again=LOSSES[:count])
    assert not found.holds
    assert found.step is None
    assert found.reason == (
        f"the losses could not be compared: they differ from step 13 on, and a second run as it is has {count} of them"
    )
    assert verdict("exact", LOSSES, other, again=LOSSES[:13]).step == 12
    own = [*LOSSES[:3], *[loss + 1e-6 for loss in LOSSES[3:8]]]
    assert verdict("exact", LOSSES, other, again=own).holds, "it never repeats itself"


def test_a_script_that_never_repeats_itself_is_held_to_its_own_band() -> None:
    again = [loss + 1e-6 * (step + 1) for step, loss in enumerate(LOSSES)]
    near = [loss - 2e-6 * (step + 1) for step, loss in enumerate(LOSSES)]
    assert verdict("exact", LOSSES, near, again=again).holds
    assert not verdict("exact", LOSSES, [loss + 1e-3 for loss in LOSSES], again=again).holds


@pytest.mark.parametrize("size", [0.0, 0.5, 2.0])
def test_rounding_is_within_the_band(size: float) -> None:
    drawn = random.Random(0)
    after = [
        loss + size * drawn.uniform(-1, 1) * abs(nudged - loss) for loss, nudged in zip(LOSSES, NUDGED, strict=True)
    ]
    found = verdict("numeric", LOSSES, after, nudged=[NUDGED])
    assert found.holds, found.reason


@pytest.mark.parametrize(
    "after",
    [
        [loss * 1.05 for loss in LOSSES],
        [LOSSES[0], *[2.3] * 29],
        [*LOSSES[:20], *[math.nan] * 10],
        [2.3 * 0.97 ** (step * 1.3) for step in range(30)],
    ],
    ids=["another model", "does not learn", "breaks down", "learns otherwise"],
)
def test_another_training_is_caught(after: list[float]) -> None:
    found = verdict("numeric", LOSSES, after, nudged=[NUDGED])
    assert not found.holds
    assert found.step is not None
    assert found.curves.before == tuple(LOSSES)


def test_of_two_nudged_runs_the_one_that_strayed_further_counts() -> None:
    after = [loss + 0.08 * math.sin(step) for step, loss in enumerate(LOSSES)]
    little, much = ([loss + by for loss in LOSSES] for by in (0.01, -0.03))
    assert not verdict("numeric", LOSSES, after, nudged=[little]).holds
    for both in ([little, much], [much, little], [much[:20], little]):
        assert verdict("numeric", LOSSES, after, nudged=both).holds
    broken = [math.nan] * 30
    assert not verdict("numeric", LOSSES, after, nudged=[little, broken]).holds, "what is no figure allows nothing"


def test_too_few_losses_prove_nothing() -> None:
    assert not verdict("exact", LOSSES[:4], LOSSES[:4]).holds
    assert "4 were seen" in verdict("exact", LOSSES[:4], LOSSES).reason


@pytest.mark.parametrize("level", ["exact", "numeric"])
def test_losses_that_are_no_figures_prove_nothing(level: Level) -> None:
    broken = [*LOSSES[:4], *[math.nan] * 20, math.inf]
    found = verdict(level, broken, broken, nudged=[broken])
    assert not found.holds
    assert found.reason == "the losses could not be compared: 4 of 25 are figures, 5 are needed"


def test_losses_that_are_not_numbers_in_both_runs_are_the_same() -> None:
    losses = [*LOSSES[:6], math.nan, math.inf]
    assert verdict("exact", losses, losses).holds


@pytest.mark.parametrize(("before", "after"), [(math.inf, -5e9), (math.inf, 2.0), (2.0, math.inf), (2.0, math.nan)])
@pytest.mark.parametrize("level", ["exact", "numeric"])
def test_a_loss_that_is_no_figure_in_one_of_them_is_off(level: Level, before: float, after: float) -> None:
    as_is, with_settings = ([*LOSSES[:7], loss, *LOSSES[8:]] for loss in (before, after))
    other = [*NUDGED[:7], before, *NUDGED[8:]]
    found = verdict(level, as_is, with_settings, again=other, nudged=[other])
    assert not found.holds
    assert found.step == 7
    assert all(map(math.isfinite, found.curves.band))


def test_what_to_go_back_to() -> None:
    levels = {name: kind.level for name, kind in SETTINGS.items()}
    plan = {"loader.num_workers": 4, "autocast": "bfloat16", "tf32": True}
    assert fallbacks(plan, levels) == [
        {"loader.num_workers": 4, "tf32": True}, {"loader.num_workers": 4}, {},
    ]  # fmt: skip
    assert fallbacks({"loader.num_workers": 4}, levels) == [{}]
    assert roundings(plan) == 2**-9
    assert roundings({"tf32": True}) == 2**-12
