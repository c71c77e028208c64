"""Who makes the batches: decided before anything starts, within what is free."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulltilt.errors import InputError
from fulltilt.feed.datasets.hosting import MEMORY_SHARE, MOVING, PROCESS_BYTES, SHM_SHARE, Free, host
from fulltilt.feed.datasets.probing import Probed

MIB = 1 << 20
PLENTY = Free(cores=8, memory_bytes=64 << 30, shm_bytes=32 << 30)
QUIET = Probed(bytes_per_sample=1e5, seconds_per_sample=0.01, threads=8, speedup=1.1, repeatable=True)


def test_workers_begin_with_every_core_but_one_and_may_go_beyond_the_cores():
    found = host(QUIET, PLENTY, batch_size=32).value
    assert (found.kind, found.workers, found.most, found.beyond, found.depth) == ("processes", 7, 8, 32, 2)
    assert found.also == ()
    assert found.transport == "shm"


def test_a_number_that_was_asked_for_is_the_only_one():
    found = host(QUIET, PLENTY, batch_size=32, workers=3).value
    assert (found.workers, found.most, found.beyond) == (3, 3, 3)


def test_somebody_s_own_number_comes_first_even_if_large():
    found = host(QUIET, PLENTY, batch_size=32, own=12).value
    assert (found.workers, found.most, found.beyond) == (12, 12, 32)
    assert host(QUIET, PLENTY, batch_size=32, own=0).value.least == 0


@pytest.mark.parametrize(
    ("changes", "kind", "reason"),
    [
        ({"speedup": 7.5}, "threads", "8 threads were 7.5 times as fast as one"),
        ({"speedup": 5.0}, "processes", "8 threads were 5.0 times as fast as one"),
        ({"speedup": 7.5, "repeatable": False}, "processes", "not the same when threads fetched them"),
        ({"speedup": None, "draws": ("numpy", "torch")}, "processes", "draw from numpy and torch"),
        ({"speedup": None, "problem": "ValueError: broken"}, "processes", "ValueError: broken"),
    ],
)
def test_threads_only_where_they_are_as_good(changes, kind, reason):
    fields = {"bytes_per_sample": 1e5, "seconds_per_sample": 0.01, "threads": 8, "repeatable": True, **changes}
    found = host(Probed(**fields), PLENTY, batch_size=32)
    assert found.value.kind == kind
    assert reason in found.reason


def test_a_batch_that_costs_less_than_handing_it_over_begins_without_workers():
    cheap = Probed(bytes_per_sample=100, seconds_per_sample=5e-6, threads=8, speedup=0.9, repeatable=True)
    found = host(cheap, PLENTY, batch_size=32)
    assert (found.value.workers, found.value.least) == (0, 0)
    assert host(cheap, PLENTY, batch_size=32, own=4).value.also == (0,), "worth a trial also where workers were set"
    assert "a batch takes 160 µs" in found.reason
    drawing = Probed(bytes_per_sample=100, seconds_per_sample=5e-6, draws=("torch",))
    assert host(drawing, PLENTY, batch_size=32).value.workers == 7, "its random numbers are not the trainer's"


def test_a_small_dev_shm_has_batches_handed_over_otherwise():
    docker = Free(cores=8, memory_bytes=64 << 30, shm_bytes=64 * MIB)
    large = Probed(bytes_per_sample=600e3, seconds_per_sample=0.01, threads=8, speedup=1.0, repeatable=True)
    found = host(large, docker, batch_size=64)
    assert found.value.transport == "memfd"
    assert "/dev/shm has 64 MiB free" in found.reason
    assert host(large, Free(cores=8, memory_bytes=64 << 30, shm_bytes=None), batch_size=64).value.transport == "memfd"
    assert host(large, docker, batch_size=64, kind="threads").value.transport == "shm", "threads hand nothing over"


def test_short_memory_takes_depth_first_and_then_workers():
    probed = Probed(bytes_per_sample=MIB, seconds_per_sample=0.01)
    free = Free(cores=4, memory_bytes=2 * 400 * MIB, shm_bytes=32 << 30)
    found = host(probed, free, batch_size=8, workers=4)
    assert (found.value.workers, found.value.depth) == (4, 2)  # 4 × 64 + 14 × 8 = 368 MiB
    found = host(probed, Free(cores=4, memory_bytes=2 * 340 * MIB, shm_bytes=32 << 30), batch_size=8, workers=4)
    assert (found.value.workers, found.value.depth) == (4, 1)
    found = host(probed, Free(cores=4, memory_bytes=2 * 200 * MIB, shm_bytes=32 << 30), batch_size=8, workers=4)
    assert (found.value.workers, found.value.depth) == (2, 1)
    assert "at most 2 workers with 1 batches each of 8 MiB a batch" in found.reason


def test_a_depth_that_was_asked_for_stands():
    probed = Probed(bytes_per_sample=MIB, seconds_per_sample=0.01)
    free = Free(cores=4, memory_bytes=2 * 340 * MIB, shm_bytes=32 << 30)
    assert (
        host(probed, free, batch_size=8, workers=4, depth=2).value
        == host(probed, free, batch_size=8, workers=3, depth=2).value
    )


def test_too_little_memory_for_anything_says_what_to_do():
    probed = Probed(bytes_per_sample=MIB, seconds_per_sample=0.01)
    with pytest.raises(InputError, match=r"batch of 256 MiB.*half of the free memory is 500 MiB: lower batch_size"):
        host(probed, Free(cores=4, memory_bytes=1000 * MIB, shm_bytes=32 << 30), batch_size=256)


@given(
    st.floats(1, 1e8),
    st.integers(1, 512),
    st.integers(1, 64),
    st.integers(1 << 28, 1 << 40),
    st.none() | st.integers(0, 1 << 40),
    st.none() | st.integers(1, 64),
    st.none() | st.integers(1, 8),
    st.booleans(),
)
def test_what_is_decided_fits(sample_bytes, batch_size, cores, memory, shm, workers, depth, threads):
    probed = Probed(bytes_per_sample=sample_bytes, seconds_per_sample=0.01)
    free = Free(cores=cores, memory_bytes=memory, shm_bytes=shm)
    kind = "threads" if threads else "processes"
    try:
        found = host(probed, free, batch_size=batch_size, kind=kind, workers=workers, depth=depth).value
    except InputError:
        return
    legs = 2 if workers is None else 1
    batches = legs * found.beyond * found.depth + MOVING + 2
    own = 0 if threads else legs * found.beyond * PROCESS_BYTES
    assert batches * int(sample_bytes * batch_size) + own <= memory * MEMORY_SHARE
    assert 1 <= found.workers <= found.most <= found.beyond
    if found.transport == "shm" and not threads:
        batches = legs * found.most * found.depth + MOVING + 2
        assert batches * int(sample_bytes * batch_size) <= (shm or 0) * SHM_SHARE
