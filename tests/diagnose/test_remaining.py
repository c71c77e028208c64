"""What keeps a script with its plan below its limit: the greatest part of what it is slower by is named."""

from __future__ import annotations

from fulltilt.diagnose.remaining import remaining

LIMIT = 32 / 31.5e-3
"""Samples per second of the step that `planted` makes, with its batches on the device."""


def test_at_the_limit_nothing_is_left(planted):
    assert remaining(planted().observation(), LIMIT, cores=16) is None


def test_a_limit_that_was_not_measured(planted):
    assert remaining(planted(phases={"data wait": 40}).observation(), None, cores=16) is None


def test_batches_that_are_waited_for_are_told_with_their_work(planted):
    seen = planted(
        phases={"data wait": 8}, loader={"num_workers": 16}, stages={"decode": 3.0, "RandomResizedCrop": 5.0, "flip": 1}
    ).observation()
    told = remaining(seen, LIMIT, cores=16)
    assert told == (
        "at 79 % of the limit: 20 % of the time is waiting for batches (16 workers on 16 cores make no more; "
        "RandomResizedCrop 56 %, decode 33 % of their work)"
    )


def test_batches_that_are_made_between_the_steps(planted):
    told = remaining(planted(phases={"data wait": 40}, loader={"num_workers": 0}).observation(), LIMIT, cores=2)
    assert told is not None
    assert told.endswith("is batches that are made between the steps")


def test_epochs_that_start(planted):
    seen = planted(outside={"epoch start": 6.0}, loader={"samples": 3200, "start_seconds": 2.0}).observation()
    told = remaining(seen, LIMIT, cores=16)
    assert told is not None
    assert "is epochs that start" in told


def test_copies(planted):
    told = remaining(planted(phases={"copy": 9}).observation(), LIMIT, cores=16)
    assert told is not None
    assert told.endswith("is copies to the device")


def test_a_step_that_workers_slow_down(planted):
    seen = planted(phases={"forward": 18}, loader={"num_workers": 16}).observation()
    told = remaining(seen, LIMIT, cores=16)
    assert told is not None
    assert told.endswith("is a step slowed down by 16 workers beside it on 16 cores")
    told = remaining(seen, LIMIT, cores=64)
    assert told is not None
    assert told.endswith("is a step slowed down by the work of feeding it")


def test_two_causes_are_told_where_both_count(planted):
    seen = planted(phases={"data wait": 8, "copy": 5}, loader={"num_workers": 4}).observation()
    told = remaining(seen, LIMIT, cores=16)
    assert told == (
        "at 71 % of the limit: 18 % of the time is waiting for batches (4 workers on 16 cores make no more), "
        "11 % of the time is copies to the device"
    )


def test_what_is_told_is_no_more_than_what_is_missing(planted):
    """The device worked on during a part of the waits: they are longer together than what the step lost."""
    seen = planted(phases={"data wait": 8, "copy": 7, "forward": 1}, loader={"num_workers": 4}).observation()
    told = remaining(seen, LIMIT, cores=16)
    assert told == (
        "at 84 % of the limit: 8.5 % of the time is waiting for batches (4 workers on 16 cores make no more), "
        "7.5 % of the time is copies to the device"
    )


def test_what_workers_cannot_have_cost_is_the_machines(planted):
    """On a CPU: 20 ms slower than its limit beside a worker that had 6.4 ms of a core to do."""
    seen = planted(
        phases={"copy": 0, "forward": 30}, loader={"num_workers": 1}, stages={"decode": 0.2},
        training={"device": "cpu", "threads": 2}, surroundings={"cores": 2, "gpu": None, "gpu_share": None},
    ).observation()  # fmt: skip
    told = remaining(seen, LIMIT, cores=2)
    assert told == (
        "at 61 % of the limit: 26 % of the time is a machine that was less busy when the limit was measured, 12 % of "
        "the time is a step slowed down by 1 worker beside it on 2 cores (decode 100 % of their work)"
    )
