"""Metrics beside the step: the values of a synchronous computation, to the last bit, with fewer updates."""

from __future__ import annotations

import pytest
import torch
from tests.train.helpers import EXACT, loader, network
from torch import nn
from torchmetrics import MeanSquaredError, MetricCollection
from torchmetrics.classification import (
    BinaryAccuracy,
    BinaryJaccardIndex,
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)

from fulltilt import Trainer
from fulltilt.assist.beside import GATHERED_BATCHES, MetricsBeside
from fulltilt.errors import InputError

CPU = torch.device("cpu")


def batches(kind: str, count: int = 37):
    draw = torch.Generator().manual_seed(0)
    for index in range(count):
        n = 5 if index == count - 1 else 8
        if kind == "classes":
            yield torch.randn(n, 4, generator=draw), torch.randint(4, (n,), generator=draw)
        elif kind == "masks":  # some batches' scores all lie within 0 and 1: torchmetrics takes those for probabilities
            scores = torch.rand(n, 6, 6, generator=draw) * (1 if index % 3 else 6) - (0 if index % 3 else 3)
            yield scores, torch.randint(2, (n, 6, 6), generator=draw)
        else:
            yield torch.randn(n, generator=draw), torch.randn(n, generator=draw)


@pytest.mark.parametrize(
    ("metric", "kind"),
    [
        (MulticlassAccuracy(4), "classes"),
        (MulticlassF1Score(4), "classes"),
        (MulticlassConfusionMatrix(4), "classes"),
        (MulticlassAUROC(4), "classes"),
        (BinaryAccuracy(), "masks"),
        (BinaryJaccardIndex(), "masks"),
        (MeanSquaredError(), "numbers"),
    ],
)
def test_values_are_those_of_an_update_in_every_step(metric, kind):
    expected = metric.clone()
    beside = MetricsBeside({"m": metric}, CPU, prefix="val_")
    for outputs, target in batches(kind):
        expected.update(outputs, target)
        beside.add(outputs, target)
    values = list(beside.compute().values())
    assert values == expected.compute().flatten().tolist()


def test_metrics_that_count_are_updated_once_for_many_batches():
    calls = []

    class Counting(MulticlassAccuracy):
        def update(self, preds, target):
            calls.append(len(preds))
            super().update(preds, target)

    beside = MetricsBeside(Counting(4), CPU, prefix="")
    for outputs, target in batches("classes", GATHERED_BATCHES + 2):
        beside.add(outputs, target)
    beside.wait()
    assert calls == [8, 8 * GATHERED_BATCHES], "the first batch at once: what does not fit shows early"
    assert list(beside.compute()) == ["counting"]
    assert calls == [8, 8 * GATHERED_BATCHES, 5]


def test_large_outputs_are_not_gathered_for_long():
    beside = MetricsBeside(MeanSquaredError(), CPU, prefix="")
    big = torch.zeros(1024, 1024, 20)
    beside.add(big, big)
    assert beside._gathered == []


def test_outputs_that_are_no_tensor_are_named():
    beside = MetricsBeside(MulticlassAccuracy(4), CPU, prefix="")
    with pytest.raises(InputError, match=r"can't take outputs and targets of tuple .*; a metric gets what the model"):
        beside.add((torch.zeros(8, 4), None), torch.zeros(8).long())
    beside.close()


def test_parts_of_something_large_are_not_gathered_for_long():
    beside = MetricsBeside(MeanSquaredError(), CPU, prefix="")
    for _ in range(20):
        outputs = torch.zeros(4, 1024, 1024)[:, 0, 0]  # 16 bytes that keep 16 MB
        beside.add(outputs, torch.zeros(4))
        assert len(beside._gathered) < 4
    all_targets, small = torch.zeros(8 << 20), torch.zeros(4)  # cut out of one: nothing more is kept by many
    for start in range(0, 400, 4):
        beside.add(small, all_targets[start : start + 4])
    assert len(beside._gathered) > 50
    beside.close()


def test_few_are_gathered_that_hold_open_files():
    beside = MetricsBeside(MulticlassAccuracy(4), CPU, prefix="")
    for _ in range(100):
        beside.add(torch.zeros(8, 4), torch.zeros(8).long().share_memory_())  # as a DataLoader's worker gives them
        assert len(beside._gathered) <= 32
    beside.close()


def test_counting_goes_on_after_a_checkpoint():
    data = list(batches("classes"))
    whole = MetricsBeside({"a": MulticlassAccuracy(4), "b": MulticlassAUROC(4)}, CPU, prefix="")
    first = MetricsBeside({"a": MulticlassAccuracy(4), "b": MulticlassAUROC(4)}, CPU, prefix="")
    second = MetricsBeside({"a": MulticlassAccuracy(4), "b": MulticlassAUROC(4)}, CPU, prefix="")
    for pair in data:
        whole.add(*pair)
    for pair in data[:20]:
        first.add(*pair)
    second.load_state_dict(first.state_dict())
    for pair in data[20:]:
        second.add(*pair)
    assert second.compute() == whole.compute()


def test_training_and_validation_are_counted_apart_and_start_anew_each_epoch():
    torch.manual_seed(0)
    metrics = MetricCollection([MulticlassAccuracy(2, average="micro"), MulticlassConfusionMatrix(2)])
    config = {"epochs": 2, "eval_interval": 1, **EXACT}
    history = Trainer(network(), loader(), loader(40, 16), config=config, metrics=metrics).fit()
    for record in history.epochs:
        assert sum(record[f"train_MulticlassConfusionMatrix_{i}"] for i in range(4)) == 96
        assert sum(record[f"val_MulticlassConfusionMatrix_{i}"] for i in range(4)) == 40
        assert 0 <= record["val_MulticlassAccuracy"] <= 1
    assert metrics["MulticlassAccuracy"]._update_count == 0, "the given ones are left alone"


def test_only_validation_when_asked():
    metrics = {"accuracy": MulticlassAccuracy(2)}
    config = {"epochs": 1, "train_metrics": False, **EXACT}
    record = Trainer(network(), loader(), loader(), config=config, metrics=metrics).fit().last
    assert "val_accuracy" in record
    assert "train_accuracy" not in record


def test_scores_with_a_channel_of_their_own_fit_masks_without():
    beside = MetricsBeside(BinaryAccuracy(), CPU, prefix="")
    beside.add(torch.tensor([[[[2.0, -2.0]]]]), torch.tensor([[[1, 1]]], dtype=torch.uint8))
    assert beside.compute() == {"binaryaccuracy": 0.5}


def test_what_a_metric_can_not_take_is_named_at_the_first_batch():
    beside = MetricsBeside({"accuracy": MulticlassAccuracy(4)}, CPU, prefix="")
    with pytest.raises(InputError, match=r"metrics: accuracy can't take outputs and targets of \(8, 3\) torch.float32"):
        beside.add(torch.zeros(8, 3), torch.zeros(8).long())


def test_soft_labels_are_no_classes_to_count():
    outputs, labels = torch.randn(8, 4), torch.rand(8, 4).softmax(1)
    with pytest.raises(InputError, match=r"metrics: f1 counts classes, .* \(8, 4\) .* train_metrics: false"):
        MetricsBeside({"mse": MeanSquaredError(), "f1": MulticlassF1Score(4)}, CPU, prefix="").add(outputs, labels)
    beside = MetricsBeside(MeanSquaredError(), CPU, prefix="")
    beside.add(outputs, labels)
    assert beside.compute()["meansquarederror"] > 0


def test_what_is_no_metric_is_named():
    with pytest.raises(InputError, match="metrics: accuracy is Linear; expected a torchmetrics Metric"):
        MetricsBeside({"accuracy": nn.Linear(1, 1)}, CPU, prefix="")  # type: ignore[dict-item]
