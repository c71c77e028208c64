"""The guides' benchmark: its clockwork and arithmetic from canned figures, and each contestant for real, very small."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import psutil
import pytest
import torch
from rich.console import Console
from torch.utils.data import DataLoader
from typer.testing import CliRunner

from fulltilt.bench.guides import after, before, contestant, run
from fulltilt.bench.guides.chart import chart
from fulltilt.bench.guides.claims import CLAIMS, WORKLOADS
from fulltilt.bench.guides.figures import Case, GuidesBench, about, compared, falls_short
from fulltilt.bench.guides.meter import Meter, Metered, TimeUpError, samples_in
from fulltilt.bench.guides.order import CONTESTANTS, WHERE, Answer, Order
from fulltilt.bench.guides.setting import (
    Rhythm,
    before_config,
    comes_in_bursts,
    in_float,
    last,
    last_weights,
    note_meter,
    patience,
    steps_for,
    tuned_config,
)
from fulltilt.bench.guides.table import lines, show
from fulltilt.bench.guides.watch import Utilisation, utilisation
from fulltilt.bench.results import as_measured
from fulltilt.cli import app
from fulltilt.errors import InputError
from fulltilt.launch.ending import ended_tidily
from fulltilt.machine.sample import GpuSample, Sample
from fulltilt.recipes.catalog import RECIPES

# --- the meter -------------------------------------------------------------------------------------------------------


class Clock:
    """Moves only when it is told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def loader(clock, *, batches, wait, size=4):
    for _ in range(batches):
        clock.now += wait
        yield torch.zeros(size, 2), torch.zeros(size)


class Loader:
    def __init__(self, clock, **options):
        self.clock, self.options = clock, options

    def __len__(self):
        return self.options["batches"]

    def __iter__(self):
        return loader(self.clock, **self.options)


def test_a_meter_counts_steps_waits_and_what_lies_between_epochs():
    clock, settled, begun = Clock(), [], []
    meter = Meter(
        warm=2,
        seconds=1000,
        settle=lambda: settled.append(clock.now),
        begin=lambda: begun.append(clock.now),
        clock=clock,
    )
    source = Metered(Loader(clock, batches=5, wait=1.0), meter)
    assert len(source) == 5
    for _ in range(2):
        for _ in source:
            clock.now += 3.0  # the step
        clock.now += 10.0  # validation
    meter.finish()
    # Eight of ten batches are measured: 1 s of waiting and 3 s of a step each, and ten seconds after each epoch.
    assert (meter.steps, meter.samples) == (8, 32)
    assert meter.training_seconds == pytest.approx(32)
    assert meter.samples_per_second == pytest.approx(1.0)
    assert meter.between == pytest.approx([10, 10])
    assert meter.wait_share == pytest.approx(0.25)
    assert meter.stretches == [(108.0, 120.0), (130.0, 150.0)]
    assert len(settled) == 3  # when it began, and at each epoch's end: never between two steps
    assert begun == [108.0]
    clock.now += 5
    meter.finish()
    assert len(meter.between) == 2


@pytest.mark.parametrize(("steps", "whole"), [(5, 20 / 30), (2, 8 / 12)])
def test_the_whole_has_a_validation_as_often_as_a_long_training_has(steps, whole):
    """Epochs of five steps: one that is broken off after two, and then validated, has two fifths of a validation."""
    clock = Clock()
    meter = Meter(warm=0, seconds=1000, clock=clock)
    for number, _ in enumerate(Metered(Loader(clock, batches=5, wait=1.0), meter), start=1):
        clock.now += 3.0
        if number == steps:
            break
    clock.now += 10.0
    meter.finish()
    assert meter.samples_per_second == pytest.approx(1.0)
    assert meter.overall_per_second(between_seconds=meter.between[0], every_steps=5) == pytest.approx(whole)


def test_where_batches_come_in_bursts_whole_epochs_are_measured():
    """Four workers, an epoch of four batches: eight seconds of nothing, then all four at once."""
    clock = Clock()

    class Bursts(Loader):
        def __iter__(self):
            self.clock.now += 8.0
            return loader(self.clock, batches=4, wait=0.0)

    meter = Meter(warm=1, seconds=15.0, whole=True, clock=clock)

    def train():
        while True:
            for _ in Metered(Bursts(clock, batches=4), meter):
                clock.now += 0.5
            clock.now += 1.0

    with pytest.raises(TimeUpError):
        train()
    assert meter.steps == 8  # the second epoch and the third; when the fourth begins, time is up
    assert meter.training_seconds == pytest.approx(20)
    assert meter.between == pytest.approx([1.0, 1.0])
    assert meter.samples_per_second == pytest.approx(1.6)
    data = torch.zeros(16, 1)
    assert comes_in_bursts(DataLoader(data, batch_size=4, num_workers=1))
    assert not comes_in_bursts(DataLoader(data, batch_size=2, num_workers=1))
    assert not comes_in_bursts(DataLoader(data, batch_size=4))


def test_a_meter_ends_a_loop_that_is_not_ours():
    clock = Clock()
    meter = Meter(warm=0, seconds=10.0, clock=clock)
    steps = iter(Metered(Loader(clock, batches=100, wait=1.0), meter))
    for _ in range(5):
        next(steps)
        clock.now += 1.0
    with pytest.raises(TimeUpError):
        next(steps)
    assert meter.steps == 5
    assert meter.training_seconds == pytest.approx(10)


def test_a_loop_that_breaks_off_has_its_last_epoch_counted():
    clock = Clock()
    meter = Meter(warm=1, seconds=1000, clock=clock)
    for number, _ in enumerate(Metered(Loader(clock, batches=100, wait=1.0), meter)):
        clock.now += 1.0
        if number == 4:
            break
    meter.finish()
    assert meter.steps == 4
    assert meter.training_seconds == pytest.approx(8)


def test_a_meter_that_never_began_has_no_figures():
    meter = Meter(warm=10, seconds=1.0)
    list(Metered([torch.zeros(2, 3)], meter))
    meter.finish()
    whole = meter.overall_per_second(between_seconds=1.0, every_steps=1)
    assert (meter.samples_per_second, whole, meter.wait_share) == (None, None, None)


def test_a_part_that_came_to_nothing_leaves_what_was_found():
    clock, answer = Clock(), Answer()
    meter = Meter(warm=0, seconds=100.0, clock=clock)
    for _ in Metered(Loader(clock, batches=4, wait=1.0), meter):
        clock.now += 1.0
    note_meter(answer, meter, Rhythm(every_steps=4, seconds=2.0))
    assert answer.samples_per_second == pytest.approx(2.0)
    assert answer.overall_per_second == pytest.approx(1.6)
    note_meter(answer, Meter(warm=5, seconds=1.0), Rhythm(every_steps=4))
    assert answer.samples_per_second == pytest.approx(2.0)
    assert answer.seconds == pytest.approx(8.0)
    assert answer.stretches == [(100.0, 108.0)]
    note_meter(answer, meter, Rhythm(every_steps=4))
    assert answer.overall_per_second is None, "a validation that was not seen did not take no time"


def test_samples_of_any_batch():
    assert samples_in(torch.zeros(3, 2)) == 3
    assert samples_in([torch.zeros(4), torch.zeros(5)]) == 4
    assert samples_in({"image": (torch.zeros(6),)}) == 6


# --- the GPU from outside --------------------------------------------------------------------------------------------


def reading(t, *utils):
    return Sample(
        t=t,
        gpus=tuple(
            GpuSample(index=index, util=util, uuid=f"GPU-{index}" if t == 0 else None)
            for index, util in enumerate(utils)
        ),
    )


def test_utilisation_is_of_the_window_and_of_the_gpu():
    samples = [reading(t / 2, 0.0 if t < 10 else 90.0 + 10 * (t % 2), 7.0) for t in range(40)]
    found = utilisation(samples, [(4.0, 15.0)], "0")
    assert found is not None
    assert found.mean == pytest.approx(95, abs=0.5)
    assert found.std == pytest.approx(5, abs=0.1)
    assert found.readings == len(found.series) == 21  # from 5.0, a second after the beginning, to 15.0
    other = utilisation(samples, [(4.0, 15.0)], "GPU-1")
    assert other == Utilisation(mean=7.0, std=0.0, readings=21, series=(7.0,) * 21)
    assert utilisation(samples, [(4.0, 15.0)], "9") is None
    assert utilisation(samples, [(4.0, 6.0)], "0") is None  # three readings are not enough to say
    assert utilisation([], [(0.0, 10.0)], None) is None
    assert utilisation(samples, [], "0") is None


def test_utilisation_leaves_a_validation_out_and_not_what_is_too_short_to_tell():
    samples = [reading(t / 2, 10.0 if 10 < t / 2 <= 11.5 else 100.0) for t in range(80)]
    assert utilisation(samples, [(0.0, 10.0), (10.6, 30.0)], "0").mean == pytest.approx(100, abs=0.5)
    assert utilisation(samples, [(0.0, 30.0)], "0").mean == pytest.approx(100 - 90 * 3 / 59, abs=0.5)
    # Epochs of half a second have no reading to themselves: together they have.
    epochs = [(20 + at / 2, 20.48 + at / 2) for at in range(12)]
    assert utilisation(samples, epochs, "0") == Utilisation(mean=100.0, std=0.0, readings=10, series=(100.0,) * 10)


# --- figures and targets ---------------------------------------------------------------------------------------------


def case(key, rate, *, overall=None, **more):
    fields = {name: more.pop(name) for name in ("metric", "limit_per_second", "wait_share") if name in more}
    answer = Answer(samples_per_second=rate, overall_per_second=overall or rate, **fields)
    title = next(one.title for one in CONTESTANTS if one.key == key)
    return Case(workload="segmentation", key=key, title=title, answer=answer, **more)


def canned(*, ours=700.0, lightning=500.0, util=(95.0, 2.0), metric=0.84):
    return [
        case("before", 200.0, overall=180.0, metric=0.85),
        case("after", ours, overall=690.0, metric=metric, limit_per_second=740.0, wait_share=0.01,
             gpu=Utilisation(mean=util[0], std=util[1], readings=20),
             gpu_whole=Utilisation(mean=util[0] - 1, std=util[1], readings=2, series=(90.0, 98.0))),
        case("lightning_tuned", lightning),
        case("accelerate_tuned", 480.0),
    ]  # fmt: skip


def bench(cases, **more):
    told = {"segmentation": about("cells", "val_iou", CLAIMS["segmentation"])}
    return GuidesBench(
        machine={"gpus": ["NVIDIA H200"], "cores": 16}, date="2026-11-15T12:00:00+00:00", small=None,
        workloads=told, cases=tuple(cases), seconds=100.0, **more,
    )  # fmt: skip


def test_speed_up_is_of_the_whole_and_share_of_the_training():
    found = {one.key: one for one in compared(canned(), hold=True)}
    assert found["after"].speed_up == pytest.approx(690 / 180)
    assert found["after"].share == pytest.approx(700 / 740)
    assert found["before"].share == pytest.approx(200 / 740)
    assert found["limit"].answer.samples_per_second == 740
    assert [one.key for one in compared(canned(), hold=True)][:3] == ["before", "after", "limit"]
    assert all(target.met for target in found["after"].targets)
    assert len(found["after"].targets) == 7


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({"util": (91.0, 2.0)}, "gpu_util"),
        ({"util": (95.0, 5.5)}, "gpu_util_std"),
        ({"ours": 660.0}, "share"),
        ({"lightning": 701.0}, "times_peer"),
        ({"metric": 0.82}, "metric"),
    ],
)
def test_each_target_can_be_missed(change, missed):
    found = {one.key: one for one in compared(canned(**change), hold=True)}
    assert [target.figure for target in found["after"].targets if target.met is False] == [missed]


def test_what_was_not_measured_is_neither_met_nor_missed():
    cases = [replace(one, gpu=None) if one.key == "after" else one for one in canned() if one.key != "before"]
    after = next(one for one in compared(cases, hold=True) if one.key == "after")
    states = {target.figure: target.met for target in after.targets}
    assert states["gpu_util"] is None
    assert states["speed_up"] is None
    assert states["metric"] is None
    assert len(after.targets) == len(compared(canned(), hold=True)[1].targets), "nothing is left out of the count"
    said = lines(bench(compared(cases, hold=True)))
    assert "not measured: segmentation: metric, as before within noise" in said
    assert said[-1].startswith("3 of 7 targets met")
    assert all(not one.targets for one in compared(canned(), hold=False))


def test_nothing_of_another_run_is_compared():
    """The same plain loop had rates a third apart in two runs."""
    cases = [replace(one, run="second" if one.key in ("after", "accelerate_tuned") else "first") for one in canned()]
    found = {one.key: one for one in compared(cases, hold=True)}
    after = found["after"]
    assert after.speed_up is None
    assert after.share == pytest.approx(700 / 740)
    assert [found[key].share is None for key in ("before", "lightning_tuned", "accelerate_tuned")] == [
        True,
        True,
        False,
    ]
    assert found["lightning_tuned"].speed_up == pytest.approx(500 / 180), "against what ran with it"
    assert found["limit"].run == "second"
    states = {str(target): target.met for target in after.targets}
    assert [words for words, met in states.items() if met is None] == [
        "against before ≥ 3×", "against Lightning, hand-tuned ≥ 1×", "metric, as before within noise",
    ]  # fmt: skip
    shown = io.StringIO()
    show(bench(list(found.values())), Console(file=shown, width=150))
    assert "before: a plain loop (another run)" in shown.getvalue()
    assert "Accelerate, hand-tuned (another run)" not in shown.getvalue()


def test_every_guide_has_a_recipe_and_a_claim():
    assert set(WORKLOADS) == set(RECIPES)
    assert CLAIMS["classification"].speed_up_at_least == pytest.approx(1.378, abs=0.001)


def test_the_json_has_no_nulls_and_the_table_says_what_was_missed():
    cases = [*canned(util=(91.0, 2.0)), replace(case("lightning", 1.0), answer=Answer(), problem="not installed")]
    found = bench(compared(cases, hold=True))
    flat = found.to_json()
    assert "null" not in json.dumps(flat)
    shown = io.StringIO()
    show(found, Console(file=shown, width=130))
    text = shown.getvalue()
    assert "missed: segmentation: GPU ≥ 92 %, found 91 %" in text
    assert "6 of 7 targets met" in text
    assert "claims 1.2–1.8×" in text
    assert "Lightning, its defaults: not installed" in text
    root = ElementTree.fromstring(chart(flat))
    bars = [one.get("class") for one in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert bars == ["before", "after", "other", "other"]
    words = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert f"segmentation: {RECIPES['segmentation'].title}" in words, "as everywhere, whatever the result calls it"
    assert "not measured: not installed" in words, "a bar that is missing is said to be"
    assert {"of the limit", "whole training:", "against before"} <= set(words), "two measures, each with its head"


def test_a_long_problem_stays_within_its_picture():
    cases = compared([*canned(), replace(case("lightning", 1.0), answer=Answer(), problem="no " * 40)], hold=True)
    root = ElementTree.fromstring(chart(bench(cases).to_json()))
    said = next(one.text for one in root.iter("{http://www.w3.org/2000/svg}text") if "not measured" in one.text)
    assert said.endswith("no…")
    assert len(said) <= 54


def test_the_table_fits_80_columns_and_has_no_column_of_nothing():
    cases = [replace(one, gpu=None) for one in canned(ours=23_456.7)]
    shown = io.StringIO()
    show(bench(compared(cases, hold=False)), Console(file=shown, width=80, force_terminal=True, color_system=None))
    table = shown.getvalue().split("segmentation: guide")[0]
    after = next(line for line in table.splitlines() if "after: fulltilt train" in line)
    assert "23,457" in after
    assert len(after) <= 80
    assert "memory" not in table
    assert "of limit" in table


def test_without_a_limit_there_is_no_chart():
    cases = compared([case("before", 5.0)], hold=True)
    assert chart(bench(cases).to_json()) is None
    assert lines(bench(cases, problem="no GPU"))[-1] == "no GPU"


# --- processes -------------------------------------------------------------------------------------------------------


def order(tmp_path, contestant="before", **more):
    return Order(
        recipe="classification", contestant=contestant, folder=str(tmp_path / "run"),
        answer=str(tmp_path / "answer.json"), seconds=0.5, small=True,
        overrides=("data.args={count: 64, size: 16}", "data.size=16", "data.batch_size=8", "data.num_workers=0",
                   "model.args={classes: 8, width: 4, blocks: [1]}", "training.epochs=2"),
        **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "rate", "steps"),
    [(8.0, 4.2, 96), (8.0, 400.0, 2400), (8.0, 1.0, 24), (3.0, 0.1, 12), (8.0, 12.0, 96)],
)
def test_before_trains_long_enough_for_a_metric_where_that_can_be_afforded(seconds, rate, steps):
    assert before.steps_in(seconds, rate) == steps


def test_a_peer_that_is_as_slow_as_before_comes_to_its_metric(tmp_path):
    assert patience(order(tmp_path)) == 1.5
    assert patience(order(tmp_path, before_took_seconds=20.0)) == 30.0


def test_who_tunes_by_hand_decodes_with_one_thread_a_worker(tmp_path):
    given = replace(order(tmp_path, "lightning_tuned", batch_size=8), recipe="video", small=False, overrides=())
    assert tuned_config(given).data.args["threads"] == 1
    assert "threads" not in before_config(given).data.args


def test_an_order_and_its_answer_travel(tmp_path):
    given = order(tmp_path, samples=56)
    assert Order.from_json(given.to_json()) == given
    answer = Answer(samples_per_second=5.0, window=(1.0, 2.0), plan={"compile": True})
    answer.write(given.answer)
    assert Answer.read(Path(given.answer)) == answer
    assert Answer.read(tmp_path / "none.json") == Answer()


def test_channels_last_in_two_dimensions_and_in_three():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Conv3d(3, 4, 3))
    last_weights(model)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert model[1].weight.is_contiguous(memory_format=torch.channels_last_3d)
    assert last(torch.zeros(2, 3, 5, 5)).is_contiguous(memory_format=torch.channels_last)
    assert last("name") == "name"
    clips = torch.zeros(2, 5, 4, 4, 3, dtype=torch.uint8)
    assert last(clips).is_contiguous(), "frames × height × width × channels, as they are"


def test_metrics_see_floats():
    half = torch.zeros(2, dtype=torch.bfloat16)
    (first, second), third = in_float(((half, torch.zeros(2, dtype=torch.long)), {"a": half}))
    assert (first.dtype, second.dtype, third["a"].dtype) == (torch.float32, torch.int64, torch.float32)


def test_as_many_samples_as_before(tmp_path):
    assert steps_for(order(tmp_path, samples=400), 8, most=40) == 40
    assert steps_for(order(tmp_path, samples=400), 8, most=80) == 50
    assert steps_for(order(tmp_path, samples=400), 24, most=80) == 17
    assert steps_for(order(tmp_path, samples=400), 4096, most=80) == 1
    assert steps_for(order(tmp_path), 8, most=80) == 80


class Watched:
    """A GPU that is always at 93 %."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def utilisation(self, window, uuid):
        return Utilisation(mean=93.0, std=1.0, readings=10)


@pytest.fixture
def contended(monkeypatch):
    """Contestants that answer at once; what each was asked."""
    asked = []

    def contend(recipe, contestant, **given):
        asked.append((recipe, contestant, given["before"].steps, given["batch_size"]))
        if contestant == "lightning":
            return Answer(problem="stopped after 3 s")
        rate = {"before": 100.0, "after": 900.0}.get(contestant, 500.0)
        return Answer(
            samples_per_second=rate, overall_per_second=rate, steps=12, batch_size=64, window=(0.0, 1.0),
            limit_per_second=950.0 if contestant == "after" else None, metric=0.9,
        )  # fmt: skip

    monkeypatch.setattr(run, "contend", contend)
    monkeypatch.setattr(run, "make_data", lambda name, small: None)
    monkeypatch.setattr(run, "Watch", Watched)
    monkeypatch.setattr(run, "find_spec", lambda name: object() if name == "lightning" else None)
    return asked


def test_contestants_train_as_much_as_before_and_each_is_kept_at_once(contended):
    kept = []
    found = run.measure(
        only=run.parts_of("classification"), small=False, scale=run.FULL, say=lambda _: None, keep=kept.append,
        has_gpu=True,
    )  # fmt: skip
    assert contended == [
        ("classification", "before", None, None),
        ("classification", "after", 12, None),
        ("classification", "lightning_tuned", 12, 64),
        ("classification", "lightning", 12, 64),
    ]
    assert [len(one.cases) for one in kept] == [1, 3, 4, 5, 6, 7, 7]  # the limit comes with after
    cases = {one.key: one for one in found.cases}
    assert cases["accelerate"].problem == "accelerate is not installed"
    assert cases["lightning"].problem == "stopped after 3 s"
    assert cases["after"].speed_up == 9
    # Without Accelerate, what it was to be held against is not measured.
    assert [target.met for target in cases["after"].targets] == [True, True, True, True, True, None, True]


def test_without_time_a_contestant_is_not_begun(contended, tmp_path, monkeypatch):
    scale = run.Scale(each_seconds=1.0, before_seconds=1.0, workload_seconds=1e-9)
    said = []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "data").mkdir(parents=True)
    only = run.parts_of("classification")
    found = run.measure(only=only, small=True, scale=scale, say=said.append, has_gpu=False)
    assert "generated data stay in runs/data" in said[-1]
    assert found.problem == run.NO_GPU
    assert contended == []
    late, absent = "no time was left of 1e-09 s", "accelerate is not installed"
    assert [one.problem for one in found.cases] == [late, late, late, absent, late, absent]


@pytest.mark.parametrize("error", [InputError("PyAV is missing"), RuntimeError("PyAV is missing")])
def test_a_recipe_that_cannot_begin_is_a_line_and_the_next_goes_on(monkeypatch, contended, error):
    def fail(name, small):
        if name == "video":
            raise error

    monkeypatch.setattr(run, "make_data", fail)
    only = run.parts_of("video,forecast")
    found = run.measure(only=only, small=True, scale=run.FEW, say=lambda _: None, has_gpu=False)
    assert [one.problem for one in found.cases if one.workload == "video"] == [
        f"{type(error).__name__}: PyAV is missing"
    ]
    assert {one[0] for one in contended} == {"forecast"}


def test_workloads_of_a_command_each_stand_in_one_file_as_if_of_one(contended, tmp_path, monkeypatch):
    """A command that may not run for as long as all of them take, on a machine that may be another the next time."""
    monkeypatch.setattr(run, "machine_facts", lambda _: {"gpus": ["NVIDIA H200"], "cores": 16})
    monkeypatch.setattr(run, "_torch_has_gpu", lambda: True)
    file = tmp_path / "guides.json"
    for workload in ("forecast", "classification"):
        words = ["bench", "guides", "--only", workload, "--max-seconds", "560", "--json", str(file)]
        assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    found = json.loads(file.read_text())
    assert set(found["dates"]) == set(found["workloads"]) == {"forecast", "classification"}
    for workload in found["workloads"]:
        cases = {case["key"]: case for case in found["cases"] if case["workload"] == workload}
        assert not any("another_run" in case for case in cases.values())
        assert cases["after"]["speed_up"] == 9
        met = {target["words"]: target.get("met") for target in cases["after"]["targets"]}
        assert met["against Lightning, hand-tuned ≥ 1×"], "of the same run"
    assert [one[0] for one in contended] == ["forecast"] * 4 + ["classification"] * 4


def test_unknown_workloads_are_named():
    assert run.parts_of("video,segmentation") == {"segmentation": CONTESTANTS, "video": CONTESTANTS}
    found = run.parts_of("video/after, video/before,forecast")
    assert {name: [one.key for one in contestants] for name, contestants in found.items()} == {
        "forecast": [one.key for one in CONTESTANTS],
        "video": ["before", "after"],
    }
    for unknown in ("nothing here", "video/nobody", "video/", "", "/after"):
        with pytest.raises(InputError, match="--only: found"):
            run.parts_of(unknown)


def again(only, earlier, *, kept=None, has_gpu=True):
    return run.measure(
        only=run.parts_of(only), small=False, scale=run.FULL, say=lambda _: None, has_gpu=has_gpu, earlier=earlier,
        keep=(lambda _: None) if kept is None else kept.append,
    )  # fmt: skip


@pytest.fixture
def clock(monkeypatch):
    """Each time that is asked for it is another."""
    ticks = iter(range(10**6))
    monkeypatch.setattr(run, "now", lambda: f"2026-11-15T12:00:00.{next(ticks):06}")


@pytest.mark.usefixtures("clock")
def test_one_contestant_is_run_again_beside_the_others_of_an_earlier_run(contended):
    first = again("classification", None).to_json()
    contended.clear()
    kept = []
    second = again("classification/lightning_tuned", first, kept=kept)
    assert contended == [("classification", "lightning_tuned", 12, 64)], "as long as before, as large as after"
    cases = {one.key: one for one in second.cases}
    assert list(cases) == [case["key"] for case in first["cases"]]
    was = {case["key"]: case for case in first["cases"]}
    flat = {case["key"]: case for case in second.to_json()["cases"]}
    for key in ("before", "limit", "accelerate"):
        assert flat[key] == was[key]
    assert [len(one.cases) for one in kept] == [7, 7], "nothing of the earlier run is lost in between"
    assert flat["lightning_tuned"]["another_run"]
    assert "share" not in flat["lightning_tuned"]
    assert cases["after"].targets[4].found is None, "it is not held against what another run has found"
    assert flat["after"] == {**was["after"], "targets": flat["after"]["targets"]}


@pytest.mark.usefixtures("clock")
def test_a_contestant_is_compared_with_those_of_its_own_run(contended):
    first = again("classification", None).to_json()
    alone = {one.key: one for one in again("classification/after", first).cases}
    assert alone["after"].speed_up is None
    assert alone["before"].another_run
    both = {one.key: one for one in again("classification/before,classification/after", first).cases}
    assert both["after"].speed_up == 9
    assert both["lightning_tuned"].another_run
    other = {**first, "machine": {**first["machine"], "cores": 512}}
    assert [one.key for one in again("classification/after", other).cases] == ["after", "limit"]
    small = {**first, "small": True}
    assert [one.key for one in again("classification/after", small).cases] == ["after", "limit"]


def test_what_can_not_be_run_again_stays(contended, monkeypatch):
    first = again("classification", None).to_json()
    contended.clear()
    monkeypatch.setattr(run, "find_spec", lambda _: None)
    second = again("classification/lightning_tuned", first).to_json()
    assert contended == []
    assert second["cases"] == first["cases"]


def test_metrics_of_trainings_that_were_not_as_long_are_not_compared():
    cases = canned()
    before, ours = cases[0].answer, cases[1].answer
    before.batch_size, ours.batch_size, before.steps = 32, 96, 1150
    for ours.steps, as_much in ((1150, False), (383, True), (384, False), (380, False)):
        after = next(one for one in compared(cases, hold=True) if one.key == "after")
        (target,) = [target for target in after.targets if target.figure == "metric"]
        assert target.met is (True if as_much else None)
    before.steps, ours.steps, ours.batch_size = 10, 1, 512  # of 320 samples, to the nearest batch
    assert compared(cases, hold=True)[1].targets[-1].met is None


def test_a_case_comes_back_from_its_json():
    cases = list(compared(canned(), hold=True))
    assert cases
    for one in cases:
        flat = {key: value for key, value in one.to_json().items() if value is not None}
        back = Case.from_json(flat, limit_per_second=one.answer.limit_per_second)
        assert replace(back, share=one.share, speed_up=one.speed_up, targets=one.targets) == one


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_what_ends_the_benchmark_ends_the_contestant_too(monkeypatch, number):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])

    def measure(**_):
        try:
            os.kill(os.getpid(), number)
            time.sleep(5)
        finally:
            run.end(child)

    monkeypatch.setattr("fulltilt.bench.observe.measure", measure)
    assert CliRunner().invoke(app, ["bench", "observe"]).exit_code == 128 + number
    assert child.returncode == -signal.SIGTERM


def test_a_contestant_says_where_it_is_and_ends_tidily():
    """Asked where it is, it goes on; what a scheduler sends ends it through its `finally`s."""
    code = (
        "import os, time\n"
        "from fulltilt.bench.guides import contestant\n"
        "def main(text):\n"
        "    try:\n"
        "        print('ready', flush=True)\n"
        "        time.sleep(60)\n"
        "    finally:\n"
        "        print('answer written', flush=True)\n"
        "contestant.main = main\n"
        "contestant.contest('', os.getppid())\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(WHERE)
        where = [process.stderr.readline() for _ in range(2)]
        process.send_signal(signal.SIGUSR2)
        said, _ = process.communicate(timeout=60)
    assert "in main" in "".join(where)
    assert said == "answer written\n"
    assert process.returncode == 128 + signal.SIGUSR2


def test_a_contestant_that_fails_says_why():
    answer = run.contend(
        "nothing", "before", small=True, seconds=1.0, before=Answer(), batch_size=None, most_seconds=120.0
    )
    assert answer.problem is not None
    assert "there is no recipe 'nothing'" in answer.problem
    assert "InputError: there is no recipe 'nothing'" in answer.trace[-1]
    assert any("recipe_named" in line for line in answer.trace)
    found = bench([Case(workload="video", key="before", title="b", answer=answer, problem=answer.problem)])
    assert found.to_json()["cases"][0]["trace"] == answer.trace
    assert f"    {answer.trace[-1]}" in lines(found)


def test_a_contestant_that_takes_too_long_says_where_it_was(monkeypatch):
    sleeping = "import faulthandler, sys, time; faulthandler.register(10, all_threads=False); time.sleep(60)"
    started = subprocess.Popen
    monkeypatch.setattr(
        run.subprocess, "Popen", lambda command, **more: started([sys.executable, "-c", sleeping], **more)
    )
    answer = run.contend("video", "before", small=True, seconds=1.0, before=Answer(), batch_size=None, most_seconds=2.0)
    assert answer.problem == "stopped after 2 s"
    assert answer.trace == ['  File "<string>", line 1 in <module>']


def test_what_is_said_last():
    assert run.last_words("") == []
    placed = '  File "/home/me/.venv/lib/python3.12/site-packages/torch/_tensor.py", line 631 in backward'
    assert run.last_words(placed) == ['  File "torch/_tensor.py", line 631 in backward']
    assert run.last_words("\n".join(f"{at}\n" for at in range(20))) == [str(at) for at in range(12, 20)]
    where = ["before", "Current thread 0x1 (most recent call first):", *(f"  File {at}" for at in range(20))]
    assert run.last_words("\n".join(where)) == [f"  File {at}" for at in range(8)]


def test_a_contestant_does_not_outlive_the_benchmark(tmp_path):
    """kill -9, which nothing can be done about, must leave no training behind on the GPU."""
    contest = (
        "from fulltilt.bench.guides.run import Answer, contend; contend('segmentation', 'before', small=True, "
        "seconds=60.0, before=Answer(), batch_size=None, most_seconds=100.0)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", contest],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        child = None
        for _ in range(300):
            children = psutil.Process(parent.pid).children()
            if children and (tmp_path / "runs" / "data").exists():
                child = children[0]
                break
            time.sleep(0.1)
        assert child is not None
    finally:
        parent.kill()
        parent.wait()
    psutil.wait_procs([child], timeout=10)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_contestant_whose_time_is_up_leaves_what_it_has_found(tmp_path, monkeypatch):
    def run_out_of_time(order, answer):
        answer.samples_per_second = 5.0
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    monkeypatch.setattr(before, "run", run_out_of_time)
    given = order(tmp_path)
    with pytest.raises(SystemExit), ended_tidily():
        contestant.main(given.to_json())
    assert Answer.read(Path(given.answer)) == Answer(samples_per_second=5.0)


def test_a_contestant_leaves_at_once_and_takes_its_children_along():
    """At exit torch waits for each worker of a loader that was left midway: minutes, with sixteen of them."""
    leaving = (
        "import atexit, subprocess, sys, time; from fulltilt.bench.guides.contestant import leave; "
        "atexit.register(time.sleep, 60); child = subprocess.Popen(['sleep', '60']); print(child.pid); leave(3)"
    )
    done = subprocess.run([sys.executable, "-c", leaving], stdout=subprocess.PIPE, text=True, timeout=50, check=False)
    assert done.returncode == 3
    with suppress(psutil.NoSuchProcess):
        child = psutil.Process(int(done.stdout))
        psutil.wait_procs([child], timeout=10)
        assert child.status() == psutil.STATUS_ZOMBIE


# --- contestants, for real -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Where the data of all of them are made, once."""
    return tmp_path_factory.mktemp("guides")


@pytest.fixture(autouse=True)
def there(request, monkeypatch):
    if "place" in request.fixturenames:
        monkeypatch.chdir(request.getfixturevalue("place"))


def complete(answer):
    assert answer.problem is None
    assert answer.samples_per_second > 0
    assert answer.overall_per_second <= answer.samples_per_second * 1.01
    assert 0 <= answer.wait_share <= 1
    assert 0 <= answer.metric <= 1
    assert answer.window[0] < answer.window[1]
    assert answer.peak_memory_bytes is None or torch.cuda.is_available()


def test_before(place, tmp_path):
    answer = Answer()
    before.run(order(tmp_path), answer)
    complete(answer)
    assert 1 <= answer.steps <= 14  # two epochs of seven batches
    assert list((tmp_path / "run").glob("plain-*.pt"))


def test_after(place, tmp_path):
    answer = Answer()
    after.run(order(tmp_path, "after", samples=48), answer)
    complete(answer)
    assert (answer.steps, answer.batch_size) == (6, 8)
    assert answer.limit_per_second > 0
    assert answer.plan["precision"] == "fp32"
    assert answer.reasons["precision"]
    assert answer.feed["workers"] == 1


def test_after_as_on_a_gpu_is_trained_for_the_metric_and_then_for_the_rates(place, tmp_path, monkeypatch):
    monkeypatch.setattr(after, "tries", lambda: True)
    answer = Answer()
    after.run(order(tmp_path, "after", samples=48), answer)
    complete(answer)
    assert answer.steps == 6
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"quality", "rates"}
    assert 0 < answer.seconds < 60
    assert answer.limit_per_second > 0


@pytest.mark.parametrize(("wanted", "seeds"), [(None, 1), (0.0, 1), (2.0, 3)])
def test_where_after_falls_short_other_seeds_tell_what_is_noise(place, tmp_path, monkeypatch, wanted, seeds):
    monkeypatch.setattr(after, "tries", lambda: True)
    answer = Answer()
    after.run(order(tmp_path, "after", samples=24, metric=wanted), answer)
    assert len(answer.metrics) == (seeds if seeds > 1 else 0)
    assert len(list((tmp_path / "run").glob("quality*"))) == seeds
    assert answer.metric == pytest.approx(sum(answer.metrics) / seeds if seeds > 1 else answer.metric)
    complete(answer)


def test_no_seed_is_the_last_because_it_is_a_good_one(place, tmp_path, monkeypatch):
    """After the second one the mean is high enough, after the third it is not."""
    found = iter([0.6, 0.9, 0.3])
    monkeypatch.setattr(after, "tries", lambda: True)
    monkeypatch.setattr(after._Trained, "metric", lambda *_: next(found))
    answer = Answer()
    after.run(order(tmp_path, "after", samples=24, metric=0.7), answer)
    assert answer.metrics == [0.6, 0.9, 0.3]
    assert answer.metric == pytest.approx(0.6)


def test_seeds_that_are_far_apart_make_no_wider_band():
    cases = canned(metric=0.80)
    cases[1].answer.metrics = [0.77, 0.8, 0.83]
    after_it = next(one for one in compared(cases, hold=True) if one.key == "after")
    (target,) = [target for target in after_it.targets if target.figure == "metric"]
    assert (target.wanted, target.met) == (pytest.approx(0.83), False)
    assert after_it.to_json()["metrics_std"] == pytest.approx(0.03)
    assert "metrics_std" not in as_measured(canned()[1].to_json())


@pytest.mark.parametrize(
    ("deviation", "deficit", "passing"),
    [(0.01, 0.0, 97), (0.01, 0.06, 0), (0.01, 0.1, 0), (0.03, 0.0, 79), (0.03, 0.06, 21), (0.03, 0.1, 3),
     (0.05, 0.0, 72), (0.05, 0.06, 35), (0.05, 0.1, 15)],
)  # fmt: skip
def test_how_often_a_training_is_let_pass(deviation, deficit, passing):
    """In percent, as docs/decisions.md has it; *before* is one training with the same deviation."""
    draw = np.random.default_rng(0)
    before_it, ours = draw.normal(0, deviation, 200_000), draw.normal(-deficit, deviation, (200_000, after._SEEDS))
    short = falls_short(ours[:, 0], before_it) & falls_short(ours.mean(1), before_it)
    assert 100 * (1 - short.mean()) == pytest.approx(passing, abs=1)


@pytest.mark.parametrize(
    ("settles_at", "measured", "note"), [(0.0, [2, 3], None), (10.0, [3], None), (1e9, [6], after.UNSETTLED)]
)
def test_after_is_measured_once_its_feed_has_settled(monkeypatch, settles_at, measured, note):
    """Epochs of ten seconds; the measurement ends with the training. A feed that never settles is told to."""
    now, told = [0.0], []
    monkeypatch.setattr(after, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(after, "is_settled", lambda _, tunes: tunes and now[0] - 10 >= settles_at)
    monkeypatch.setattr(after, "look_no_further", lambda _: told.append(now[0]))
    clock, answer = after._Clock(1, 5.0, tunes=True), Answer()
    stopped = []
    trainer = SimpleNamespace(
        config=SimpleNamespace(eval_interval=1),
        stop=lambda: stopped.append(True),
        _training=SimpleNamespace(source=None),
    )
    seen = []
    for epoch in range(1, 4 if settles_at < 20 else 7):
        now[0] += 10.0
        before_it = len(clock._records)
        clock.on_epoch_end(trainer, {"samples": 100, "seconds": 8.0, "wait_share": 0.0, "val_seconds": 2.0})
        seen += [epoch] if len(clock._records) > before_it else []
    assert seen == measured
    assert stopped
    assert told == ([40.0] if note else [])  # and then it has an epoch to come to rest
    clock.note(answer)
    assert answer.note == note
    assert answer.samples_per_second == 12.5
    assert answer.overall_per_second == 10
    assert answer.stretches[0] == (10.0 * measured[0] - 10, 10.0 * measured[0] - 2)


def test_steps_that_the_device_still_has_to_do_when_an_epoch_ends_are_in_its_time(monkeypatch):
    """Sixteen steps of a second, of which the loop is four ahead: an epoch takes sixteen seconds, not twelve."""
    now = [0.0]
    monkeypatch.setattr(after, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(after, "is_settled", lambda _, tunes: True)
    clock, answer = after._Clock(1, 5.0), Answer()
    training = SimpleNamespace(source=None)
    trainer = SimpleNamespace(config=SimpleNamespace(eval_interval=5), stop=lambda: None, _training=training)
    for _ in range(3):
        now[0] += 16.0
        clock.on_epoch_end(trainer, {"samples": 16, "seconds": 12.0, "wait_share": 0.0})
    clock.note(answer)
    assert answer.samples_per_second == 1.0


@pytest.mark.parametrize(
    ("source", "tunes", "settled"),
    [
        (SimpleNamespace(is_settled=False), False, False),
        (SimpleNamespace(is_settled=True), True, True),
        (SimpleNamespace(hosting=1, decision=None), True, False),
        (SimpleNamespace(hosting=1, decision=None), False, True),  # its number of workers was given
        (SimpleNamespace(hosting=1, decision=7), True, True),
        (SimpleNamespace(), True, True),
    ],
)
def test_which_feeds_are_settled(source, tunes, settled):
    trainer = SimpleNamespace(_training=SimpleNamespace(source=source))
    assert after.is_settled(trainer, tunes=tunes) is settled


def test_a_feed_that_looks_for_too_long_goes_on_with_what_it_began_with():
    asked = []
    source = SimpleNamespace(hosting=SimpleNamespace(value=SimpleNamespace(workers=7)), resize=asked.append)
    after.look_no_further(SimpleNamespace(_training=SimpleNamespace(source=source)))
    after.look_no_further(SimpleNamespace(_training=SimpleNamespace(source=SimpleNamespace())))
    assert asked == [7]


@pytest.mark.parametrize("one", [each for each in CONTESTANTS if not each.tuned], ids=lambda each: each.key)
@pytest.mark.filterwarnings("ignore")
def test_what_was_measured_until_time_was_up_counts(place, tmp_path, monkeypatch, one):
    """SIGTERM in the ninth step after the warm-up: as where compiling has left little of a contestant's time."""
    if one.needs is not None:
        pytest.importorskip(one.needs)
    counted = Meter.got
    monkeypatch.setattr(before, "_PROBE_SHARE", 0.0)  # the training itself is what is stopped
    monkeypatch.setattr(before, "_LEAST_STEPS", 12)

    def stopped(meter, asked, samples):
        counted(meter, asked, samples)
        if meter.steps == 9:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Meter, "got", stopped)
    ended = after._Clock.on_epoch_end

    def stopped_after(clock, trainer, record):
        ended(clock, trainer, record)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(after._Clock, "on_epoch_end", stopped_after)
    given = order(tmp_path, one.key, samples=None if one.key == "before" else 112)
    with pytest.raises(SystemExit), ended_tidily():
        contestant.main(given.to_json())
    answer = Answer.read(Path(given.answer))
    assert answer.samples_per_second > 0
    assert answer.window is not None
    assert answer.metric is None, "it was not validated"


@pytest.mark.parametrize("contestant", ["lightning", "lightning_tuned"])
@pytest.mark.filterwarnings("ignore")
def test_lightning(place, tmp_path, contestant):
    pytest.importorskip("lightning.pytorch")
    from fulltilt.bench.guides import with_lightning

    answer = Answer()
    with_lightning.run(order(tmp_path, contestant, samples=48, batch_size=8), answer)
    complete(answer)
    assert (answer.steps, answer.batch_size) == (6, 8)


@pytest.mark.parametrize("contestant", ["accelerate", "accelerate_tuned"])
@pytest.mark.filterwarnings("ignore")
def test_accelerate(place, tmp_path, contestant):
    pytest.importorskip("accelerate")
    from fulltilt.bench.guides import with_accelerate

    answer = Answer()
    with_accelerate.run(order(tmp_path, contestant, samples=48, batch_size=8), answer)
    complete(answer)
    assert (answer.steps, answer.batch_size) == (6, 8)
