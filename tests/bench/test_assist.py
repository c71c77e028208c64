"""The benchmark of CPU work beside the step: its logic from canned figures, and for real what runs without a GPU."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from fulltilt.bench.assist.balance import measure_balance
from fulltilt.bench.assist.figures import FLAT_BYTES, PARTS, AssistBench, Many, Tasks
from fulltilt.bench.assist.phases import BalanceRun, Phase
from fulltilt.bench.assist.table import lines
from fulltilt.bench.results import parts_of
from fulltilt.bench.train.contest import with_shares
from fulltilt.bench.train.figures import Case
from fulltilt.cli.bench import bench
from fulltilt.errors import InputError


def canned(beside=99.0, ours=90_000.0, grown=1 << 20):
    def case(key, rate, **more):
        return Case(workload="unet", key=key, title=key, samples_per_second=rate, step_seconds=0.1, **more)

    return AssistBench(
        machine={"gpus": ["NVIDIA H200"], "driver": None},
        date="2026-11-15T12:00:00+00:00",
        title="U-Net",
        cases=tuple(
            with_shares(
                [
                    case("none", 100.0, reference=True),
                    case("beside", beside, at_least=0.98, against="none", notes={"on_device": ["auroc"], "why": "so"}),
                    case("loop", 80.0, against="none"),
                ]
            )
        ),
        tasks=Tasks(tasks=1000, ours_per_second=ours, theirs_per_second=120_000.0, workers=2),
        many=Many(tasks=1_000_000, seconds=9.0, grown_bytes=grown),
        seconds=50.0,
    )


@pytest.mark.parametrize(
    ("figures", "met"),
    [
        ({}, [True, True, True]),
        ({"beside": 97.9}, [False, True, True]),
        ({"ours": 79_000.0}, [True, False, True]),
        ({"grown": FLAT_BYTES + 1}, [True, True, False]),
    ],
)
def test_targets(figures, met):
    assert [target.met for _, target in canned(**figures).targets] == met


def test_what_is_said():
    said = lines(canned(beside=97.9))
    assert "missed: beside: ≥ 98 %, found 97.9 %" in said
    assert "beside: auroc on the device: so" in said
    assert "1,000,000 tasks in 9.0 s; memory grew by 1.0 MiB" in said
    flat = json.loads(json.dumps(canned().to_json()))
    assert flat["cases"][2]["share"] == 0.8
    assert flat["machine"] == {"gpus": ["NVIDIA H200"]}
    assert flat["tasks"]["targets"][0] == {
        "figure": "tasks_per_second", "words": "≥ 80,000/s", "at_least": 80_000, "found": 90_000, "met": True,
    }  # fmt: skip
    balance = replace(canned(), balance=phases()).to_json()["balance"]
    assert [target["figure"] for target in balance["targets"]] == ["taken", "early", "back"]


def phases(taken=3000.0, early=2900.0, back=4000.0):
    def phase(cores, rate, early=0.0):
        return Phase(
            cores=cores, samples_per_second=rate, gpu_share=0.5, workers=7, settled_seconds=12.0,
            early_samples_per_second=early,
        )  # fmt: skip

    return BalanceRun(
        before=phase(8, 4000.0), taken=phase(4, taken, early), back=phase(8, back), fixed={0.0: 2000.0, 0.5: 3100.0}
    )


@pytest.mark.parametrize(
    ("figures", "met"),
    [
        ({}, [True, True, True]),
        ({"taken": 2900.0}, [False, True, True]),
        ({"early": 2700.0}, [True, False, True]),
        ({"back": 3700.0}, [True, True, False]),
    ],
)
def test_targets_of_the_balance(figures, met):
    assert [target.met for _, target in phases(**figures).targets] == met
    assert "half taken: " in phases(**figures).lines()[1]


def test_parts_are_run_in_order_and_unknown_ones_refused():
    assert parts_of("balance, tasks", tuple(PARTS)) == ("tasks", "balance")
    with pytest.raises(InputError, match="--only: found cores; allowed: tasks, metrics, balance"):
        parts_of("cores", tuple(PARTS))


def test_cores_are_taken_from_a_feed_here_and_given_back():
    before = os.sched_getaffinity(0)
    found = measure_balance(cores=2, say=lambda _: None, gpu=False, pace=0.01)
    assert (found.before.cores, found.taken.cores, found.back.cores) == (2, 1, 2)
    assert found.taken.samples_per_second > 0
    assert os.sched_getaffinity(0) == before
    assert json.dumps(found.to_json())


def test_the_command_runs_here_and_writes_its_figures(tmp_path):
    file = tmp_path / "assist.json"
    result = CliRunner().invoke(bench, ["assist", "--quick", "--json", str(file)])
    assert result.exit_code == 0, result.output
    found = json.loads(file.read_text())
    assert [case["key"] for case in found["cases"]] == ["none", "beside", "loop"]
    assert all(case["samples_per_second"] > 0 for case in found["cases"])
    assert found["tasks"]["tasks_per_second"] > 0
    assert found["many"]["tasks"] == 20_000
