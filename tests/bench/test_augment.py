"""The augmentation benchmark: its logic from canned measurements, and for real what a machine without a GPU can run."""

from __future__ import annotations

import io
import json
import os
import runpy
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from fulltilt.augment import GPUAugmentation
from fulltilt.bench.augment import cases, check, compiled, loader, peers, run, timing
from fulltilt.bench.augment.figures import AugmentBench, Case, Check, Peer, Timing, target
from fulltilt.bench.augment.table import lines, show
from fulltilt.bench.augment.task import CLASSES, OPTIONS, Task, floor_bytes

ROOT = Path(__file__).parents[2]
FAST = Timing(gpu_ms=0.062, graph_ms=0.059, wall_ms=0.081, host_us=38.2)
KORNIA = Peer(name="Kornia", takes="float32", masks=True, timing=Timing(gpu_ms=3.1, wall_ms=5.14, host_us=4900.0))
TRITON = Peer(name="triton-augment", takes="float32", timing=Timing(gpu_ms=0.9, wall_ms=1.0, host_us=900.0))
MISSING = Peer(name="torchvision v2, one draw", takes="float32", problem="not installed: pip install torchvision")
RIGHT = Check(samples=2, worst=0.4, wrong_labels=0.0, unwritten=0)
TINY = Task(batch=3, size=32, masks=True, device="cpu")


def task_case(**changes) -> Case:
    plan = cases.plans(Task(batch=32, size=512, masks=True, device="cpu"), quick=True)[0]
    made = Case(key=plan.key, title=plan.title, wanted=plan.wanted, timing=FAST, floor_ms=0.0195, check=RIGHT)
    return replace(made, **changes)


def canned(**changes) -> AugmentBench:
    found = (KORNIA, TRITON, MISSING)
    first = run._with_ratios(task_case(), found)
    crops = Case(
        key="crops_list",
        title="256 crops ~500×375→224², list",
        timing=replace(FAST, gpu_ms=0.1612, wall_ms=1.234, graph_ms=None),
        floor_ms=0.031,
        wanted=(target("gpu_ms", 0.15),),
        check=RIGHT,
    )
    base = AugmentBench(
        machine={"gpus": ["NVIDIA H200"], "cores": 16, "driver": None},
        date="2026-11-15T12:00:00+00:00",
        seconds=100.0,
        task="32×512² + masks: flip",
        copy_tb_per_s=4.2987,
        cases=(first, crops),
        peers=found,
    )
    return replace(base, **changes)


def text_of(found: AugmentBench) -> str:
    into = io.StringIO()
    show(found, Console(file=into))
    return into.getvalue()


# --- targets ------------------------------------------------------------------------------------------------------


def test_the_promised_case_has_the_promised_targets_and_other_sizes_have_none():
    wanted = {plan.key: plan for plan in cases.plans(Task(batch=32, size=512, masks=True, device="cpu"), quick=False)}
    assert [str(target) for target in wanted["task"].wanted] == [
        "GPU ms ≤ 0.08",
        "wall ms ≤ 0.1",
        "times faster than Kornia ≥ 50",
        "times faster than triton-augment ≥ 14",
    ]
    assert [target.wanted for target in wanted["strong"].wanted] == [0.30, 0.30]
    assert [str(target) for target in wanted["small"].wanted] == ["times the memory floor ≤ 3"]
    assert wanted["crops"].wanted[0] == wanted["crops_list"].wanted[0] == target("gpu_ms", 0.15)
    assert not wanted["crops_list"].graph
    assert {"nchw", "float32", "minimal", "clips"} <= set(wanted)
    other = {plan.key: plan for plan in cases.plans(Task(batch=8, size=512, masks=True, device="cpu"), quick=True)}
    assert not other["task"].wanted
    assert not other["strong"].wanted
    assert other["small"].wanted
    assert "clips" not in other


def test_speed_ups_are_in_wall_time_and_decide_the_targets():
    found = canned()
    assert found.cases[0].ratios == {
        "times_kornia": pytest.approx(5.14 / 0.081),
        "times_triton_augment": pytest.approx(1.0 / 0.081),
    }
    assert "missed: 32×512² + masks: times faster than triton-augment ≥ 14, found 12.35" in lines(found)
    assert found.gpu_speedup(KORNIA) == pytest.approx(50.0)
    assert found.speedup(MISSING) is None


def test_a_peer_that_is_missing_leaves_its_target_open():
    found = run._with_ratios(task_case(), (KORNIA, replace(TRITON, timing=None, problem="not installed")))
    assert [target.figure for target in found.targets if target.met is not True] == ["times_triton_augment"]
    assert found.targets[-1].met is None


def test_a_wrong_output_is_said_whatever_its_speed():
    wrong = task_case(check=replace(RIGHT, unwritten=17), wanted=())
    assert wrong.wrong().startswith("WRONG: 32×512² + masks")
    assert task_case().wrong() is None
    assert not canned(cases=(wrong,)).right
    assert not replace(RIGHT, worst=float("nan")).right
    assert not replace(RIGHT, wrong_labels=0.01).right


def test_the_floor_counts_every_byte_once():
    pixels = 32 * 512 * 512
    assert floor_bytes(pixels_in=pixels, pixels_out=pixels) == pixels * 9
    assert floor_bytes(pixels_in=pixels, pixels_out=pixels, masks=True) == pixels * 11
    assert floor_bytes(pixels_in=pixels, pixels_out=pixels, bytes_in=4) == pixels * 18
    by_key = {plan.key: plan for plan in cases.plans(Task(batch=32, size=512, masks=True, device="cpu"), quick=True)}
    assert by_key["task"].bytes_moved == pixels * 11
    assert by_key["task"].bytes_in == pixels * 4


# --- table and JSON -----------------------------------------------------------------------------------------------


def test_the_table_fits_100_columns_and_says_what_fell_short():
    said = text_of(canned())
    table = said.split("torchvision v2, one draw: not installed")[0]
    assert max(map(len, table.splitlines())) <= 100
    assert "…" not in table
    assert "copy 4.30 TB/s" in said
    assert "63.5×" in said
    assert "31 %" in said, "of the floor: 0.0195 of 0.062 ms"
    assert "triton-augment (no masks)" in said
    assert "missed: 256 crops ~500×375→224², list: GPU ms ≤ 0.15, found 0.1612" in said
    assert "2 cases checked against the torch path" in said


def test_nothing_is_called_right_that_was_wrong():
    wrong = canned(cases=(task_case(check=replace(RIGHT, worst=3.0)),))
    assert not any("checked against the torch path" in line for line in lines(wrong))
    assert any(line.startswith("WRONG") for line in lines(wrong))


def test_the_json_has_targets_and_leaves_out_what_was_not_measured():
    flat = json.loads(json.dumps(canned().to_json()))
    assert flat["machine"] == {"gpus": ["NVIDIA H200"], "cores": 16}
    first, crops = flat["cases"]
    assert (first["gpu_ms"], first["graph_ms"], first["wall_ms"], first["host_us"]) == (0.062, 0.059, 0.081, 38.2)
    words = "GPU ms ≤ 0.08"
    assert first["targets"][0] == {
        "figure": "gpu_ms", "words": words, "at_most": 0.08, "found": 0.062, "met": True,
    }  # fmt: skip
    assert first["targets"][3]["at_least"] == 14
    assert (first["floor_ms"], first["floor_ratio"]) == (0.0195, 3.179)
    assert first["check"]["right"] is True
    assert "graph_ms" not in crops
    by_name = {peer["name"]: peer for peer in flat["peers"]}
    assert by_name["Kornia"]["speedup"] == 63.46
    assert by_name["torchvision v2, one draw"] == {
        "name": "torchvision v2, one draw",
        "takes": "float32",
        "masks": False,
        "problem": "not installed: pip install torchvision",
    }


def test_the_readme_s_rows_are_made_from_the_json():
    tables = runpy.run_path(str(ROOT / "scripts" / "rows.py"))
    rows = tables["augment_rows"](json.loads(json.dumps(canned().to_json())))
    assert rows[0][:4] == ("fulltilt, 32×512² + masks", "0.062 ms", "0.081 ms", "")
    assert rows[0][4].startswith("GPU ms ≤ 0.08, wall ms ≤ 0.1, times faster than Kornia ≥ 50")
    assert rows[2:] == [
        ("Kornia", "3.100 ms", "5.140 ms", "63.5×", ""),
        ("triton-augment (no masks)", "0.900 ms", "1.000 ms", "12.3×", ""),
        ("torchvision v2, one draw", "", "", "not installed: pip install torchvision", ""),
    ]


# --- the check ----------------------------------------------------------------------------------------------------


def small_inputs():
    return (
        torch.randint(0, 256, (4, 24, 20, 3), dtype=torch.uint8),
        torch.randint(0, CLASSES, (4, 24, 20), dtype=torch.uint8),
    )


def test_the_check_passes_what_is_right():
    module = GPUAugmentation(**OPTIONS, dtype=torch.bfloat16, channels_last=True)
    found = check.check_call(module, *small_inputs())
    assert found == Check(samples=2, worst=0.0, wrong_labels=0.0, unwritten=0)
    for plan in cases.plans(TINY, quick=False):
        if plan.key in ("nchw", "float32", "minimal"):
            ready = cases.get_ready(plan, device="cpu", sets=1)
            assert check.check_call(ready.module, *ready.inputs[0]).right


def test_the_check_takes_lists_and_ragged_buffers():
    for as_list in (False, True):
        plan = cases._crops("cpu", as_list=as_list, count=3, size=16)
        ready = cases.get_ready(plan, device="cpu", sets=1)
        assert check.check_call(ready.module, *ready.inputs[0]).right


@pytest.mark.parametrize("fault", ["unwritten", "wrong_pixel", "wrong_labels"])
def test_the_check_finds(fault):
    class Faulty(GPUAugmentation):
        def forward(self, images, masks=None, **rest):
            out, labels = super().forward(images, masks, **rest)
            if len(images) == 4:  # the side that is timed, not its twin
                if fault == "unwritten":
                    out[3, :, 5:] = torch.empty_like(out[3, :, 5:])
                elif fault == "wrong_pixel":
                    out[1, 2, 3, 4] += 0.2
                else:
                    labels[0, :3] = (labels[0, :3] + 1) % CLASSES
            return out, labels

    found = check.check_call(Faulty(**OPTIONS, dtype=torch.bfloat16), *small_inputs())
    assert not found.right
    assert (found.unwritten > 0) == (fault == "unwritten")
    assert not torch.are_deterministic_algorithms_enabled(), "left as it was"


# --- what runs here -----------------------------------------------------------------------------------------------


def test_the_composed_peer_does_the_task(monkeypatch):
    images, masks = torch.rand(2, 3, 16, 16), torch.randint(0, CLASSES, (2, 1, 16, 16), dtype=torch.uint8)
    draws = torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5]])
    monkeypatch.setattr(torch, "rand", lambda *_, **__: draws)  # nothing but a flip of the second
    out, labels = peers.composed_apply("cpu")(images, masks)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (peers.MEAN, peers.STD))
    wanted = (torch.stack([images[0], images[1].flip(-1)]) - mean) / std
    torch.testing.assert_close(out.float(), wanted, atol=0.02, rtol=0.02)
    assert out.dtype == torch.bfloat16
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(labels, torch.stack([masks[0], masks[1].flip(-1)]))


def test_peers_are_measured_or_say_why_not():
    inputs = peers.float_inputs(TINY)
    by_name = {one.name: one for one in peers.contenders(TINY, quick=False)}
    plain = peers.measure_peer(by_name["torch, one grid_sample"], TINY, inputs)
    assert plain.timing is not None
    assert plain.timing.wall_ms > 0
    assert plain.masks

    def broken(device):
        raise ValueError("no such thing\nand more")

    failed = peers.measure_peer(replace(by_name["Kornia"], needs=None, build=broken), TINY, inputs)
    assert (failed.timing, failed.problem) == (None, "ValueError: no such thing")
    absent = peers.measure_peer(replace(by_name["Kornia"], needs="not_there"), TINY, inputs)
    assert absent.problem == "not installed: pip install not-there"
    no_gpu = peers.measure_peer(replace(by_name["triton-augment"], needs=None), TINY, inputs)
    assert no_gpu.problem == "needs a GPU"


def test_kornia_augments_images_and_masks_alike():
    pytest.importorskip("kornia")
    images, masks = torch.rand(3, 3, 24, 24), torch.randint(0, CLASSES, (3, 1, 24, 24), dtype=torch.uint8)
    apply = peers.kornia_apply("cpu")
    out, labels = apply(images, masks)
    assert out.shape == images.shape
    assert labels.shape == masks.shape
    assert set(labels.unique().tolist()) <= set(range(CLASSES))
    assert apply(images, None).min() < 0, "normalised"


@pytest.mark.parametrize("turn", [loader._with_pillow])
def test_the_loader_s_augmentation_does_the_task(turn):
    samples = loader.Samples(size=8, masks=True, count=2, opencv=False)
    samples[0]
    image, mask = samples._held[0]
    out, label = turn(image, mask, True, 0.0, 1.1, 0.9)
    bright = ((image[:, ::-1] / 255 * 1.1 - 0.5) * 0.9 + 0.5).clip(0, 1)
    assert abs(out - (bright - peers.MEAN) / peers.STD).max() < 1e-5
    assert (label == mask[:, ::-1]).all()


def test_a_loader_is_timed_and_too_many_workers_are_not():
    found = loader.measure_loader(4, Task(batch=2, size=16, masks=True, device="cpu"), cores=1, seconds=0.05)
    assert found.problem is None
    assert found.timing is not None
    assert found.timing.wall_ms > 0
    assert loader.measure_loader(8, TINY, cores=4, seconds=0.05).problem == "skipped: 4 cores are usable"


def test_compiling_goes_on_elsewhere_and_is_stopped_in_time(monkeypatch):
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")  # the way there and back is tested, not the compiler
    wanted = compiled.WANTED[1]
    child = compiled.Compiling(wanted, TINY)
    child.wait(limit_seconds=120)
    found = child.measure()
    assert found.problem is None
    assert found.timing is not None
    assert found.timing.wall_ms > 0

    late = compiled.Compiling(wanted, TINY)
    process = late._process
    late.wait(limit_seconds=0.0)
    assert late.measure().problem == "skipped: compiling took > 0 s"
    assert process is not None
    assert process.returncode is not None

    broken = compiled.Compiling(replace(wanted, key="nothing"), TINY)
    broken.wait(limit_seconds=120)
    assert broken.measure().problem == "KeyError: 'nothing'"
    absent = compiled.Compiling(replace(wanted, needs="not_there"), TINY)
    absent.wait(limit_seconds=1)
    assert absent.measure().problem == "not installed: pip install not_there"


class Clock:
    """A GPU that takes 2 ms a call, whose host takes none."""

    def __init__(self, monkeypatch) -> None:
        self.now_ms = 0.0
        clock = self

        class Event:
            def __init__(self, enable_timing) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = clock.now_ms

            def synchronize(self) -> None:
                pass

            def elapsed_time(self, other) -> float:
                return other.at - self.at

        class Graph:
            def replay(self) -> None:
                clock.now_ms += 16 * 1.5

        class Capture:
            def __init__(self, graph) -> None:
                pass

            __enter__ = __exit__ = lambda *_: None

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "graph", Capture)
        monkeypatch.setattr(torch.cuda, "_sleep", self.sleep)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def sleep(self, cycles: int) -> None:
        self.now_ms += cycles / 2e6

    def call(self, k: int) -> None:
        self.now_ms += 2.0


def test_gpu_time_is_between_events_without_the_pause_before(monkeypatch):
    clock = Clock(monkeypatch)
    found = timing.time_on_gpu(clock.call)
    assert found.gpu_ms == pytest.approx(2.0)
    assert found.wall_ms < 0.5
    assert found.host_us is not None
    assert found.host_us < 500
    assert timing.graph_ms(clock.call) == pytest.approx(1.5)


def test_a_run_on_a_gpu_in_order_with_failures_as_lines(monkeypatch):
    """Everything but the clocks, on the CPU in the GPU's place."""
    said: list[str] = []
    kept = ("task", "task_no_masks", "nchw")
    broken = replace(cases.plans(TINY, quick=True)[0], key="broken", title="broken", module=_Raises)
    mine = [*(plan for plan in cases.plans(TINY, quick=False) if plan.key in kept), broken]
    monkeypatch.setattr(run, "plans", lambda task, quick: mine)
    monkeypatch.setattr(run, "time_on_gpu", _called_once)
    monkeypatch.setattr(run, "graph_ms", _no_graph)
    monkeypatch.setattr(run, "copy_tb_per_s", lambda: 4.0)
    monkeypatch.setattr(run, "_peers", lambda task, quick, say: (KORNIA, TRITON))
    found = run._on_gpu(TINY, quick=True, say=said.append)
    assert [case.key for case in found.cases] == ["task", "task_no_masks", "nchw", "broken"]
    first = found.cases[0]
    assert first.timing == FAST
    assert first.check is not None
    assert first.check.right
    assert first.problem == "RuntimeError: can't capture"
    assert first.floor_ms == pytest.approx(3 * 32 * 32 * 11 / 4e9)
    assert set(first.ratios) == {"times_kornia", "times_triton_augment"}
    assert found.cases[3].timing is None
    assert found.cases[3].problem == "ValueError: out of order"
    assert found.right
    assert "ours: broken: ValueError: out of order" in text_of(found)
    assert said[0] == "CPU, 4 workers"


class _Raises(GPUAugmentation):
    def forward(self, *_, **__):
        raise ValueError("out of order")


def _called_once(call):
    assert len(call(0)) > 0
    return FAST


def _no_graph(call):
    raise RuntimeError("can't capture")


# --- the command --------------------------------------------------------------------------------------------------


def command(*options: str) -> subprocess.CompletedProcess[str]:
    whole = [sys.executable, "-m", "fulltilt", "bench", "augment", *options]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(whole, capture_output=True, text=True, timeout=200, check=False, env=hidden)


def test_without_a_gpu_the_command_measures_what_runs_on_the_cpu_and_says_so(tmp_path):
    file = tmp_path / "augment.json"
    began = time.monotonic()
    done = command("--quick", "--json", str(file))
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 120
    assert "GPU figures need an NVIDIA GPU" in done.stdout
    assert "Warning" not in done.stderr
    flat = json.loads(file.read_text())
    assert flat["cases"][0]["wall_ms"] > 0
    assert "target" not in flat["cases"][0]
    by_name = {peer["name"]: peer for peer in flat["peers"]}
    assert by_name["CPU, 4 workers"]["wall_ms"] > 0
    assert by_name["torch, one grid_sample"]["wall_ms"] > 0
    assert by_name["triton-augment"]["problem"]
    assert flat["machine"]["torch"] == torch.__version__


def test_sizes_that_can_t_be_are_refused():
    done = command("--batch", "0")
    assert done.returncode == 2
    assert done.stderr.strip() == "fulltilt: --batch: expected 1 to 4096, found 0"
