"""The summary in words."""

from __future__ import annotations

from tests.monitor.samples import series

from fulltilt.machine.sample import GpuSample, Sample
from fulltilt.monitor.summary import summarize
from fulltilt.monitor.text import summary_lines


def text(samples):
    return "\n".join("".join(span for span, _ in line) for line in summary_lines(summarize(samples)))


def test_everything_that_the_end_must_say():
    cycle = [97.0 if place // 20 % 3 else 4.0 for place in range(240)]
    said = text(series(cycle, interval=0.1, sm=40.0, name="NVIDIA H200", temp=70, mem_used=2**30, mem_total=2**31))
    assert "240 samples over 24.0 s" in said
    assert "GPU 0  NVIDIA H200" in said
    assert " 66.0 % ± 43.8   p5   4.0   p95  97.0   below 10 % for 33 % of the time" in said
    assert "6.0 s from rise to rise" in said
    assert (
        "bursty: standard deviation 43.8 points, mean utilisation 66.0 %  (rule: standard deviation > 10 points)"
        in said
    )
    assert "next         fulltilt diagnose train.py  (what the script does" in said
    assert "1.0 of 2.0 GiB at its peak (50 %)" in said
    assert "some kernel ran" in said


def test_what_was_not_measured_is_said():
    assert "SM activity  not measured" in text(series([97.0]))
    assert "verdict      none: utilisation could not be read" in text(series([None]))


def test_a_lost_gpu_is_named():
    assert "lost         gone" in text([*series([97.0]), Sample(t=2, gpus=(GpuSample(index=0, lost="gone"),))])
