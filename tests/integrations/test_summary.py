"""The summary of a loop, from records and readings made by hand."""

from __future__ import annotations

import sys

import pytest

from fulltilt import integrations
from fulltilt.errors import InputError, UnavailableError
from fulltilt.integrations import watching
from fulltilt.integrations.summary import Totals, summarised
from fulltilt.machine.sample import CpuSample, GpuSample, Sample
from fulltilt.measure.timeline import BACKWARD, CHECKPOINT, DATA_WAIT, EVAL, FORWARD, PHASES, Record
from fulltilt.monitor.summary import summarize

MS = 1_000_000


def record(*, samples: int | None = 8, gpu: float | None = None, starved: float | None = None, **ms: int) -> Record:
    spent = [0] * len(PHASES)
    for name, value in ms.items():
        spent[PHASES.index(name.replace("_", " "))] = value * MS
    made = Record(0, [(spent, True, False)], beside=False)
    made.samples, made.gpu_seconds, made.starved_seconds = samples, gpu, starved
    return made


def machine(*utils: float, uuid: str = "GPU-a"):
    def gpu(index: int, name: str, util: float) -> GpuSample:
        return GpuSample(index=index, uuid=name, name="H200", util=util)

    return summarize(
        Sample(t=t, cpu=CpuSample(util=50.0), gpus=(gpu(0, uuid, util), gpu(1, "GPU-b", 99.0)))
        for t, util in enumerate(utils)
    )


def totals(*records: Record) -> Totals:
    made = Totals()
    made.add(records)
    return made


def test_the_first_step_stands_apart_and_shares_add_up():
    found = summarised(
        totals(record(forward=9000), *[record(data_wait=20, forward=30, backward=50)] * 4), machine(80.0, 90.0)
    )
    assert (found.steps, found.first_seconds, found.seconds) == (5, 9.0, pytest.approx(0.4))
    assert found.phases == {"data wait": 0.2, "forward": 0.3, "backward": 0.5}
    assert found.data_wait == pytest.approx(0.2)
    assert found.samples_per_second == pytest.approx(4 * 8 / 0.4)


def test_evaluation_and_checkpoints_are_time_but_not_training_time():
    behind = [0] * len(PHASES)
    behind[CHECKPOINT] = 50 * MS
    made = totals(record(forward=1), record(forward=100), record(forward=100, checkpoint=50))
    made.end(Record(0, [(behind, False, False)], beside=True))
    found = summarised(made, machine(80.0))
    assert found.phases["checkpoint"] == pytest.approx(100 / 300)
    assert found.samples_per_second == pytest.approx(16 / 0.2)


def test_the_gpu_is_the_one_that_was_trained_on():
    found = summarised(
        totals(record(forward=1), record(forward=1, gpu=0.5, starved=0.1)), machine(70, 90), uuid="GPU-a"
    )
    assert found.gpu is not None
    assert found.gpu.util is not None
    assert found.gpu.util.mean == 80.0
    assert found.starved == pytest.approx(0.2)
    assert "GPU 0 80.0 % ± 10.0" in found.line()
    assert "GPU starved 20.0 %" in found.line()


def test_a_slice_goes_by_the_busiest_and_no_gpu_by_none():
    made = totals(record(forward=1), record(forward=1))
    assert summarised(made, machine(10.0), uuid="GPU-of-a-slice").gpu.index == 1  # type: ignore[union-attr]
    found = summarised(made, machine(10.0))
    assert found.gpu is None
    assert "no GPU" in found.line()


def test_samples_that_were_not_counted_are_not_guessed():
    found = summarised(totals(record(forward=1), record(forward=100), record(forward=100, samples=None)), machine(1.0))
    assert found.samples_per_second is None
    assert "10 steps/s" in found.line()
    assert "samples_per_second" not in found.to_json()


def test_a_loader_that_looks_ahead_does_not_count_twice():
    steps = [record(forward=10, samples=samples) for samples in (8, 16, 8, 8, 8, 8)]
    assert summarised(totals(*steps), machine(1.0)).samples_per_second == pytest.approx(5 * 8 / 0.05)


@pytest.mark.parametrize("steps", [0, 1])
def test_too_few_steps_say_so(steps):
    found = summarised(totals(*[record(forward=1)] * steps), machine(1.0))
    assert found.data_wait is None
    assert "too few" in found.line()


def test_the_line_leaves_out_what_is_nearly_nothing_and_sorts_the_rest():
    found = summarised(
        totals(record(forward=1), record(forward=300, backward=690, logging=4, other=6)),
        machine(50.0),
        metrics=[{"train_iou": 0.5}, {"train_iou": 0.8125}],
    )
    line = found.line()
    assert "logging" not in line
    assert line.index("backward") < line.index("forward") < line.index("other")
    assert line.endswith("CPU 50 %; train_iou 0.8125")


def test_a_high_rate_is_written_out():
    found = summarised(totals(record(forward=1), record(forward=10, samples=250)), machine(50.0))
    assert found.samples_per_second == 25_000
    assert "25,000 samples/s" in found.line()


def test_an_interval_that_the_driver_can_not_keep_is_refused():
    with pytest.raises(InputError, match=r"0\.01.*0\.1 or more"):
        watching(interval=0.01)


def test_metrics_must_be_there_to_be_added_to():
    with pytest.raises(InputError, match="watching\\(metrics="):
        watching().add(1, 2)


def test_a_library_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "fulltilt.integrations.huggingface", raising=False)
    monkeypatch.delitem(vars(integrations), "HuggingFaceCallback", raising=False)
    with pytest.raises(UnavailableError, match="pip install transformers accelerate"):
        _ = integrations.HuggingFaceCallback


def test_phases_are_named_as_everywhere():
    assert [PHASES[phase] for phase in (DATA_WAIT, FORWARD, BACKWARD, EVAL)] == [
        "data wait", "forward", "backward", "eval",
    ]  # fmt: skip
