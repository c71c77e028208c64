"""What the time that is left is spent on, over many scripts and times."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fulltilt.launch.search.budget import FIRST_COMPILE_SECONDS, VERIFY_STEPS, Budget, Script, TooShort, shared_out
from fulltilt.launch.search.candidates import Candidate, level_of

EXACT: dict[str, Any] = {"loader.num_workers": 4}
NUMERIC: dict[str, Any] = {"fused": True}
COMPILED: dict[str, Any] = {"compile": True}


def candidate(settings: dict[str, Any], gain: float) -> Candidate:
    return Candidate(title="", settings=settings, gain=gain)


def script(start: float = 5.0, step: float = 0.05) -> Script:
    return Script(start_seconds=start, step_seconds=step, runs=lambda exact: 2.0 if exact else 3.0)


ALL = (candidate(EXACT, 0.5), candidate(NUMERIC, 0.2), candidate(COMPILED, 0.3))


def test_the_less_time_there_is_the_less_is_done() -> None:
    done = []
    for left in range(150, 0, -1):
        budget = shared_out(ALL, script(), left=left, seconds=180.0)
        kind = [one.settings for one in budget.candidates] if isinstance(budget, Budget) else None
        if kind not in done:
            done.append(kind)
    assert done == [[EXACT, NUMERIC, COMPILED], [EXACT, NUMERIC], [EXACT], None]


def test_where_the_largest_forecast_takes_too_long_to_prove_an_exact_one_is_tried() -> None:
    chosen = (candidate(NUMERIC, 0.9), candidate(EXACT, 0.4))
    kinds = [shared_out(chosen, script(start=20.0), left=left, seconds=100.0) for left in range(140, 0, -1)]
    first = [one.candidates[0].settings for one in kinds if isinstance(one, Budget) and len(one.candidates) == 1]
    assert first[-1] == EXACT


def test_a_gain_that_short_trials_can_not_tell_from_noise_is_not_looked_for_with_them() -> None:
    for gain, left, tried in ((0.5, 28.0, True), (0.05, 28.0, False), (0.05, 36.0, True)):
        budget = shared_out((candidate(EXACT, gain),), script(), left=left, seconds=60.0)
        assert isinstance(budget, Budget) == tried
        assert not isinstance(budget, Budget) or (budget.trial_seconds == 6.0) == (left == 36.0)


def test_a_proof_finds_nothing_in_the_compilers_cache() -> None:
    known = script()
    compiled = shared_out((candidate(COMPILED, 0.5),), known, left=1e4, seconds=1e4)
    plain = shared_out((candidate(NUMERIC, 0.5),), known, left=1e4, seconds=1e4)
    assert isinstance(compiled, Budget)
    assert isinstance(plain, Budget)
    assert compiled.verify_seconds == plain.verify_seconds + FIRST_COMPILE_SECONDS


@given(
    start=st.floats(0.5, 60.0), step=st.floats(0.001, 5.0), left=st.floats(-10.0, 300.0),
    seconds=st.floats(10.0, 300.0), gains=st.lists(st.floats(0.02, 3.0), min_size=1, max_size=3),
)  # fmt: skip
def test_what_is_begun_fits_into_the_time_and_what_would_do_does(
    start: float, step: float, left: float, seconds: float, gains: list[float]
) -> None:
    left = min(left, seconds)
    chosen = [candidate(kind, gain) for kind, gain in zip((EXACT, NUMERIC, COMPILED), gains, strict=False)]
    known = script(start, step)
    found = shared_out(chosen, known, left=left, seconds=seconds)
    if isinstance(found, Budget):
        exact = all(level_of(one.settings) == "exact" for one in found.candidates)
        proof = known.runs(exact) * (start + found.verify_steps * step)
        assert 2 * (start + found.trial_seconds) + proof <= left + 0.1 * seconds + 1e-6
        assert found.verify_steps >= VERIFY_STEPS[0]
        assert 20 * step - 1e-9 <= found.trial_seconds <= max(6.0, 20 * step)
        assert all(one in chosen for one in found.candidates)
    else:
        assert isinstance(found, TooShort)
        assert found.would_do > seconds
        more = left + found.would_do - seconds
        assert isinstance(shared_out(chosen, known, left=more, seconds=found.would_do), Budget)
