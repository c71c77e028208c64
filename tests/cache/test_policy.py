"""`decide`: what pays, from measured rates."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulltilt.cache.policy import DISK_SHARE, LEAST_GAIN, RAM_SHARE, Keep, Rates, _options, decide
from fulltilt.errors import InputError

GB = 10**9

H200 = Rates(  # ResNet-50 from JPEG files of 80 KB, 16 cores
    samples=1_281_167,
    step_rate=6_765,
    decode_rate=6_977,
    encoded_bytes=80_000,
    decoded_bytes=562_500,
    resized_bytes=256 * 341 * 3,
    source_bytes_per_second=None,  # in the page cache
    cache_bytes_per_second=6 * GB,
    copy_bytes_per_second=60 * GB,
    free_ram_bytes=128 * GB,
    free_disk_bytes=2_000 * GB,
)


def training_rate(keep, rates):
    """Samples per second that training reaches once this is kept; None where a figure for it is missing."""
    rate = next(option.rate for option in _options(rates) if option.keep == keep)
    return None if rate is None else min(rate, rates.step_rate)


def test_nothing_when_the_feed_keeps_up():
    decision = decide(H200)
    assert decision.value is Keep.NOTHING
    assert "training takes 6,765" in decision.reason


def test_pixels_from_the_disk_when_cores_are_few():
    assert decide(replace(H200, decode_rate=1_800)).value is Keep.DISK_DECODED


def test_smaller_pixels_when_the_disk_is_slow():
    decision = decide(replace(H200, decode_rate=1_800, cache_bytes_per_second=2 * GB))
    assert decision.value is Keep.DISK_RESIZED
    assert "samples/s instead of 1,800" in decision.reason


def test_encoded_bytes_in_memory_when_the_source_is_slow():
    rates = replace(H200, samples=100_000, source_bytes_per_second=0.1 * GB)
    assert decide(rates).value is Keep.RAM_ENCODED


def test_pixels_in_memory_when_they_fit():
    assert decide(replace(H200, samples=50_000, decode_rate=1_800)).value is Keep.RAM_DECODED


def test_reading_and_decoding_take_their_time_one_after_the_other():
    rates = replace(H200, decode_rate=1_000, source_bytes_per_second=1_000 * 80_000)
    assert training_rate(Keep.NOTHING, rates) == pytest.approx(500)


def test_nothing_where_training_does_not_wait():
    decision = decide(replace(H200, decode_rate=1_800, wait_share=0.01))
    assert decision.value is Keep.NOTHING
    assert "waits for its feed for 1.0% of its time" in decision.reason
    assert decide(replace(H200, decode_rate=1_800, wait_share=0.5)).value is Keep.DISK_DECODED


def test_a_build_must_pay_within_the_epochs_left():
    rates = replace(H200, decode_rate=1_800)
    assert decide(replace(rates, epochs=1)).value is Keep.NOTHING
    assert decide(replace(rates, epochs=90)).value is Keep.DISK_DECODED


def test_the_reason_says_what_is_in_the_way():
    decision = decide(replace(H200, decode_rate=1_800, free_disk_bytes=100 * GB, cache_bytes_per_second=None))
    assert decision.value is Keep.NOTHING
    assert "disk-decoded was not measured" in decision.reason
    assert "ram-decoded needs 721 GB of 64 GB" in decision.reason


def test_what_is_asked_for_is_taken_or_refused():
    assert decide(H200, cache="disk-decoded").value is Keep.DISK_DECODED
    with pytest.raises(InputError, match="721 GB of 64"):
        decide(H200, cache="ram-decoded")
    with pytest.raises(InputError, match="allowed: auto, nothing"):
        decide(H200, cache="tape")
    with pytest.raises(InputError, match="needs a size"):
        decide(replace(H200, resized_bytes=None), cache="disk-resized")


def test_a_rate_of_nothing_is_refused():
    with pytest.raises(InputError, match="decode_rate is 0"):
        replace(H200, decode_rate=0)


rate = st.floats(1, 1e5)
speed = st.none() | st.floats(1e6, 1e11)
room = st.none() | st.integers(0, 10**13)
size = st.floats(1e3, 1e7)


@st.composite
def any_rates(draw):
    decoded = draw(size)
    return Rates(
        samples=draw(st.integers(1, 10**7)),
        step_rate=draw(rate),
        decode_rate=draw(rate),
        encoded_bytes=draw(size),
        decoded_bytes=decoded,
        resized_bytes=draw(st.none() | st.floats(1e3, decoded)),
        source_bytes_per_second=draw(speed),
        cache_bytes_per_second=draw(speed),
        copy_bytes_per_second=draw(speed),
        free_ram_bytes=draw(room),
        free_disk_bytes=draw(room),
        epochs=draw(st.none() | st.floats(1, 1000)),
    )


@given(any_rates())
def test_never_slower_than_nothing_and_never_for_little(rates):
    chosen = decide(rates).value
    plain = training_rate(Keep.NOTHING, rates)
    if chosen is not Keep.NOTHING:
        assert training_rate(chosen, rates) > plain * (1 + LEAST_GAIN / 2)


@given(any_rates())
def test_what_is_chosen_fits(rates):
    chosen = decide(rates).value
    needs = {
        Keep.RAM_ENCODED: (rates.encoded_bytes, rates.free_ram_bytes, RAM_SHARE),
        Keep.RAM_DECODED: (rates.decoded_bytes, rates.free_ram_bytes, RAM_SHARE),
        Keep.DISK_DECODED: (rates.decoded_bytes, rates.free_disk_bytes, DISK_SHARE),
        Keep.DISK_RESIZED: (rates.resized_bytes, rates.free_disk_bytes, DISK_SHARE),
    }
    if chosen in needs:
        each, free, share = needs[chosen]
        assert rates.samples * each <= free * share


@given(any_rates())
def test_nothing_else_would_be_more_than_two_percent_faster(rates):
    """Of those that fit, over many epochs."""
    rates = replace(rates, epochs=None)
    decision = decide(rates)
    reached = training_rate(decision.value, rates)
    for keep in Keep:
        try:
            decide(rates, cache=keep)
        except InputError:
            continue
        other = training_rate(keep, rates)
        is_roomy = keep is Keep.NOTHING or (
            rates.free_ram_bytes is not None if "ram" in keep else rates.free_disk_bytes is not None
        )
        if other is not None and is_roomy:
            assert reached >= other * (1 - LEAST_GAIN) * (1 - 1e-9)


@given(any_rates(), st.integers(0, 10**13))
def test_more_memory_never_makes_it_slower(rates, more):
    """Beyond the two percent that decide between equals."""
    rates = replace(rates, epochs=None, free_ram_bytes=rates.free_ram_bytes or 0)
    richer = replace(rates, free_ram_bytes=rates.free_ram_bytes + more)
    before = training_rate(decide(rates).value, rates)
    assert training_rate(decide(richer).value, richer) >= before * (1 - LEAST_GAIN) * (1 - 1e-9)


@given(any_rates())
def test_what_was_not_measured_is_not_chosen(rates):
    blind = replace(rates, cache_bytes_per_second=None, copy_bytes_per_second=None)
    assert decide(blind).value in (Keep.NOTHING, Keep.RAM_ENCODED)


@given(any_rates())
def test_smaller_pixels_only_when_a_size_was_asked_for(rates):
    assert decide(replace(rates, resized_bytes=None)).value is not Keep.DISK_RESIZED


@given(any_rates())
def test_evidence_has_a_rate_for_each_option_that_was_measured(rates):
    evidence = decide(rates).evidence
    for keep in Keep:
        measured = training_rate(keep, rates)
        assert (f"{keep} samples/s" in evidence) == (measured is not None)
