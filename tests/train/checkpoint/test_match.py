from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from fulltilt.errors import CheckpointError
from fulltilt.train.checkpoint import check_matches, rng


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
