"""Lines and bars: figures as text, nothing where nothing was measured."""

from __future__ import annotations

import io
import re

import pytest

from fulltilt.train.report.lines import epoch_detail, epoch_line, perf_line
from fulltilt.train.report.progress import Bar, Meter, Pace, figures

STATS = {
    "gpu_utilization": 78.54,
    "avg_gpu_time": 0.045,
    "avg_cpu_time": 0.012,
    "data_wait_seconds": 0.0004,
    "samples_per_second": 2841.2,
    "step_p50": 0.05,
    "step_p99": 0.09,
    "cpu_ratio": 0.21,
    "gpu_memory_bytes": 3.5 * 2**30,
}


def test_the_perf_line_is_the_guides_with_more_behind_it():
    assert perf_line(100, STATS, loss=0.25) == (
        "[perf] batch 100: GPU 78.5%, GPU 0.045 s, CPU 0.012 s, wait 0.400 ms, 2,841 samples/s, loss 0.25"
    )


def test_what_was_not_measured_is_left_out():
    assert perf_line(200, {"avg_cpu_time": 0.5}) == "[perf] batch 200: CPU 0.500 s"
    assert epoch_detail({}) == ""


def test_an_epoch_in_one_line():
    record = {"epoch": 3, "train_loss": 0.5, "val_iou": 0.75, "seconds": 12.34, "samples_per_second": 1234.5, "lr": 0.1}
    assert epoch_line(record, 10) == "epoch 3/10: train_loss 0.5, val_iou 0.75 (12.3 s, 1,234 samples/s)"
    assert epoch_detail(STATS).startswith("GPU busy 78.5%, GPU 45 ms/step, CPU 12 ms/step, CPU share 21%")
    assert epoch_detail(STATS).endswith("p99 90 ms, GPU memory 3.5 GiB")
    assert epoch_detail({"step_p50": 0.00025, "step_p99": 1.2345}) == "step p50 0.25 ms, p99 1,234 ms"


@pytest.mark.parametrize(
    ("rate", "text"), [(0.123, "0.12"), (9.4, "9.4"), (9.96, "10"), (12.4, "12"), (6543.2, "6,543")]
)
def test_slow_is_not_zero(rate, text):
    assert epoch_line({"epoch": 1, "seconds": 1.0, "samples_per_second": rate}, 1).endswith(
        f"(1.0 s, {text} samples/s)"
    )
    assert f"{text} samples/s" in perf_line(1, {"samples_per_second": rate})
    assert f"{text} samples/s" in figures(
        Pace(samples_per_second=rate, batches_per_second=1.0, wait_share=0.0), loss=None, left=None
    )


def test_the_meter_looks_at_the_last_seconds():
    meter = Meter()
    assert meter.mark(0.0, 0, 0, 0.0) is None
    for second in range(1, 20):
        pace = meter.mark(float(second), second, 100 * second + 50 * max(0, second - 10), 0.1)
    assert pace is not None
    assert pace.samples_per_second == pytest.approx(150)
    assert pace.batches_per_second == pytest.approx(1)
    assert pace.wait_share == 0


def test_figures_behind_the_bar():
    pace = Pace(samples_per_second=6540.4, batches_per_second=10.0, wait_share=0.012)
    stats = {"gpu_utilization": 97.2}
    text = "loss 0.2314  6,540 samples/s  GPU 97 %  wait 1 %  ETA 12:34"
    assert figures(pace, loss=0.23142, left=7540, stats=stats) == text
    assert figures(None, loss=None, left=10) == ""


def test_no_bar_where_stderr_is_no_terminal():
    stream = io.StringIO()
    bar = Bar("auto", stream=stream)
    bar.open()
    bar.begin("epoch 1/2", 10)
    bar.update(5, 50, 0.0, loss=1.0, left=5)
    bar.advance(6)
    assert bar.due == float("inf"), "the loop never has a reason to call it"
    bar.close()
    assert stream.getvalue() == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_says_how_far_it_is(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    stream = Terminal()
    bar = Bar("auto", stream=stream)
    bar.open()
    bar.begin("epoch 1/2", 10)
    assert bar.due < float("inf")
    bar.update(0, 0, 0.0, loss=None, left=20)
    bar.update(5, 50, 0.0, loss=1.5, left=15)
    bar.close()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert "epoch 1/2" in text
    assert "5/10" in text
    assert "loss 1.5" in text
    assert "ETA" in text


def test_a_ctrl_c_behind_the_bar_stays_on_its_line(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    bar = Bar("auto", stream=stream)
    bar.open()
    bar.begin("epoch 1/2", 10)
    bar.update(5, 50, 0.0, loss=1.5, left=15)
    drawn = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in re.split(r"[\r\n]", stream.getvalue())]
    bar.close()
    bars = [line for line in drawn if "5/10" in line]
    assert bars
    assert all(60 < len(line) + len("^C") < 80 for line in bars)
