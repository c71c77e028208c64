from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from tests.train.helpers import EXACT
from torch import nn
from torch.nn import functional

from fulltilt import Trainer
from fulltilt.errors import CheckpointError
from fulltilt.train.checkpoint import Checkpoints, check_matches, load_trained, rng


def test_the_same_model():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    check_matches(model, model.state_dict())
    check_matches(model, {"model": model.state_dict(), "epoch": 3})


def test_another_model_is_told_by_its_keys_and_shapes():
    model, other = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3)), nn.Sequential(nn.Linear(2, 4), nn.PReLU())
    with pytest.raises(CheckpointError) as caught:
        check_matches(model, {"model": other.state_dict()})
    message = str(caught.value)
    assert "1 missing: 1.bias" in message
    assert "0.weight (4×2 in the checkpoint, 3×2 in the model)" in message
    with pytest.raises(CheckpointError, match=r"2 unexpected: 1\.weight, 1\.bias"):
        check_matches(nn.Sequential(nn.Linear(2, 3)), model.state_dict())


def test_other_shapes_alone_are_no_wrapper():
    with pytest.raises(CheckpointError, match=r"2 of another shape: .*; build the model as it was"):
        check_matches(nn.Linear(2, 3), nn.Linear(2, 4).state_dict())


def test_many_keys_are_cut_short():
    with pytest.raises(CheckpointError, match=r"30 missing: .* and 20 more"):
        check_matches(nn.Sequential(*(nn.Linear(1, 1) for _ in range(15))), {})


@pytest.mark.parametrize(("prefix", "wrapper"), [("module.", "DistributedDataParallel"), ("_orig_mod.", "compile")])
def test_a_wrapped_models_keys(prefix, wrapper):
    model = nn.Linear(2, 3)
    wrapped = {prefix + key: value for key, value in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=f"it was saved from a model wrapped by .*{wrapper}"):
        check_matches(model, wrapped)


def draws():
    return random.random(), np.random.rand(), torch.rand(3).tolist(), random.gauss(), np.random.randn()


def test_random_states_go_on_where_they_were():
    draws()
    states = rng.take()
    first = draws()
    rng.restore(states)
    assert draws() == first


def test_random_states_that_are_none():
    with pytest.raises(CheckpointError, match="lack torch, cuda"):
        rng.restore({"python": random.getstate(), "numpy": np.random.get_state()})
    with pytest.raises(CheckpointError, match="can't be put back"):
        rng.restore({**rng.take(), "torch": torch.zeros(3, dtype=torch.uint8)})


def test_what_was_validated_is_what_is_loaded(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.norm = nn.BatchNorm1d(4)
            self.again = nn.Linear(4, 4)
            self.again.weight = self.first.weight

        def forward(self, values):
            return self.again(self.norm(self.first(values)))

    batches = [(torch.randn(16, 4), torch.randint(4, (16,))) for _ in range(3)]
    config = {"epochs": 2, "eval_interval": 1, "ema_decay": 0.9, "output": str(tmp_path), **EXACT, "lr": 0.1}
    trainer = Trainer(Tied(), batches, batches, config=config)
    best = trainer.fit().best
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    state = checkpoints.load(checkpoints.best())
    model = Tied()
    load_trained(model, state)
    model.eval()
    losses = [functional.cross_entropy(model(values), labels).item() for values, labels in batches]
    assert sum(losses) / 3 == pytest.approx(best, rel=1e-5)
    assert not torch.equal(model.first.weight, state["model"]["first.weight"])
    plain = nn.Linear(4, 4)
    load_trained(plain, {"model": {"weight": torch.ones(4, 4), "bias": torch.ones(4)}})
    assert torch.equal(plain.weight, torch.ones(4, 4))
