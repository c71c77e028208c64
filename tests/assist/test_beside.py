"""Metrics on threads beside the step: the values of a synchronous computation, exactly; order, room and errors."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics import MeanAbsoluteError, MeanSquaredError, Metric, R2Score
from torchmetrics.classification import (
    BinaryAccuracy,
    BinaryAUROC,
    BinaryAveragePrecision,
    BinaryConfusionMatrix,
    BinaryF1Score,
    BinaryJaccardIndex,
    BinaryMatthewsCorrCoef,
    BinaryROC,
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
    MulticlassJaccardIndex,
)
from torchmetrics.segmentation import DiceScore
from torchmetrics.wrappers import ClasswiseWrapper, MinMaxMetric

from fulltilt.assist import lanes
from fulltilt.assist.balance import FULL, ROOMY, metrics_on_device
from fulltilt.assist.beside import MetricsBeside
from fulltilt.assist.gather import guessed
from fulltilt.assist.tables import Confusion, Counting, Rule, confusion, counter, table, takes_labels
from fulltilt.errors import InputError

CPU = torch.device("cpu")
RANK = """
import sys
import torch
import torch.distributed as dist
from torchmetrics import MeanAbsoluteError
from fulltilt.assist.beside import MetricsBeside
from fulltilt.errors import FulltiltError

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
metrics = MetricsBeside(MeanAbsoluteError(), "cpu", prefix="")
metrics.add(torch.zeros(4), torch.full((4,), float(rank)))
assert metrics.compute() == {"meanabsoluteerror": 0.5}
metrics.add(torch.zeros(4), torch.zeros(4))
metrics.add(torch.zeros(4), torch.zeros(4 + rank))  # gathered, so that it shows when all is counted
try:
    metrics.compute()
except FulltiltError as error:
    sys.stdout.write(f"{error}\\n")
dist.destroy_process_group()
"""


def classes(draw, count=40):
    for n in [8] * (count - 1) + [5]:
        yield torch.randn(n, 4, generator=draw), torch.randint(4, (n,), generator=draw)


def class_masks(draw, count=12):
    for _ in range(count):
        yield torch.randn(3, 4, 24, 24, generator=draw), torch.randint(4, (3, 24, 24), generator=draw)


def masks(draw, count=8):
    """Large and in half precision: tables are made; one batch holds probabilities."""
    for index in range(count):
        scores = torch.randn(2, 1, 200, 200, generator=draw).bfloat16()
        yield scores.sigmoid() if index == 3 else scores, torch.randint(2, (2, 200, 200), generator=draw)


def numbers(draw, count=9):
    """More than torch sums up with one thread."""
    for _ in range(count):
        yield torch.randn(70_000, generator=draw), torch.randn(70_000, generator=draw)


@pytest.mark.parametrize(
    ("data", "metrics"),
    [
        (
            classes,
            {
                "accuracy": MulticlassAccuracy(4),
                "f1": MulticlassF1Score(4),
                "auroc": MulticlassAUROC(4),
                "binned": MulticlassAUROC(4, thresholds=20),
                "confusion": MulticlassConfusionMatrix(4),
            },
        ),
        (
            class_masks,
            {
                "iou": MulticlassJaccardIndex(4),
                "f1": MulticlassF1Score(4),
                "dice": DiceScore(4, input_format="mixed"),
                "confusion": MulticlassConfusionMatrix(4, normalize="true"),
            },
        ),
        (
            masks,
            {
                "accuracy": BinaryAccuracy(),
                "iou": BinaryJaccardIndex(),
                "dice": BinaryF1Score(),
                "auroc": BinaryAUROC(thresholds=50),
                "exact_auroc": BinaryAUROC(),
                "confusion": BinaryConfusionMatrix(),
            },
        ),
        (
            numbers,
            {
                "mae": MeanAbsoluteError(),
                "rmse": MeanSquaredError(squared=False),
                "r2": R2Score(),
            },
        ),
    ],
)
def test_values_are_exactly_those_of_a_synchronous_computation(data, metrics):
    expected = {name: metric.clone() for name, metric in metrics.items()}
    beside = MetricsBeside(metrics, CPU, prefix="", workers=3)
    for outputs, target in data(torch.Generator().manual_seed(0)):
        beside.add(outputs, target)
        for metric in expected.values():
            metric.update(outputs.squeeze(1) if data is masks else outputs, target)
    found = beside.compute()
    for name, metric in expected.items():
        values = [value for key, value in found.items() if key == name or key.startswith(f"{name}_")]
        if name == "auroc" and "binned" in metrics:
            values = [found["auroc"]]
        assert values == metric.compute().flatten().tolist(), name
    beside.close()


class Order(Metric):
    """Remembers what it was given, slowly at times."""

    def __init__(self):
        super().__init__()
        self.add_state("seen", [], dist_reduce_fx="cat")

    def update(self, preds, target):
        if int(target[0]) % 5 == 0:
            time.sleep(0.002)
        self.seen.append(target.clone())

    def compute(self):
        return torch.cat(self.seen)


def test_the_order_of_updates_is_kept():
    beside = MetricsBeside({"order": Order()}, CPU, prefix="", workers=4)
    for number in range(300):
        beside.add(torch.zeros(1), torch.tensor([number]))
    assert list(beside.compute().values()) == list(range(300))


def test_a_metric_that_is_slow_holds_the_loop_up_before_memory_runs_out():
    there = []

    class Slow(Order):
        def update(self, preds, target):
            there.append(1)
            time.sleep(0.01)

        def compute(self):
            return torch.tensor(float(len(there)))

    beside = MetricsBeside({"slow": Slow()}, CPU, prefix="")
    big = torch.zeros(1024, 1024, 20)  # more than is gathered
    for number in range(20):
        beside.add(big, big)
        assert number + 1 - len(there) <= lanes.AHEAD + 2
    assert beside.compute() == {"slow": 20.0}


def test_what_a_metric_says_later_is_raised_in_the_loop():
    beside = MetricsBeside({"accuracy": MulticlassAccuracy(4)}, CPU, prefix="")
    beside.add(torch.zeros(8, 4), torch.zeros(8).long())
    beside.add(torch.zeros(8, 4), torch.full((8,), 7))
    with pytest.raises(InputError, match=r"metrics: accuracy can't take outputs and targets of \(8, 4\) torch.float32"):
        beside.compute()
    beside.reset()
    beside.add(torch.zeros(8, 4), torch.zeros(8).long())
    assert beside.compute() == {"accuracy": 1.0}


def test_any_other_error_is_raised_in_the_loop_as_it_is():
    class Broken(Order):
        def update(self, preds, target):
            raise OSError("the disk is gone")

    beside = MetricsBeside({"broken": Broken()}, CPU, prefix="")
    with pytest.raises(OSError, match="the disk is gone"):
        beside.add(torch.zeros(1), torch.zeros(1))


def test_memory_that_is_short_is_not_the_batchs_fault():
    class Greedy(Order):
        def update(self, preds, target):
            raise torch.OutOfMemoryError("CUDA out of memory")

    on_threads, there = (MetricsBeside({"greedy": Greedy()}, "cpu", prefix="") for _ in range(2))
    there._there["greedy"] = there._others.drop("greedy")
    for beside in (on_threads, there):
        with pytest.raises(torch.OutOfMemoryError):
            beside.add(torch.zeros(1), torch.zeros(1))


def test_what_can_be_no_figure_is_said_with_the_metrics_name():
    data = torch.tensor([0.2, 0.8]), torch.tensor([0, 1])
    for name, metric, said in (
        ("curve", BinaryROC(), "gives a tuple, but only numbers can be noted"),
        ("r2", R2Score(), "at least two samples"),
    ):
        beside = MetricsBeside({name: metric}, CPU, prefix="val_")
        beside.add(*(part[: 1 if name == "r2" else 2] for part in data))
        with pytest.raises(InputError, match=f"metrics: {name} can't be computed: .*{said}"):
            beside.compute()


def test_what_has_seen_nothing_has_no_value():
    beside = MetricsBeside({"accuracy": BinaryAccuracy(), "r2": R2Score()}, CPU, prefix="")
    assert beside.compute() == {}
    beside.add(torch.ones(4), torch.ones(4).long())
    assert beside.compute()["accuracy"] == 1.0
    assert beside.compute() == {}


def test_metrics_in_metrics_count_too_and_are_saved():
    metrics = {"range": MinMaxMetric(BinaryAccuracy()), "each": ClasswiseWrapper(MulticlassAccuracy(2, average=None))}
    draw = torch.Generator().manual_seed(0)
    batches = [tuple(torch.randint(0, 2, (2, 8), generator=draw)) for _ in range(6)]
    whole, first, second = (MetricsBeside(metrics, CPU, prefix="") for _ in range(3))
    for number, batch in enumerate(batches):
        if number == 3:
            second.load_state_dict(first.state_dict())
        for counting in (whole, first if number < 3 else second):
            counting.add(*batch)
        for metric in metrics.values():
            metric.update(*batch)
    expected = [float(value) for metric in metrics.values() for value in metric.compute().values()]
    assert list(whole.compute().values()) == expected
    assert list(second.compute().values()) == expected


def test_metrics_that_were_closed_say_so():
    beside = MetricsBeside({"accuracy": BinaryAccuracy()}, CPU, prefix="")
    beside.add(torch.ones(4), torch.ones(4).long())
    beside.close()
    for use in (beside.compute, beside.reset, beside.wait, beside.state_dict, beside.hand_over):
        with pytest.raises(InputError, match="these metrics were closed"):
            use()
    beside.close()


def test_outputs_of_any_kind_with_metrics_on_the_device():
    class Count(Metric):
        def __init__(self):
            super().__init__()
            self.add_state("seen", torch.tensor(0), dist_reduce_fx="sum")

        def update(self, preds, target):
            self.seen += len(preds["scores"])

        def compute(self):
            return self.seen

    beside = MetricsBeside({"count": Count()}, CPU, prefix="", workers=1)
    for number in range(12):
        beside.add({"scores": torch.zeros(4)}, torch.zeros(4))
        if number == 2:
            beside.hand_over()
            beside.wait()
            beside._place(1e9)
            assert set(beside._there) == {"count"}
    assert beside.compute() == {"count": 48.0}


def test_threads_leave_with_the_metrics():
    before = set(threading.enumerate())
    beside = MetricsBeside({"same": Order(), "accuracy": BinaryAccuracy()}, CPU, prefix="", workers=2)
    beside.add(torch.zeros(8), torch.zeros(8).long())
    started = set(threading.enumerate()) - before
    assert len(started) >= 3, "two that count, one that keeps the order"
    del beside
    gc.collect()
    end = time.monotonic() + 10
    while any(thread.is_alive() for thread in started):
        assert time.monotonic() < end
        time.sleep(0.02)


# --- tables ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("logits", [True, False])
@pytest.mark.parametrize(
    "metric",
    [
        BinaryAccuracy(threshold=0.3),
        BinaryF1Score(ignore_index=255),
        BinaryJaccardIndex(),
        BinaryMatthewsCorrCoef(),
        BinaryAUROC(thresholds=100),
        BinaryAveragePrecision(thresholds=[0.1, 0.1, 0.5, 0.9]),
    ],
    ids=lambda metric: type(metric).__name__,
)
def test_tables_count_what_the_metric_counts(metric, dtype, logits):
    draw = torch.Generator().manual_seed(3)
    make = torch.randn if logits else torch.rand
    scores = make(3, 40_000, generator=draw).to(dtype)
    target = torch.randint(2, (3, 40_000), generator=draw, dtype=torch.uint8)
    expected = metric.clone()
    for _ in range(2):
        expected.update(scores, target)
    counting = Counting(metric.clone(), Rule(metric))
    found = table(scores, target)
    assert found is not None
    counting.update(scores, target, found)
    assert counting.takes_tables, "a part was counted both ways, and they agreed"
    counting.update(scores, target, found)
    for name, state in expected.metric_state.items():
        assert torch.equal(state, counting.metric.metric_state[name])
    assert counting.metric._update_count == 2


@pytest.mark.parametrize(
    "metric",
    [
        MulticlassAccuracy(4),
        MulticlassAccuracy(4, average="micro"),
        MulticlassF1Score(4, ignore_index=255),
        MulticlassJaccardIndex(4),
        MulticlassConfusionMatrix(4, normalize="true"),
    ],
    ids=lambda metric: f"{type(metric).__name__}-{getattr(metric, 'average', '')}",
)
def test_class_numbers_count_what_scores_count(metric):
    """As on a GPU, where the highest score is looked for before anything is copied."""
    draw = torch.Generator().manual_seed(4)
    scores = torch.randn(3, 4, 200, 200, generator=draw).bfloat16()  # with many of the same
    target = torch.randint(4, (3, 200, 200), generator=draw)
    expected = metric.clone()
    rule = Rule(metric)
    counting = Counting(metric.clone(), rule)
    guesses, same = guessed(scores, target)
    assert guesses.dtype == torch.uint8
    assert same is target
    for _ in range(2):
        expected.update(scores, target)
        found = rule.table(guesses, target)
        assert isinstance(found, Confusion)
        counting.update(guesses, target, found)
    assert counting.takes_tables
    assert takes_labels(metric)
    for name, state in expected.metric_state.items():
        assert torch.equal(state, counting.metric.metric_state[name])
    assert torch.equal(expected.compute(), counting.metric.compute())


def test_where_class_numbers_would_not_do():
    assert not takes_labels(MulticlassAccuracy(4, top_k=2))
    assert not takes_labels(MulticlassAUROC(4, thresholds=10))
    assert not takes_labels(BinaryAccuracy())
    assert counter(MulticlassAccuracy(4, ignore_index=2)) is None
    assert takes_labels(MulticlassAccuracy(4, ignore_index=2)), "its own update takes them"
    guesses, target = torch.zeros(1 << 16).byte(), torch.zeros(1 << 16).long()
    assert confusion(guesses, target, 4) is not None
    assert confusion(guesses, target + 255, 4) is None
    assert confusion(guesses + 4, target, 4) is None
    assert confusion(guesses.float(), target, 4) is None
    assert confusion(guesses, target.bool(), 4) is None
    small = torch.randn(8, 4), torch.randint(4, (8,))
    assert guessed(*small) == small


def test_no_table_where_it_would_not_do():
    scores, target = torch.zeros(1 << 16).bfloat16(), torch.zeros(1 << 16).long()
    assert table(scores, target) is not None
    assert table(scores.float(), target) is None
    assert table(scores[:100], target[:100]) is None, "too few to be worth it"
    assert table(scores, target + 255) is None, "marked to be ignored"
    assert table(scores, target.float()) is None
    scores[7] = float("nan")
    assert table(scores, target) is None


def test_no_table_of_more_classes_than_it_is_worth():
    labels = torch.arange(1 << 16)
    assert confusion(labels % 1000, labels % 1000, 1000) is not None
    assert confusion(labels % 1000, labels % 1000, 50_000) is None  # 20 GB


def test_a_metric_of_somebodys_own_is_not_meddled_with():
    class Own(BinaryAccuracy):
        def update(self, preds, target):
            super().update(preds, 1 - target)

    assert counter(BinaryAccuracy()) is not None
    assert counter(Own()) is None
    assert counter(BinaryAUROC()) is None, "it keeps every score"
    assert counter(BinaryAccuracy(multidim_average="samplewise")) is None


def test_counts_that_differ_are_not_taken():
    rule = Rule(BinaryAccuracy())
    rule._count = lambda metric, found: metric._update_state(*[torch.tensor(1)] * 4)
    wrong = Counting(BinaryAccuracy(), rule)
    scores, target = torch.zeros(1 << 16).bfloat16(), torch.zeros(1 << 16).long()
    wrong.update(scores, target, table(scores, target))
    assert not wrong.takes_tables
    assert int(wrong.metric.tn) == 1 << 16


# --- where ------------------------------------------------------------------------------------------------------------


def test_cheap_metrics_stay_on_the_cpu_and_dear_ones_leave():
    costs = {"iou": 0.01, "dice": 0.01, "auroc": 2.0}
    decision = metrics_on_device(costs, batches_per_second=20, workers=4)
    assert decision.value == {"auroc"}
    assert "auroc" in decision.reason
    assert metrics_on_device(costs, batches_per_second=0.5, workers=4).value == set()


@given(
    st.dictionaries(st.sampled_from("abcde"), st.floats(1e-6, 10), min_size=1),
    st.floats(0.1, 1000),
    st.integers(1, 16),
    st.sets(st.sampled_from("abcde")),
)
def test_what_stays_fits_and_nothing_goes_to_and_fro(costs, rate, workers, there):
    decision = metrics_on_device(costs, batches_per_second=rate, workers=workers, there=there)
    load = sum(costs[name] for name in costs.keys() - decision.value) * rate / workers
    assert load <= FULL + 1e-9
    if decision.value < there & costs.keys():
        assert load <= ROOMY + 1e-9
    again = metrics_on_device(costs, batches_per_second=rate, workers=workers, there=decision.value)
    assert again.value == decision.value


def test_values_stay_exact_when_metrics_move_between_cpu_and_device(caplog):
    """Here the device is the CPU as well: what is moved, merged and brought back is the same."""
    caplog.set_level("INFO", "fulltilt.assist")
    metrics = {"accuracy": MulticlassAccuracy(4), "confusion": MulticlassConfusionMatrix(4), "order": Order()}
    expected = {name: metric.clone() for name, metric in metrics.items()}
    beside = MetricsBeside(metrics, CPU, prefix="", workers=2)
    for number, (outputs, target) in enumerate(classes(torch.Generator().manual_seed(2), 60)):
        beside.add(outputs, target)
        for metric in expected.values():
            metric.update(outputs, target)
        if number == 10:
            beside.hand_over()
            beside._place(1e9)
            assert beside.decision.value == {"accuracy", "confusion", "order"}
        elif number == 30:
            beside.hand_over()
            beside._place(1e-9)
            assert set(beside._there) == {"order"}, "whole numbers come back"
    found = beside.compute()
    assert found["accuracy"] == float(expected["accuracy"].compute())
    assert [found[f"confusion_{i}"] for i in range(16)] == expected["confusion"].compute().flatten().tolist()
    assert [v for k, v in found.items() if k.startswith("order")] == expected["order"].compute().tolist()
    assert "metrics on cpu: accuracy, confusion, order; of the time of 2 workers" in caplog.text
    state = beside.state_dict()
    beside.load_state_dict(state)
    beside.close()


def test_a_place_saved_with_metrics_on_the_device_is_gone_on_from():
    data = list(classes(torch.Generator().manual_seed(2), 30))
    metrics = {"accuracy": MulticlassAccuracy(4), "order": Order()}
    whole, first, second = (MetricsBeside(metrics, CPU, prefix="", workers=2) for _ in range(3))
    for pair in data:
        whole.add(*pair)
    for pair in data[:12]:
        first.add(*pair)
    first.hand_over()
    first.wait()
    first._place(1e9)
    for pair in data[12:20]:
        first.add(*pair)
    second.load_state_dict(first.state_dict())
    for pair in data[20:]:
        second.add(*pair)
    assert second.compute() == whole.compute()


def test_what_fails_on_one_rank_fails_on_all(tmp_path):
    command = [sys.executable, "-c", RANK]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    try:
        said = [rank.communicate(timeout=60)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert said[0] == "metrics failed on another rank, whose own output says why\n"
    assert "meanabsoluteerror" in said[1]
    assert [rank.returncode for rank in ranks] == [0, 0]
