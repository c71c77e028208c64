"""The step's benchmark: its logic from canned figures, and for real what a machine without a GPU can run."""

from __future__ import annotations

import io
import json
from itertools import pairwise

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from fulltilt.bench.results import parts_of
from fulltilt.bench.train import run
from fulltilt.bench.train.contest import Contestant, contest, with_shares
from fulltilt.bench.train.figures import Case, TrainBench
from fulltilt.bench.train.table import lines, show
from fulltilt.bench.train.workloads import Running, ours, workloads
from fulltilt.cli.bench import bench
from fulltilt.errors import InputError


def case(key, rate, **more):
    return Case(workload="unet", key=key, title=key, samples_per_second=rate, step_seconds=0.01, **more)


def canned(rate=990.0):
    plan = {"precision": {"value": "bf16", "reason": "bf16 8 ms, tf32 11 ms a step"}}
    cases = with_shares(
        [
            case("hand_0", 900.0, reference=True),
            case("hand_1", 1000.0, reference=True, spread=0.004, setup_seconds=40.0),
            case("step", rate, at_least=0.99, notes={"plan": plan}),
            Case(workload="windows", key="step", title="ours", at_least=0.99, problem="OutOfMemoryError: 3 GiB"),
        ]
    )
    return TrainBench(
        machine={"gpus": ["NVIDIA H200"], "torchvision": None}, date="2026-11-15T12:00:00+00:00",
        workloads={"unet": "U-Net, 512², batch 32", "windows": "small CNN"}, cases=tuple(cases), seconds=100.0,
    )  # fmt: skip


@pytest.mark.parametrize(("rate", "met"), [(990.0, True), (989.0, False)])
def test_a_share_is_of_the_fastest_by_hand(rate, met):
    found = {case.key: case for case in canned(rate).cases if case.workload == "unet"}
    assert found["hand_0"].share == 0.9
    assert found["step"].share == rate / 1000
    assert [target.met for target in found["step"].targets] == [met]


def test_a_share_may_be_of_another_case():
    found = with_shares(
        [case("loop", 500.0), case("hand", 1000.0, reference=True), case("saving", 490.0, against="loop")]
    )
    assert [one.share for one in found] == [0.5, 1.0, 0.98]


def test_without_a_reference_there_is_no_share():
    (alone,) = with_shares([case("step", 5.0, at_least=0.99)])
    assert alone.share is None
    assert [target.met for target in alone.targets] == [None]


def test_what_was_missed_or_not_measured_is_said():
    assert lines(canned(950.0))[-3:] == [
        "missed: unet: step: ≥ 99 %, found 95 %",
        "not measured: windows: ours: ≥ 99 %",
        "0 of 2 targets met",
    ]
    (several,) = case("memory", 5.0, at_least=10.0, share=20.2).targets
    assert (str(several), several.met) == ("≥ 10 times", True)


def test_the_table_and_the_json():
    out = io.StringIO()
    show(canned(), Console(file=out, width=110))
    said = out.getvalue()
    rows = [line.split() for line in said.splitlines() if line.strip().startswith(("step", "hand"))]
    assert rows[2] == ["step", "990", "10", "ms", "–", "–", "99.0", "%"]
    assert max(map(len, said.splitlines()[:12])) <= 110
    assert "unet: precision: bf16 (bf16 8 ms, tf32 11 ms a step)" in said
    assert "1 of 2 targets met" in lines(canned())
    flat = json.loads(json.dumps(canned().to_json()))
    assert flat["machine"] == {"gpus": ["NVIDIA H200"]}
    assert flat["cases"][2]["plan"]["precision"]["value"] == "bf16"
    assert "share" not in flat["cases"][3]


def test_workloads_are_run_in_order_and_unknown_ones_refused():
    assert parts_of("windows, resnet50", run.WORKLOADS) == ("resnet50", "windows")
    with pytest.raises(InputError, match="--only: found vit; allowed: resnet50, unet, windows"):
        parts_of("vit,unet", run.WORKLOADS)


def test_contestants_take_turns_each_with_its_own_switches():
    work = workloads(gpu=False)["windows"]()
    order = []

    def factory(name, precision):
        def make(_):
            torch.set_float32_matmul_precision(precision)
            return Running(step=lambda *_: order.append((name, torch.get_float32_matmul_precision())))

        return make

    before = torch.get_float32_matmul_precision()
    try:
        cases = contest(
            work,
            [
                Contestant(key="a", title="a", make=factory("a", "high"), reference=True),
                Contestant(key="b", title="b", make=factory("b", "highest"), at_least=0.5),
                Contestant(key="c", title="c", make=lambda _: 1 / 0),
            ],
            rounds=2,
            seconds=1e-6,
            say=lambda _: None,
        )
        assert torch.get_float32_matmul_precision() == before
    finally:
        torch.set_float32_matmul_precision(before)
    turns = [order[0], *[now for last, now in pairwise(order) if now != last]]
    assert turns == [("a", "high"), ("b", "highest")] * 3, "once to warm up, twice to measure"
    assert [case.problem for case in cases] == [None, None, "ZeroDivisionError: division by zero"]
    assert cases[1].share is not None


def test_ours_says_what_it_chose():
    running = ours(workloads(gpu=False)["unet"]())
    assert set(running.notes["plan"]) == {
        "precision", "channels_last", "fused", "cudnn_benchmark", "compile", "cuda_graph",
    }  # fmt: skip


def test_the_command_runs_here_and_writes_its_figures(tmp_path):
    file = tmp_path / "train.json"
    result = CliRunner().invoke(bench, ["train", "--quick", "--only", "windows", "--json", str(file)])
    assert result.exit_code == 0, result.output
    found = json.loads(file.read_text())
    assert [case["key"] for case in found["cases"]] == ["hand_0", "step", "loop", "plain", "memory"]
    assert all(case["samples_per_second"] > 0 for case in found["cases"])
    assert found.get("problem") == (None if torch.cuda.is_available() else run.NO_GPU)
