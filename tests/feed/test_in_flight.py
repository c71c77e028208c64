"""How far a loop may run ahead of the device."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from fulltilt.feed.in_flight import FEWEST, MOST, InFlight, steps_allowed


@given(st.integers(0, 1 << 40))
def test_large_batches_are_few_and_small_ones_not_without_end(batch_bytes):
    allowed = steps_allowed(batch_bytes)
    assert FEWEST <= allowed <= MOST
    assert allowed == FEWEST or allowed * batch_bytes <= 256 << 20


def test_a_cpu_is_never_behind():
    steps = InFlight(torch.device("cpu"))
    assert steps.launched(1) is None
    assert steps.is_idle
