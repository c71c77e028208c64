"""Recordings of known loads on an H200 replay through the real command to the right verdict and the right figures.

`benchmarks/record_loads.py` took them. The figures expected here come from the raw JSON lines and numpy alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

RECORDINGS = Path(__file__).parent / "recordings"
EXPECTED = {
    "idle": ("idle", []),
    "starved": ("starved", ["cpu-bound"]),
    "bursty": ("bursty", []),
    "fed": ("healthy", []),
}
SERIES = ("util", "sm", "occupancy", "tensor", "dram")


@cache
def replayed(load):
    command = [sys.executable, "-m", "fulltilt", "monitor", "--replay", str(RECORDINGS / f"{load}.jsonl"), "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@cache
def lines(load):
    return [json.loads(line) for line in (RECORDINGS / f"{load}.jsonl").read_text().splitlines()]


def column(load, name):
    return np.array([gpu[name] for line in lines(load) for gpu in line["gpus"] if name in gpu], dtype=float)


def figures(values):
    return {
        "mean": values.mean(),
        "std": values.std(),
        "p5": np.percentile(values, 5),
        "p95": np.percentile(values, 95),
        "below_10": np.count_nonzero(values < 10) / len(values),
    }


def assert_same(found, values):
    """As exactly as the JSON's digits allow: two for percentages, four for the share, which is one reading in 220."""
    expected = figures(values)
    assert set(found) == set(expected)
    assert found["below_10"] == pytest.approx(expected.pop("below_10"), abs=0.0001)
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=0.0051)


@pytest.mark.parametrize("load", EXPECTED)
def test_the_verdict_is_that_of_the_load(load):
    (gpu,) = replayed(load)["gpus"]
    assert (gpu["verdict"], gpu["flags"]) == EXPECTED[load]
    assert gpu["name"] == "NVIDIA H200"


@pytest.mark.parametrize("name", SERIES)
@pytest.mark.parametrize("load", EXPECTED)
def test_the_gpus_figures_are_those_of_the_lines(load, name):
    (gpu,) = replayed(load)["gpus"]
    assert len(column(load, name)) >= 200
    assert_same(gpu[name], column(load, name))


@pytest.mark.parametrize("load", EXPECTED)
def test_the_peaks_the_cpu_and_the_length_are_those_of_the_lines(load):
    summary = replayed(load)
    (gpu,) = summary["gpus"]
    assert gpu["temp_peak"] == column(load, "temp").max()
    assert gpu["mem_peak"] == column(load, "mem_used").max()
    assert gpu["power_mean_w"] == pytest.approx(column(load, "power_w").mean(), abs=0.001)
    cpu = [line["cpu"] for line in lines(load)]
    assert_same(summary["cpu"]["util"], np.array([one["util"] for one in cpu]))
    assert_same(summary["cpu"]["busiest"], np.array([max(one["cores"]) for one in cpu], dtype=float))
    assert summary["duration_seconds"] == lines(load)[-1]["t"]
    assert summary["samples"] == len(lines(load))


def test_the_bursts_have_their_cycle():
    """From one rise through 50 % to the next; the load works for four seconds and rests for two."""
    util = column("bursty", "util")
    times = np.array([line["t"] for line in lines("bursty")])
    rises = times[1:][(util[:-1] < 50) & (util[1:] >= 50)]
    assert len(rises) >= 4
    period = np.diff(rises).mean()
    assert period == pytest.approx(6.0, abs=0.1)
    assert replayed("bursty")["gpus"][0]["cycle_seconds"] == pytest.approx(period, abs=0.15)


@pytest.mark.parametrize("load", ["idle", "fed"])
def test_a_steady_load_has_no_cycle(load):
    assert "cycle_seconds" not in replayed(load)["gpus"][0]


def test_a_starved_gpu_names_the_single_process_that_loads():
    alone = 0
    for line in lines("starved"):
        *others, busiest = sorted(line["cpu"]["cores"])
        alone += busiest >= 90 and sum(others) / len(others) < 20
    (gpu,) = replayed("starved")["gpus"]
    assert f"{alone} of the {len(lines('starved'))} moments" in gpu["flag_evidence"]["cpu-bound"]
    assert "single process" in gpu["flag_evidence"]["cpu-bound"]


def test_gpm_agrees_with_the_loads():
    """What the driver's counters must say of an idle card and of one matrix product after another."""
    assert column("idle", "sm").max() < 1
    assert column("fed", "sm").min() > 85
    assert column("fed", "tensor").mean() > 85
