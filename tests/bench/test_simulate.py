"""Many GPUs from one: the arithmetic against cases worked out by hand, and against what was measured."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from fulltilt.bench.feed.models import UNet, resnet50, window_classifier
from fulltilt.bench.simulate.model import (
    BACKWARD_SHARE,
    BUCKET_BYTES,
    Fleet,
    Workload,
    all_reduce_seconds,
    exposed_seconds,
    feed_stations,
    one_machine,
    simulate,
)
from fulltilt.bench.simulate.page import chart, held_against, page
from fulltilt.bench.simulate.rates import PARAMETERS, workloads
from fulltilt.bench.simulate.scenes import GPUS, scenes
from fulltilt.bench.simulate.table import show
from fulltilt.cli.bench import bench
from fulltilt.errors import InputError

RESULT = json.loads((Path(__file__).parents[2] / "benchmarks/results/h200/feed.json").read_text())
WORK = Workload(
    name="w", title="w", batch=100, limit_per_second=1000.0, core_seconds=0.01, gpu_decode_seconds=0.0005,
    file_bytes=100_000, sample_bytes=1_000_000, gradient_bytes=4 * BUCKET_BYTES,
)  # fmt: skip
FLEET = Fleet(
    gpus_per_machine=4, cores_per_machine=44, bus_bytes_per_second=2e9, disk_bytes_per_second=1e9,
    local_bytes_per_second=100e9, local_latency_seconds=0.0, network_bytes_per_second=10e9,
    network_latency_seconds=0.0, gpu_decoding=False,
)  # fmt: skip


def test_stations_by_hand():
    # One machine, two GPUs: 42 cores load, each 100/s; the bus takes 2,000/s for each GPU; the disk 10,000/s.
    assert feed_stations(WORK, FLEET, 2, 0.0) == {
        "decode cores": pytest.approx(4200),
        "bus": pytest.approx(4000),
        "disk": pytest.approx(10_000),
    }
    # Half of the decoding on the GPU: twice the samples from the cores; files instead of pixels cross for that half.
    half = feed_stations(WORK, FLEET, 2, 0.5)
    assert half["decode cores"] == pytest.approx(8400)
    assert half["bus"] == pytest.approx(4e9 / 550_000)


def test_one_storage_is_shared_by_all_machines():
    shared = replace(FLEET, storage_bytes_per_second=5e9)
    assert feed_stations(WORK, shared, 16, 0.0)["storage"] == pytest.approx(50_000)
    assert feed_stations(WORK, FLEET, 16, 0.0)["disk"] == pytest.approx(40_000)  # four machines' disks


def test_all_reduce_by_hand():
    size = WORK.gradient_bytes
    assert all_reduce_seconds(WORK, FLEET, 1) == 0
    # A ring of 4 sends 2 × 3/4 of the gradients over each link.
    assert all_reduce_seconds(WORK, FLEET, 4) == pytest.approx(1.5 * size / 100e9)
    # Two machines: the same inside, then 2 × 1/2 of them over the network.
    assert all_reduce_seconds(WORK, FLEET, 8) == pytest.approx(1.5 * size / 100e9 + size / 10e9)
    # Each of the four buckets pays for every hop: 2 × 3 of 1 ms.
    slow = replace(FLEET, local_latency_seconds=1e-3)
    assert all_reduce_seconds(WORK, slow, 4) == pytest.approx(1.5 * size / 100e9 + 4 * 6 * 1e-3)


def test_what_backward_hides():
    fast = all_reduce_seconds(WORK, FLEET, 8)
    assert exposed_seconds(WORK, FLEET, 8, step_seconds=1.0) == pytest.approx(fast / 4)  # the last of four buckets
    slow = replace(FLEET, network_bytes_per_second=1e8)
    whole = all_reduce_seconds(WORK, slow, 8)
    assert exposed_seconds(WORK, slow, 8, step_seconds=0.3) == pytest.approx(whole - BACKWARD_SHARE * 0.3)


def test_what_saturates_first():
    one = simulate(WORK, FLEET, 1)
    assert (one.saturated, one.samples_per_second, one.efficiency) == ("GPU", 1000.0, 1.0)
    few = simulate(WORK, replace(FLEET, cores_per_machine=14), 4)  # 10 cores for 4,000/s
    assert (few.saturated, few.samples_per_second) == ("decode cores", pytest.approx(1000))
    assert few.used["decode cores"] == pytest.approx(1)
    assert few.used["GPU"] < 0.3
    narrow = simulate(WORK, replace(FLEET, bus_bytes_per_second=5e8), 2)
    assert (narrow.saturated, narrow.samples_per_second) == ("bus", pytest.approx(1000))
    disk = simulate(WORK, replace(FLEET, disk_bytes_per_second=1e8), 4)
    assert (disk.saturated, disk.samples_per_second) == ("disk", pytest.approx(1000))
    apart = simulate(WORK, replace(FLEET, network_bytes_per_second=1e8), 8)
    assert apart.saturated == "all-reduce"
    assert apart.samples_per_second == pytest.approx(8 * 100 / (0.1 + apart.exposed_seconds))


def test_gpus_decode_as_much_as_pays():
    # 1 core loads 100/s. With a share f: min(100 / (1 − f), 1 / (1/1000 + f × 0.0005)).
    alone = one_machine(cores=2, gpu_decoding=False)
    assert simulate(WORK, alone, 1).samples_per_second == pytest.approx(100)
    shared = simulate(WORK, replace(alone, gpu_decoding=True), 1)
    share = shared.gpu_share
    assert shared.samples_per_second == pytest.approx(min(100 / (1 - share), 1 / (0.001 + share * 0.0005)))
    assert shared.samples_per_second > 680
    assert shared.saturated == "GPU decoding"
    enough = simulate(WORK, replace(alone, gpu_decoding=True, cores_per_machine=12), 1)
    assert enough.gpu_share == 0


@given(
    gpus=st.integers(1, 64), cores=st.integers(1, 256), share=st.booleans(),
    network=st.floats(1e7, 1e12), disk=st.floats(1e7, 1e12),
)  # fmt: skip
def test_never_above_a_limit_and_never_worse_for_more_cores(gpus, cores, share, network, disk):
    fleet = replace(
        FLEET, cores_per_machine=cores, gpu_decoding=share, network_bytes_per_second=network,
        disk_bytes_per_second=disk,
    )  # fmt: skip
    found = simulate(WORK, fleet, gpus)
    assert found.efficiency <= 1 + 1e-9
    assert all(used <= 1 + 1e-9 for used in found.used.values())
    more = simulate(WORK, replace(fleet, cores_per_machine=cores + 8), gpus)
    assert more.samples_per_second >= found.samples_per_second * (1 - 1e-9)


def test_the_models_have_these_many_parameters():
    models = {"resnet50": resnet50()[0], "unet": UNet(32), "windows": window_classifier()}
    assert {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()} == PARAMETERS


def test_figures_are_those_of_their_cases():
    works, sources = workloads(RESULT)
    cases = {case["key"]: case for case in RESULT["cases"]}
    assert works["jpeg"].limit_per_second == cases["train_limit"]["samples_per_second"]
    assert works["jpeg"].core_seconds == pytest.approx(3 / cases["cores_4_cpu"]["samples_per_second"])
    assert {key for source in sources for key in source.cases} <= set(cases)


def test_a_result_without_a_part_says_which():
    without = {**RESULT, "cases": [case for case in RESULT["cases"] if case["part"] != "cores"]}
    with pytest.raises(InputError, match="cores_4_cpu"):
        workloads(without)


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (
            {"machine": {}, "costs": []},
            r"no result of `fulltilt bench feed`, which has .* `cases`.* found machine, costs",
        ),
        ({"cases": {"a": 1}}, "found cases. Make one with `fulltilt bench feed --json feed.json`"),
        ({"cases": [1]}, "found cases"),
        ({"cases": []}, "found cases"),
        ({"cases": [{"name": "a"}]}, "found cases"),
        ([1, 2], "found list"),
        ("text", "found str"),
        (None, "found NoneType"),
        ({"cases": [{"key": "cores_4_cpu", "workers": "many"}]}, "'many' as workers of cores_4_cpu"),
        ({"cases": [{"key": "cores_4_cpu", "workers": 3, "samples_per_second": 0}]}, "0 as samples_per_second"),
    ],
)
def test_another_file_is_refused(result, says, tmp_path):
    file = tmp_path / "monitor.json"
    file.write_text(json.dumps(result))
    problem = CliRunner().invoke(bench, ["simulate", "--feed", str(file)]).exception
    assert isinstance(problem, InputError)
    assert re.search(rf"^--feed: \S+/monitor\.json: .*{says}", str(problem))


def test_the_model_is_near_what_was_measured():
    works, _ = workloads(RESULT)
    rows = held_against(RESULT, works)
    assert len(rows) == 4
    for feed, _, _, ratio in rows:
        assert 0.9 <= float(ratio) <= 1.05, feed


def test_the_page_has_all_scenes_and_the_chart_is_a_picture():
    text = page(RESULT)
    assert all(scene.title in text for scene in scenes())
    root = ElementTree.fromstring(chart(RESULT))
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {scene.title for scene in scenes() if scene.drawn} <= set(words)
    assert {str(count) for count in GPUS} <= set(words)


def test_the_terminal_shows_every_scene_at_80_columns():
    shown = io.StringIO()
    fleet = replace(Fleet(), storage_bytes_per_second=5e9)
    show(RESULT, fleet, Console(file=shown, width=80, force_terminal=True, color_system=None))
    text = shown.getvalue()
    assert all(scene.title in text for scene in scenes(fleet))
    assert "…  " not in text  # nothing was cut off
    assert "a cache of pixels on the storage" in text
    assert "assumed: one storage for all machines: 5 GB/s" in text
    assert "disks of a machine" not in text


def test_rates_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    problem = CliRunner().invoke(bench, ["simulate"]).exception
    assert isinstance(problem, InputError)
    assert "comes with the repository" in str(problem)
    assert "`fulltilt bench feed --json feed.json`" in str(problem)
    problem = CliRunner().invoke(bench, ["simulate", "--feed", "mine.json"]).exception
    assert isinstance(problem, InputError)
    assert "mine.json can't be read" in str(problem)


def test_the_command(tmp_path):
    file = tmp_path / "feed.json"
    file.write_text(json.dumps(RESULT))
    done = CliRunner().invoke(bench, ["simulate", "--feed", str(file), "--cores", "32"])
    assert done.exit_code == 0
    assert "decode cores" in done.output
    assert "assumed: cores in a machine: 32" in done.output
    assert isinstance(CliRunner().invoke(bench, ["simulate", "--feed", str(tmp_path)]).exception, InputError)
    assert isinstance(CliRunner().invoke(bench, ["simulate", "--cores", "0"]).exception, InputError)
