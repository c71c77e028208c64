"""Trials on a real model: whatever was tried, everything is afterwards as it was, bit for bit."""

from __future__ import annotations

import copy
import random
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from fulltilt.train import HybridPrecisionTrainer
from fulltilt.train.step.choose import Facts, Settings, Wishes, settings_of
from fulltilt.train.step.optim import Fusing
from fulltilt.train.step.precision import Formats
from fulltilt.train.step.snapshot import Snapshot, host_rng, same_host_rng
from fulltilt.train.step.trials import Trials

FACTS = Facts(
    gpu=True,
    formats=Formats(allowed=("bf16", "fp32"), reason="for the test"),
    convolutions=True,
    planar=True,
    layers=6,
    not_graphed="no GPU",
)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.3), nn.Flatten())
        self.head = nn.Linear(6 * 36, 4)
        self.register_buffer("mean", torch.zeros(1, 3, 8, 8))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        random.random()
        np.random.rand()
        with torch.no_grad():
            self.mean.lerp_(x.mean(0, keepdim=True), 0.1)
        return self.head(self.body(x - self.mean))


def batch(seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(4, 3, 8, 8, generator=draw), torch.randint(0, 4, (4,), generator=draw)


def make(optimizer, **more):
    torch.manual_seed(0)
    model = Model()
    made = optimizer(model.parameters(), lr=0.01)
    return HybridPrecisionTrainer(model, made, device="cpu", ema_decay=0.9, **more)


def everything(trainer):
    return copy.deepcopy((trainer.model.state_dict(), trainer.state_dict())), host_rng(), trainer.model.calls


def assert_same(a, b):
    (weights, state), rng, calls = a
    (other_weights, other_state), other_rng, other_calls = b
    assert all(torch.equal(weights[name], other_weights[name]) for name in weights)
    _assert_tree(state, other_state)
    assert same_host_rng(rng, other_rng)
    assert calls == other_calls


def _assert_tree(a, b):
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            _assert_tree(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            _assert_tree(x, y)
    else:
        assert a == b


def sgd(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


@pytest.fixture
def quick(monkeypatch):
    """Bursts of a few steps, and a compiler that costs nothing."""
    from fulltilt.train.step import trials

    monkeypatch.setattr(trials, "_BURST_SECONDS", 0.002)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


@pytest.mark.parametrize("optimizer", [sgd, torch.optim.AdamW])
@pytest.mark.parametrize("precision", ["auto", "fp16"])
def test_trials_leave_everything_as_it_was(quick, optimizer, precision):
    trainer = make(optimizer, precision=precision)
    for seed in range(3):
        trainer.train_step(*batch(seed))
    before = everything(trainer)
    settings = trainer._engine.settings
    trials = Trials(trainer._engine, batch(9), 1)
    plan = trials.run(Wishes(), FACTS)
    assert len(plan) == 6
    assert trainer.model.calls == before[2]
    chosen = settings_of(plan)
    assert trainer._engine.settings == chosen
    trainer._engine.use(settings)  # options, such as fused, belong to what was chosen
    assert_same(before, everything(trainer))


def test_training_goes_on_as_if_nothing_had_been_tried(quick):
    wishes = Wishes(channels_last=False, fused=False, compile=False, cuda_graph=False)
    facts = Facts(
        gpu=True, formats=Formats(allowed=("fp32",), reason="for the test"), convolutions=False, planar=False, layers=6
    )
    losses = []
    for tried in (False, True):
        trainer = make(torch.optim.AdamW)
        found = []
        for seed in range(12):
            if tried and seed == 5:
                Trials(trainer._engine, batch(seed), 1).run(wishes, facts)
            found.append(trainer.train_step(*batch(seed)).loss)
        losses.append(torch.stack(found))
    assert torch.equal(*losses)


@pytest.mark.parametrize("given", [torch.contiguous_format, torch.channels_last])
def test_each_trial_has_its_images_as_steps_under_its_settings_will(quick, monkeypatch, given):
    """A convolution works in the layout of its images, and compiled code is made for it."""
    trainer = make(sgd)
    trainer.train_step(*batch())
    images, labels = batch()
    trials = Trials(trainer._engine, (images.contiguous(memory_format=given), labels), 1)
    forward, seen = trainer._engine.forward, set()

    def looked(inputs, target):
        seen.add(inputs[0].is_contiguous(memory_format=torch.channels_last))
        return forward(inputs, target)

    monkeypatch.setattr(trainer._engine, "forward", looked)
    for last in (False, True, False):
        seen.clear()
        assert trials._measured(Settings(channels_last=last)).problem is None
        assert seen == {last or given is torch.channels_last}


def test_interrupted_trials_leave_everything_as_it_was(quick, monkeypatch):
    trainer = make(sgd)
    trainer.train_step(*batch())
    before, settings = everything(trainer), trainer._engine.settings
    calls = 0

    def interrupted(self, step, count):
        nonlocal calls
        calls += 1
        for _ in range(3):
            step()
        if calls == 7:
            raise KeyboardInterrupt
        return 0.001 * count / calls

    monkeypatch.setattr(Trials, "_burst", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Trials(trainer._engine, batch(), 1).run(Wishes(), FACTS)
    assert trainer._engine.settings == settings
    assert_same(before, everything(trainer))


def test_a_model_that_does_not_compile_is_trained_as_it_is(monkeypatch, caplog):
    def compiler(function, **_):
        def fails(*args):
            raise RuntimeError("backend 'inductor' raised: no C++ compiler found\nand much more")

        return fails

    monkeypatch.setattr(torch, "compile", compiler)
    trainer = make(sgd, compile=True)
    plain = make(sgd)
    losses = [[t.train_step(*batch(seed)).loss for seed in range(4)] for t in (trainer, plain) if not random.seed(0)]
    assert trainer.plan["compile"].value is False
    assert "asked for, but it failed: RuntimeError: backend 'inductor' raised: no C++" in trainer.plan["compile"].reason
    assert len(losses[0]) == 4


def test_compiled_for_one_shape_only(monkeypatch):
    """A short last batch is run as it is: compiling for it would cost more than it could win."""
    seen = []

    def compiler(function, **_):
        def compiled(inputs, target):
            seen.append(len(target))
            return function(inputs, target)

        return compiled

    monkeypatch.setattr(torch, "compile", compiler)
    trainer = make(sgd, compile=True)
    x, y = batch()
    trainer.train_step(x, y)
    trainer.train_step(x, y)
    assert trainer.plan["compile"].value is True
    seen.clear()
    trainer.train_step(x, y)
    trainer.train_step(x[:3], y[:3])
    trainer.train_step(x, y)
    trainer.eval_step(x, y)
    assert seen == [4, 4]


def test_trials_wait_for_two_batches_of_one_shape_but_not_for_ever(quick):
    x, y = batch()
    trainer = make(sgd, compile=True)
    for size in (4, 3, 4, 2, 2):
        assert not trainer.plan
        trainer.train_step(x[:size], y[:size])
    assert trainer.plan["compile"].value is True, "the fifth was as the fourth"
    trainer = make(sgd, compile=True)
    taken = 0
    while not trainer.plan and taken < 50:
        trainer.train_step(x[: 2 + taken % 3], y[: 2 + taken % 3])
        taken += 1
    assert taken == 21


@pytest.mark.parametrize("optimizer", [sgd, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad])
def test_fusing_in_place_keeps_the_state_and_can_be_undone(optimizer):
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    twin = copy.deepcopy(model)
    losses = []
    for one, switching in ((model, True), (twin, False)):
        made = optimizer(one.parameters(), lr=0.01)
        fusing = Fusing(made)
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
        for index in range(9):
            if switching:
                fusing.set(index % 3 == 1)
                assert all(bool(group["fused"]) is (index % 3 == 1) for group in made.param_groups)
            loss = one(x).square().mean()
            loss.backward()
            made.step()
            made.zero_grad()
        losses.append(loss.detach())
    torch.testing.assert_close(*losses)
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_snapshot_puts_tensors_back_in_place_and_forgets_new_state():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(model.parameters())
    snapshot = Snapshot(model, [optimizer], torch.device("cpu"))
    before = copy.deepcopy(model.state_dict())
    addresses = [tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())]
    model(torch.randn(4, 3)).square().mean().backward()
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 7.0
    snapshot.restore()
    assert not optimizer.state
    assert optimizer.param_groups[0]["lr"] == 1e-3
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert [tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())] == addresses


def test_warnings_of_the_compiler_do_not_decide(quick, monkeypatch):
    """Also where a program turns warnings into errors, as these tests do."""

    def compiled(function, **_):
        def warns(*args):
            warnings.warn("TensorFloat32 is available but not enabled", UserWarning, stacklevel=2)
            return function(*args)

        return warns

    monkeypatch.setattr(torch, "compile", compiled)
    trainer = make(sgd)
    trainer.train_step(*batch())
    plan = Trials(trainer._engine, batch(), 1).run(Wishes(compile=True), FACTS)
    assert (plan["compile"].value, plan["compile"].reason) == (True, "asked for")
