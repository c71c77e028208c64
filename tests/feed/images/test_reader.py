"""How many slots fit into memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulltilt.errors import InputError
from fulltilt.feed.images.reader import fitting_slots

GIB = 1 << 30


@given(st.integers(2, 64), st.integers(1, 4 * GIB), st.integers(GIB, 512 * GIB))
def test_never_more_than_wanted_nor_than_memory_holds(wanted, slot_bytes, available):
    if 2 * slot_bytes > available * 0.9:
        with pytest.raises(InputError, match="lower batch_size"):
            fitting_slots(wanted, slot_bytes, available)
        return
    slots = fitting_slots(wanted, slot_bytes, available)
    assert 2 <= slots <= wanted
    assert slots * slot_bytes <= available * 0.9
    assert slots == wanted or (slots + 1) * slot_bytes > available / 2


def test_what_does_not_fit_is_told_with_its_size():
    with pytest.raises(InputError, match=r"take about 8\.0 GiB, and 2\.0 GiB of memory are free"):
        fitting_slots(4, 4 * GIB, 2 * GIB)
