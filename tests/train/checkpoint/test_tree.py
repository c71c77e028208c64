"""States taken apart and put together: what comes back is what went in, and nothing else gets in."""

from __future__ import annotations

import collections
import json
import math
import random
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fulltilt.errors import CheckpointError, InputError
from fulltilt.train.checkpoint.tree import flatten, unflatten


def there_and_back(state):
    flat = flatten(state)
    return unflatten(json.loads(json.dumps(flat.tree)), flat.tensors)


def same(a, b) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(x, y) for x, y in zip(a.values(), b.values(), strict=True))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return (math.isnan(a) and math.isnan(b)) if isinstance(a, float) and math.isnan(a) else a == b


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
tensors = st.lists(st.integers(-9, 9), max_size=4).map(torch.tensor)
arrays = st.lists(st.floats(-9, 9), max_size=4).map(np.array)
keys = st.text() | st.integers() | st.tuples(st.text(), st.integers())
states = st.recursive(
    scalars | tensors | arrays,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4).map(collections.OrderedDict)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), states, max_size=4))
def test_what_comes_back_is_what_went_in(state):
    assert same(there_and_back(state), state)


def test_names_that_would_be_the_same():
    state = {"a.b": torch.tensor(1), "a": {"b": torch.tensor(2)}, "__metadata__": torch.tensor(3), 0: torch.tensor(4)}
    state["0"] = torch.tensor(5)
    assert same(there_and_back(state), state)


def test_a_models_versions_stay():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    state = there_and_back({"model": model.state_dict()})["model"]
    assert state._metadata == model.state_dict()._metadata
    assert state._metadata["1"] == {"version": 2}


def test_tied_weights_are_stored_once_and_tied_again():
    weight = torch.nn.Parameter(torch.randn(3, 3))
    flat = flatten({"in": weight, "out": weight, "turned": weight.t()})
    assert len(flat.tensors) == 2
    state = unflatten(flat.tree, flat.tensors)
    assert state["in"] is state["out"]
    assert not state["in"].requires_grad
    assert torch.equal(state["turned"], weight.t())


def test_random_states():
    states = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
    pcg = np.random.default_rng(1).bit_generator.state  # 128-bit integers
    assert same(there_and_back({**states, "pcg": pcg}), {**states, "pcg": pcg})


def test_numpy_scalars_and_foreign_byte_order():
    state = there_and_back({"x": np.float32(1.5), "big": np.arange(3, dtype=">i4"), "c": np.array([1j])[::-1]})
    assert type(state["x"]) is np.float32
    assert state["big"].tolist() == [0, 1, 2]
    assert state["c"].tolist() == [1j]


SCHEDULERS = [
    lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [1, 3]),
    lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=9),
    lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    torch.optim.lr_scheduler.ReduceLROnPlateau,
    lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [torch.optim.lr_scheduler.LinearLR(o), torch.optim.lr_scheduler.CosineAnnealingLR(o, 5)],
        milestones=[2],
    ),
]
OPTIMIZERS = [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.LBFGS]


@pytest.mark.parametrize("make", SCHEDULERS)
def test_every_kind_of_scheduler(make):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1, momentum=0.9)
    scheduler = make(optimizer)
    assert same(there_and_back(scheduler.state_dict()), scheduler.state_dict())
    scheduler.load_state_dict(there_and_back(scheduler.state_dict()))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_kind_of_optimizer(kind):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = kind([weight], lr=0.1)

    def loss():
        optimizer.zero_grad()
        value = (weight**2).sum()
        value.backward()
        return value

    optimizer.step(loss)
    assert same(there_and_back(optimizer.state_dict()), optimizer.state_dict())


class Foo:
    pass


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"optimizer": {"state": {3: Foo()}}}, "optimizer.state.3: .*Foo can't be saved; dict, "),
        ({"a": [1, {2}]}, "a.1: set can't be saved"),
        ({"a": lambda: 1}, "a: function can't"),
        ({"a": b"x"}, "a: bytes can't"),
        ({"a": {Foo(): 1}}, "a: a key of type Foo"),
        ({"a": collections.defaultdict(int)}, "a: collections.defaultdict can't"),
        ({"a": torch.eye(2).to_sparse()}, "a: a tensor that is sparse"),
        ({"a": torch.empty(2, device="meta")}, "a: a tensor that is on the meta device"),
        ({"a": np.array(["x"])}, "a: ndarray of <U1; numbers"),
        ({"a": np.array([None])}, "a: ndarray of object"),
    ],
)
def test_what_is_refused_is_named_with_its_place(state, message):
    with pytest.raises(InputError, match=message):
        flatten(state)


def test_a_state_that_contains_itself():
    state: dict[str, object] = {}
    state["again"] = state
    with pytest.raises(InputError, match=re.escape("again.again.again.again.again.again…: nested deeper than 200")):
        flatten(state)


@pytest.mark.parametrize(
    "tree",
    [
        {"tensor": "absent"},
        {"dict": 3},
        {"dict": [[1]]},
        {"dict": [[{"dict": []}, 1]]},
        {"eval": "print()"},
        {"int": "zz"},
        {"ordered": [], "cls": 1},
        {},
        {"tensor": "x", "dict": []},
    ],
)
def test_a_tree_that_is_none_of_ours(tree):
    with pytest.raises(CheckpointError, match="structure can't be read"):
        unflatten(tree, {"x": torch.ones(1)})
