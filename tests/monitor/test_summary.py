"""From samples to a summary."""

from __future__ import annotations

import json

from tests.monitor.samples import series

from fulltilt.machine.sample import CpuSample, GpuSample, ProcessSample, Sample
from fulltilt.monitor.summary import Tally, summarize


def test_the_documented_json():
    cycle = [97.0 if place // 15 % 3 else 4.0 for place in range(225)]
    flat = summarize(series(cycle, interval=0.2, sm=40.0)).to_json()
    gpu = flat["gpus"][0]
    assert gpu["index"] == 0
    assert gpu["verdict"] == "bursty"
    assert gpu["flags"] == []
    assert {*gpu["util"]} == {*gpu["sm"]} == {"mean", "std", "p5", "p95", "below_10"}
    assert gpu["util"]["below_10"] == round(75 / 225, 4)
    assert abs(gpu["cycle_seconds"] - 9) < 0.1
    assert "standard deviation" in gpu["evidence"]
    assert flat["cpu"]["util"]["mean"] == 5.0
    assert flat["duration_seconds"] == 45.0
    json.dumps(flat, allow_nan=False)


def test_what_was_not_measured_is_absent():
    gpu = summarize(series([50.0] * 3)).to_json()["gpus"][0]
    assert not {"sm", "occupancy", "tensor", "dram", "cycle_seconds", "temp_peak", "power_mean_w", "lost"} & gpu.keys()


def test_no_utilisation_is_no_verdict():
    gpu = summarize(series([None] * 3, sm=50.0)).gpus[0]
    assert gpu.verdict is None
    assert "could not be read" in gpu.why
    assert "verdict" not in gpu.to_json()
    assert gpu.sm.mean == 50


def test_a_lost_gpu_is_judged_by_what_was_seen_of_it():
    lost = Sample(t=9.0, gpus=(GpuSample(index=0, lost="the GPU stopped answering"),))
    gpu = summarize([*series([97.0] * 5), lost, lost]).gpus[0]
    assert gpu.util.count == 5
    assert gpu.verdict.name == "healthy"
    assert gpu.lost == "the GPU stopped answering"


def test_gpus_are_in_order_and_slices_apart():
    sample = Sample(t=1, gpus=tuple(GpuSample(index=index, slice=part) for index, part in [(10, None), (2, 1), (2, 0)]))
    assert [gpu.label for gpu in summarize([sample]).gpus] == ["2:0", "2:1", "10"]


def test_peaks_means_and_names_seen_once():
    first = Sample(
        t=1,
        gpus=(
            GpuSample(
                index=0, util=1, name="NVIDIA H200", uuid="GPU-1", mem_used=5, mem_total=10, temp=40, power_w=100.0
            ),
        ),
        cpu=CpuSample(ram_used=3, ram_total=8, disk_read_mb_s=10.0),
        process=ProcessSample(pid=5, name="python", cpu=100.0, ram_used=2, gpu_mem={"0": 3, "1": 4}),
    )
    second = Sample(
        t=2,
        gpus=(GpuSample(index=0, util=1, mem_used=4, mem_total=10, temp=42, power_w=300.0),),
        cpu=CpuSample(ram_used=2, ram_total=8),
        process=ProcessSample(pid=5, cpu=300.0, ram_used=1),
    )
    summary = summarize([first, second])
    gpu = summary.gpus[0]
    assert (gpu.name, gpu.uuid, gpu.mem_peak, gpu.temp_peak, gpu.power_mean_w) == ("NVIDIA H200", "GPU-1", 5, 42, 200.0)
    assert (summary.cpu.ram_peak, summary.cpu.disk_read_mean_mb_s) == (3, 10.0)
    process = summary.process
    assert (process.pid, process.name, process.cpu_mean, process.ram_peak, process.gpu_mem_peak) == (
        5,
        "python",
        200.0,
        2,
        7,
    )


def test_a_tally_is_a_summary_at_any_time_and_no_samples_is_an_empty_one():
    tally = Tally()
    assert tally.summary().to_json() == {"gpus": [], "cpu": {}, "duration_seconds": 0.0, "samples": 0}
    for sample in series([10.0, 30.0]):
        tally.add(sample)
        tally.summary()
    assert tally.summary() == summarize(series([10.0, 30.0]))
