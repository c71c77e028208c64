"""Labels out of range, found on the host before a step is made of them."""

from __future__ import annotations

import pytest
import torch
from tests.train.helpers import EXACT, samples
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fulltilt import GPUAugmentation, Trainer
from fulltilt.errors import InputError
from fulltilt.feed import feed
from fulltilt.train import labels
from fulltilt.train.augmenting import LoopAugmentation
from fulltilt.train.step.roles import Objective


class Counting(nn.Linear):
    """Counts batches; on a GPU the first with a bad label would be the process's last."""

    batches = 0

    def forward(self, x):
        self.batches += 1
        return super().forward(x)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    def watched(source, objective, device, augment):
        return labels.watched(source, objective, torch.device("cuda", 0), augment)

    for module in ("training", "validation"):
        monkeypatch.setattr(f"fulltilt.train.{module}.watched", watched)


def data(bad, kind):
    inputs, targets = samples(96)
    if bad is not None:
        targets[8 * bad - 1] = 7
    if kind == "tensors":
        return feed((inputs, targets), batch_size=8, device="cpu")
    if kind == "mappings":
        records = [{"image": x, "label": y} for x, y in zip(inputs, targets, strict=True)]
        return DataLoader(records, 8)
    return DataLoader(TensorDataset(inputs, targets), 8)


@pytest.mark.parametrize(
    ("kind", "bad", "steps"),
    # One that was fetched ahead of the first step is found right after it, and so are all that were there already.
    [("loader", 2, {1}), ("loader", 9, {6, 7, 8}), ("mappings", 9, {6, 7, 8}), ("tensors", 9, {1})],
)
def test_no_step_is_made_of_a_bad_label(as_on_a_gpu, kind, bad, steps):
    model = Counting(8, 2)
    trainer = Trainer(model, data(bad, kind), config={"epochs": 1, **EXACT})
    with pytest.raises(InputError, match=r"labels out of range: found 7; the model has 2 outputs"):
        trainer.fit()
    assert model.batches in steps


def test_labels_of_validation_are_looked_at_too(as_on_a_gpu):
    model = Counting(8, 2)
    trainer = Trainer(model, data(None, "loader"), data(9, "loader"), config={"epochs": 1, **EXACT})
    with pytest.raises(InputError, match="labels out of range: found 7"):
        trainer.fit()
    assert 12 < model.batches < 12 + 9


def test_good_labels_and_ignored_ones_pass(as_on_a_gpu):
    inputs, targets = samples(96)
    targets[50] = -100
    Trainer(Counting(8, 2), DataLoader(TensorDataset(inputs, targets), 8), config={"epochs": 2, **EXACT}).fit()


def test_nothing_is_looked_at_where_it_is_not_known_what_comes_of_it():
    source, objective, gpu = data(None, "tensors"), Objective(None), torch.device("cuda", 0)
    assert labels.watched(source, objective, torch.device("cpu"), None) is None
    for function, looked in ((GPUAugmentation(), True), (lambda batch: batch[::-1], False)):
        augment = LoopAugmentation(function, source, training=True)
        assert (labels.watched(source, objective, gpu, augment) is not None) is looked
