"""The live view's pictures: they fit, they use the room, they say what matters."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulltilt.machine.sample import CpuSample, GpuSample, ProcessSample, Sample
from fulltilt.monitor.drawing import bar, core_cells, flowed, history, length, spread
from fulltilt.monitor.frame import LEAST_SECONDS, ViewState, draw


def machine(gpus, *, seconds=30, cores=16, util=97.0, **readings):
    state = ViewState(title="every 1 s")
    for second in range(1, seconds + 1):
        cards = tuple(
            GpuSample(index=index, name="NVIDIA H200", util=util, mem_used=6 * 2**30, mem_total=140 * 2**30, **readings)
            for index in range(gpus)
        )
        state.add(Sample(t=second, gpus=cards, cpu=CpuSample(util=20.0, iowait=1.0, cores=(20.0,) * cores)))
    return state


def text(lines):
    return "\n".join("".join(span for span, _ in line) for line in lines)


@pytest.mark.parametrize("gpus", [0, 1, 8])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 60), (40, 10), (80, 5)])
@pytest.mark.parametrize("cores", [1, 16, 384])
def test_a_picture_fits_its_terminal(gpus, width, height, cores):
    lines = draw(machine(gpus, cores=cores, sm=80.0, temp=60, power_w=400.0), width, height)
    assert len(lines) <= height
    assert max(length(line) for line in lines) <= width


@pytest.mark.parametrize(("gpus", "height"), [(1, 24), (8, 24), (8, 40), (8, 60)])
def test_every_gpu_is_there_with_its_verdict(gpus, height):
    picture = text(draw(machine(gpus, sm=80.0), 120, height))
    assert picture.count("healthy") == gpus
    assert len(re.findall(r"util +97 %", picture)) == gpus
    assert len(re.findall(r"SM +80 %", picture)) == gpus


def test_the_full_width_is_used_and_taller_terminals_get_taller_histories():
    state = machine(1, seconds=300, sm=80.0)
    low, high = draw(state, 200, 14), draw(state, 200, 40)
    assert max(length(line) for line in low) >= 198
    assert len(high) > len(low)


def test_before_the_first_sample_nothing_is_said_about_gpus():
    assert "waiting for the first sample" in text(draw(ViewState(title="every 60 s"), 80, 24))
    assert "no GPU" not in text(draw(ViewState(title="every 60 s"), 80, 24))
    assert "no driver" in text(draw(ViewState(title="every 60 s", problem="no driver"), 80, 24))


def test_a_tall_history_has_the_figures_of_the_last_minute_beside_it():
    picture = text(draw(machine(1, sm=80.0), 120, 24))
    assert "mean 97.0 % ± 0.0" in picture
    assert "p5 80 %   p95 80 %" in picture


def test_more_gpus_than_rows_are_counted():
    assert "5 more GPUs" in text(draw(machine(8), 80, 8))


def test_the_meaning_of_utilisation_stands_beside_it():
    assert "some kernel ran" in text(draw(machine(1), 80, 24))


def test_a_card_without_gpm_says_so_instead_of_zero():
    assert "not measured: GPM needs Hopper or later" in text(draw(machine(1), 80, 24))


def test_the_verdict_forms_within_20_seconds():
    assert LEAST_SECONDS < 20
    assert "verdict forms in 6 s" in text(draw(machine(1, seconds=5), 120, 24))
    assert "starved" in text(draw(machine(1, seconds=19, util=30.0), 120, 24))


def test_the_verdict_follows_the_last_minute():
    state = machine(1, seconds=60, util=0.0)
    for second in range(61, 200):
        state.add(Sample(t=second, gpus=(GpuSample(index=0, util=99.0),)))
    picture = text(draw(state, 120, 24))
    assert "healthy" in picture
    assert "(last 60 s)" in picture


def test_a_verdict_claims_no_more_time_than_was_seen():
    assert "(last 18 s)" in text(draw(machine(1, seconds=19, util=30.0), 120, 24))


def test_a_lost_gpu_keeps_its_place_and_its_reason():
    state = machine(2)
    state.add(Sample(t=31, gpus=(GpuSample(index=0, lost="the GPU stopped answering"), GpuSample(index=1, util=5.0))))
    for height in (60, 12):
        picture = text(draw(state, 120, height))
        assert "lost: the GPU stopped answering" in picture
        assert "5 %" in picture


def test_no_gpu_says_why():
    state = ViewState(title="", problem="no GPU can be read: no NVIDIA driver is installed")
    state.add(Sample(t=1, cpu=CpuSample(util=10.0, cores=(10.0, 10.0))))
    picture = text(draw(state, 100, 24))
    assert "no NVIDIA driver is installed" in picture
    assert "10 % of 2 cores" in picture


def test_the_watched_process_is_shown():
    state = ViewState(title="")
    state.add(
        Sample(t=1, process=ProcessSample(pid=42, name="python", cpu=390.0, ram_used=2**30, gpu_mem={"0": 2**31}))
    )
    assert "pid 42  python   3.9 cores busy   RAM 1.0 GiB   GPU 0: 2.0 GiB" in text(draw(state, 100, 24))


@given(st.none() | st.floats(-5, 120), st.integers(0, 60))
def test_a_bar_is_as_wide_as_asked(percent, width):
    assert length(bar(percent, width, "")) == width


@given(st.lists(st.none() | st.floats(0, 100), max_size=80), st.integers(0, 60), st.integers(1, 6))
def test_a_history_is_as_wide_and_high_as_asked(values, width, rows):
    drawn = history(values, width, "", rows=rows)
    assert len(drawn) == rows
    assert {length(line) for line in drawn} == {width}


def test_a_measured_zero_differs_from_a_gap():
    assert text(history([0.0, None, 100.0], 3, "")) == "▁ █"
    assert text(history([50.0, 100.0], 2, "", rows=2)) == " █\n██"


@given(st.lists(st.floats(0, 100), min_size=1, max_size=600), st.integers(1, 200))
def test_cores_fit_their_rows(cores, width):
    lines = core_cells(cores, width)
    assert len(lines) <= 3
    assert all(length(line) <= width for line in lines)


def test_lines_give_way_from_the_right():
    assert text([flowed([("abc", ""), ("def", "")], 5)]) == "abc"
    assert text([spread([("left side", "")], [("right", "")], 20)]) == "left side      right"
