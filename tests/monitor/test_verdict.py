"""The policy, table by table: each verdict at its edge, each flag with what raises it and what must not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.monitor.samples import series

from fulltilt.machine.sample import CpuSample
from fulltilt.measure.statistics import Figures, describe
from fulltilt.monitor.summary import summarize
from fulltilt.monitor.verdict import (
    NEXT_STEPS,
    THRESHOLDS,
    VERDICTS,
    Moments,
    VerdictName,
    judge,
    one_core_alone,
    raise_flags,
)


def figures(mean, std=0.0):
    return Figures(mean=mean, std=std, p5=mean, p95=mean, below_10=0.0, count=100)


@pytest.mark.parametrize(
    ("mean", "std", "sm", "verdict"),
    [
        (0, 0, 0, "idle"),
        (4.99, 30, 0, "idle"),  # first that fits: however it fluctuates
        (5, 0, 5, "starved"),
        (49.99, 45, 40, "starved"),
        (50, 10.01, 40, "bursty"),
        (97, 10.5, 90, "bursty"),
        (50, 10, 40, "underused"),
        (84.99, 10, 80, "underused"),
        (85, 10, 49.99, "small-kernels"),
        (85, 10, 50, "healthy"),
        (100, 0, 95, "healthy"),
        (100, 0, None, "healthy"),  # unmeasured is not zero
    ],
)
def test_the_first_rule_that_fits(mean, std, sm, verdict):
    assert judge(figures(mean, std), None if sm is None else figures(sm)).name == verdict


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50), st.none() | st.floats(0, 100))
def test_every_series_has_a_verdict_that_its_own_rule_and_evidence_explain(values, sm):
    verdict = judge(describe(values), None if sm is None else figures(sm))
    assert verdict.name in get_args(VerdictName)
    if verdict.name != "healthy":
        threshold = THRESHOLDS[verdict.name]
        assert threshold.figure in verdict.rule
        assert f"{threshold.value:g} {threshold.unit}" in verdict.rule
        said = float(re.search(rf"{threshold.figure} ([\d.e-]+)", verdict.evidence)[1])
        assert said < threshold.value if "<" in verdict.rule else said > threshold.value, (
            "never rounded onto the threshold"
        )


def test_every_threshold_has_a_source_and_every_verdict_a_next_step():
    assert all(threshold.source for threshold in THRESHOLDS.values())
    assert {rule.name for rule in VERDICTS} | {"healthy"} == {*get_args(VerdictName)}
    assert {*NEXT_STEPS} == {*get_args(VerdictName), None}


def test_the_documentation_has_every_threshold():
    page = (Path(__file__).parents[2] / "docs" / "monitor.md").read_text(encoding="utf-8")
    rows = {tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in page.splitlines() if line.startswith("|")}
    for name, threshold in THRESHOLDS.items():
        assert (f"`{name}`", threshold.figure, f"{threshold.value:g} {threshold.unit}", threshold.source) in rows


def flags_of(samples):
    return {flag.name: flag.evidence for flag in summarize(samples).gpus[0].flags}


BUSY = CpuSample(util=96.0, iowait=0.0, cores=(96.0,) * 4)
WAITING = CpuSample(util=10.0, iowait=70.0, cores=(10.0,) * 4)
ONE = CpuSample(util=26.0, iowait=0.0, cores=(2.0, 99.0, 1.0, 2.0))


def test_a_busy_cpu_beside_a_quiet_gpu_is_cpu_bound():
    assert "CPU > 90 % in 20 of the 20 moments" in flags_of(series([3] * 20, cpu=BUSY))["cpu-bound"]


def test_a_busy_cpu_beside_a_busy_gpu_is_not():
    assert flags_of(series([95] * 20, cpu=BUSY)) == {}


@pytest.mark.parametrize("util", [0, 34])
def test_one_busy_core_beside_a_hungry_gpu_is_loading_in_a_single_process(util):
    assert "loading runs in a single process" in flags_of(series([util] * 20, cpu=ONE))["cpu-bound"]


def test_one_busy_core_beside_a_busy_gpu_is_a_training_loop():
    assert flags_of(series([90] * 20, cpu=ONE)) == {}


def test_waiting_for_disks_beside_a_quiet_gpu_is_io_bound():
    found = flags_of(series([2] * 20, cpu=WAITING))
    assert "iowait > 50 % in 20 of the 20 moments" in found["io-bound"]
    assert "cpu-bound" not in found


def test_half_of_the_moments_is_not_more_than_half():
    half = [*series([3] * 10, cpu=BUSY), *series([3] * 10)]
    assert flags_of(half) == {}
    assert "cpu-bound" in flags_of([*half, *series([3], cpu=BUSY)])


def test_a_pause_is_not_a_bottleneck():
    pause = [*series([97] * 95), *series([3] * 5, cpu=BUSY)]
    assert flags_of(pause) == {}


def test_what_was_not_measured_raises_nothing():
    assert flags_of(series([3] * 20, cpu=CpuSample())) == {}
    assert raise_flags(Moments()) == ()


@pytest.mark.parametrize(("used", "raised"), [(90, False), (91, True)])
def test_memory_is_full_above_90_percent(used, raised):
    assert ("memory-full" in flags_of(series([97] * 5, mem_used=used, mem_total=100))) is raised


@pytest.mark.parametrize(
    ("readings", "raised"),
    [
        ({"temp": 79}, False),
        ({"temp": 80}, True),
        ({"temp": 60, "throttle": ("power cap",)}, False),
        ({"temp": 60, "throttle": ("thermal slowdown (software)",)}, True),
    ],
)
def test_heat(readings, raised):
    assert ("hot" in flags_of(series([97] * 5, **readings))) is raised


@pytest.mark.parametrize(
    ("cores", "alone"),
    [
        ((99.0, 1.2), True),
        ((90.0, 19.9), True),
        ((89.0, 0.0), False),
        ((99.0, 20.0), False),
        ((99.0, 99.0, 0.0, 0.0), False),
        ((99.0,), False),
    ],
)
def test_one_core_alone(cores, alone):
    assert one_core_alone(cores) is alone
