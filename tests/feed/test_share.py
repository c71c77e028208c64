"""The GPU's share of decoding: the policy against simulated machines."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fulltilt.feed.share import ShareTuner


def simulated(share, limit, decoders, cost, engine):
    """Rate and waiting of a loop: cores decode so many a second, the engines so many, each costing the step time."""
    rate = 1 / (1 / limit + share * cost)
    feed = min(decoders / (1 - share) if share < 1 else float("inf"), engine / share if share else float("inf"))
    return min(rate, feed), max(0.0, 1 - feed / rate)


def settled(tuner, **machine):
    for _ in range(20):
        tuner.observe(*simulated(tuner.share, **machine))
        if tuner.decision is not None:
            return tuner.decision
    raise AssertionError("it did not settle")


machines = st.fixed_dictionaries(
    {
        "limit": st.floats(100, 10_000),
        "decoders": st.floats(100, 20_000),
        "cost": st.floats(1e-6, 1e-4),
        "engine": st.floats(500, 20_000),
    }
)


@given(machines)
def test_within_a_twentieth_of_the_best_share(machine):
    decision = settled(ShareTuner(), **machine)
    best = max(simulated(k / 64, **machine)[0] for k in range(65))
    assert simulated(decision.value, **machine)[0] >= 0.95 * best
    assert simulated(decision.value, **machine)[0] >= 0.99 * simulated(0.0, **machine)[0]


def test_cores_that_keep_up_are_left_alone_after_one_look():
    tuner = ShareTuner()
    assert tuner.observe(1000.0, 0.0) == 0.0
    assert tuner.decision is not None
    assert "cores keep up" in tuner.decision.reason


def test_few_trials():
    tuner, machine = ShareTuner(), {"limit": 6800, "decoders": 1900, "cost": 1e-5, "engine": 12_000}
    decision = settled(tuner, **machine)
    assert 0.65 <= decision.value <= 0.85
    assert len(decision.evidence["trials"]) <= 9


def test_ended_by_hand_it_stays_with_the_best_so_far():
    tuner, machine = ShareTuner(), {"limit": 6800, "decoders": 140, "cost": 1e-6, "engine": 98}
    rates = {}
    for _ in range(4):
        rates[tuner.share] = simulated(tuner.share, **machine)[0]
        tuner.observe(*simulated(tuner.share, **machine))
    assert tuner.decision is None, "it would go on"
    tuner.settle()
    assert tuner.decision is not None
    assert tuner.decision.value == tuner.share == max(rates, key=rates.get)
    assert tuner.observe(1.0, 0.9) == tuner.share


def test_ended_before_it_has_begun():
    tuner = ShareTuner()
    tuner.settle()
    assert tuner.decision is not None
    assert tuner.share == 0.0


def test_goes_on_beyond_the_share_at_which_nothing_waits():
    """Decoders that just keep up hold up the launching thread: with less to do for them, training is faster still."""
    shares = [0.0, 0.5, 0.75, 0.875, 1.0]
    rates, waits = [3800.0, 5700.0, 6300.0, 6700.0, 6400.0], [0.5, 0.0, 0.0, 0.01, 0.05]  # measured, with 8 cores
    tuner = ShareTuner()
    for _ in range(12):
        share = tuner.share
        tuner.observe(float(np.interp(share, shares, rates)), float(np.interp(share, shares, waits)))
        if tuner.decision is not None:
            break
    assert abs(tuner.share - 0.875) <= 0.0625
