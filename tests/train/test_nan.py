"""A loss that is not a number: named exactly, and raised, skipped or rolled back from."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from tests.train.helpers import EXACT, network, same, samples, weights
from torch import nn
from torch.nn import functional

from fulltilt import Trainer
from fulltilt.errors import LossError
from fulltilt.train.checkpoint import folder, load_checkpoint
from fulltilt.train.nan import LossWatch, UpdateGuard
from fulltilt.train.place import is_finite


def batches(bad: int | None = None, count: int = 10):
    """Ten batches; of one the inputs are infinite."""
    inputs, labels = samples(8 * count)
    found = [(inputs[i : i + 8].clone(), labels[i : i + 8]) for i in range(0, 8 * count, 8)]
    if bad is not None:
        found[bad - 1][0][3, 2] = float("inf")
    return found


def trained(data, model=None, **config):
    torch.manual_seed(2)
    model = network() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return Trainer(model, data, None, functional.cross_entropy, optimizer, config={"epochs": 2, **EXACT, **config})


def test_raise_names_the_step_and_the_batch():
    trainer = trained(batches(bad=7))
    with pytest.raises(LossError, match=r"the loss is nan at step 7 \(epoch 1, batch 7\)") as caught:
        trainer.fit()
    assert (caught.value.step, caught.value.epoch, caught.value.batch) == (7, 1, 7)
    assert "nan_policy: skip or rollback" in str(caught.value)
    assert caught.value.exit_status == 1


def test_raise_in_a_later_epoch():
    data = batches()

    class Later(list):
        epoch = 0

        def set_epoch(self, epoch):
            if epoch == 1:
                self[3][0].fill_(float("nan"))

    with pytest.raises(LossError, match=r"step 14 \(epoch 2, batch 4\)"):
        trained(Later(data)).fit()


def test_skip_trains_as_if_the_batch_had_not_been(caplog):
    without = batches()
    del without[6]
    torch.manual_seed(2)
    plain = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    torch.manual_seed(2)
    guarded = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    trained(without, plain).fit()
    history = trained(batches(bad=7), guarded, nan_policy="skip").fit()
    assert same(weights(guarded), weights(plain))
    assert [record["bad_losses"] for record in history.epochs] == [1, 1]
    assert math.isfinite(history.last["train_loss"]), "the mean is over the others"
    assert caplog.text.count("its update is left out") == 2
    assert "the loss is nan at step 7 (epoch 1, batch 7)" in caplog.text


def test_skip_puts_running_statistics_back():
    model = network()
    trained(batches(bad=7), model, nan_policy="skip").fit()
    assert bool(torch.isfinite(model[1].running_mean).all())
    assert bool(torch.isfinite(model[1].running_var).all())
    assert float(model[1].running_mean.abs().max()) > 0, "they were not thrown away"


def test_skip_leaves_no_hooks_behind():
    trainer = trained(batches(), nan_policy="skip")
    trainer.fit()
    (optimizer,) = trainer.stepper.optimizers
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


@pytest.mark.parametrize("fused", [False, True])
def test_the_guard_stops_optimizers_fused_or_not(fused):
    layer = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, fused=fused)
    guard = UpdateGuard(layer)

    def step(scale):
        optimizer.zero_grad()
        (layer(torch.ones(1, 4)).sum() * scale).backward()
        optimizer.step()

    with guard.watching([optimizer]):
        step(1.0)
        before, state = weights(layer), optimizer.state_dict()["state"]
        kept = {i: {k: v.clone() for k, v in s.items()} for i, s in state.items()}
        step(float("nan"))
        assert same(weights(layer), before)
        after = optimizer.state_dict()["state"]
        assert all(torch.equal(after[i][k], kept[i][k]) for i in kept for k in kept[i]), "nor does its state move on"
        step(1.0)
        assert not same(weights(layer), before)
    assert not hasattr(optimizer, "found_inf")


def test_rollback_goes_back_and_leaves_the_batch_out(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="fulltilt")
    without = batches()
    del without[6]
    torch.manual_seed(2)
    plain = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    torch.manual_seed(2)
    rolled = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    trained(without, plain, epochs=1).fit()
    trainer = trained(
        batches(bad=7), rolled, epochs=1, nan_policy="rollback", checkpoint_every_steps=3, output=str(tmp_path)
    )
    history = trainer.fit()
    assert same(weights(rolled), weights(plain))
    assert trainer.step == 9
    assert "the loss is nan at step 7 (epoch 1, batch 7); rolling back" in caplog.text
    assert "resuming from step 6" in caplog.text
    assert all(map(math.isfinite, list(history.losses)[-3:]))


def test_rollback_before_the_first_checkpoint_goes_back_to_the_beginning(tmp_path):
    trainer = trained(batches(bad=1), epochs=1, nan_policy="rollback", output=str(tmp_path))
    trainer.fit()
    assert trainer.step == 9
    assert all(bool(torch.isfinite(value).all()) for value in trainer.model.parameters())


def test_an_epoch_without_any_number_is_said(caplog):
    data = batches()
    for inputs, _ in data:
        inputs.fill_(float("nan"))
    with caplog.at_level(logging.WARNING, "fulltilt.train"):
        trained(data, epochs=1, nan_policy="skip").fit()
    assert f"none of epoch 1's {len(data)} losses was a number: nothing is learnt" in caplog.text


def test_rollback_gives_up_when_it_is_not_the_batch(tmp_path):
    data = batches()
    for inputs, _ in data:
        inputs.fill_(float("nan"))
    trainer = trained(data, nan_policy="rollback", output=str(tmp_path))
    with pytest.raises(LossError, match="5 rollbacks did not help: lower the learning rate"):
        trainer.fit()


def test_one_bad_batch_in_every_epoch_is_left_out_in_every_epoch(tmp_path):
    trainer = trained(batches(bad=3), nan_policy="rollback", output=str(tmp_path), epochs=7, checkpoint_interval=3)
    assert trainer.fit().steps == 7 * 9


def test_checkpoints_made_after_the_bad_step_are_removed(tmp_path):
    """On a GPU a bad loss is seen some steps later, when weights that are spoilt may have been saved."""
    trainer = trained(
        batches(bad=7), epochs=1, nan_policy="rollback", checkpoint_every_steps=2, keep_last=99, output=str(tmp_path)
    )
    watch = trainer._training.losses.watch
    real, calls = watch.take, []

    def late(*, wait=False):
        calls.append(wait)
        return real(wait=wait) if wait or len(calls) >= 10 else []

    watch.take = late  # type: ignore[method-assign]
    trainer.fit()
    assert trainer.step == 9
    assert len(calls) >= 10, "the bad step was found three steps after it, and step 8 was saved before that"
    entries = folder.entries(tmp_path / "checkpoints")
    assert {entry.step for entry in entries} == {0, 2, 4, 6, 8, 9}
    for entry in entries:
        assert is_finite(trainer.model, load_checkpoint(entry.path)["model"])


def test_a_step_that_is_skipped_leaves_no_momentum_without_values():
    """Fused SGD makes its momentum in the first step, and fills it there, unless that step is skipped."""
    layer = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9, fused=True)
    torch.use_deterministic_algorithms(True)  # memory without values then holds NaN
    try:
        with UpdateGuard(layer).watching([optimizer]):
            for scale in (float("nan"), 1.0):
                optimizer.zero_grad()
                (layer(torch.ones(1, 4)).sum() * scale).backward()
                optimizer.step()
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.isfinite(value).all() for value in weights(layer).values())


def test_a_loss_has_arrived_when_its_own_device_says_so(monkeypatch):
    recorded, empty = [], torch.empty

    class Event:
        def record(self, stream=None):
            recorded.append(stream)

        def query(self):
            return True

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: device)
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory, dtype: empty(*size, dtype=dtype))
    watch = LossWatch(torch.device("cuda", 1))
    watch.add(torch.tensor(3.0))
    assert watch.take() == [3.0]
    assert recorded == [torch.device("cuda", 1)]


def test_losses_come_out_in_order():
    watch = LossWatch(torch.device("cpu"))
    found = []
    for value in range(5):
        assert watch.add(torch.tensor(float(value)))
        found += watch.take()
    assert found == [0.0, 1.0, 2.0, 3.0, 4.0]
    watch.add(torch.tensor(9.0))
    assert watch.pending().tolist() == [9.0]
    watch.forget()
    assert watch.pending() is None
    assert watch.take(wait=True) == []


def test_rolling_back_neither_takes_nor_removes_another_runs_checkpoints(tmp_path, caplog):
    caplog.set_level(logging.INFO, "fulltilt.train")
    options = {"epochs": 1, "checkpoint_every_steps": 2, "keep_last": 99, "output": str(tmp_path)}
    trained(batches(), **options).fit()
    theirs = {entry.path.name for entry in folder.entries(tmp_path / "checkpoints")}
    assert len(theirs) == 5

    # Its own from before the bad step are gone: another run's of that step would be no way back.
    ours = trained(batches(bad=7), nan_policy="rollback", **options)
    ours.fit()
    left = {entry.path.name for entry in folder.entries(tmp_path / "checkpoints")}
    assert theirs <= left
    assert "rolling back" in caplog.text

    alone = tmp_path / "alone"
    lonely = trained(batches(bad=7), nan_policy="rollback", **{**options, "output": str(alone)})
    lonely.fit()
    assert same(weights(ours.model), weights(lonely.model))


def test_after_a_resume_a_run_knows_its_own_checkpoints(tmp_path):
    options = {"epochs": 1, "checkpoint_every_steps": 2, "keep_last": 99, "output": str(tmp_path)}
    trained(batches(), **options, max_steps=4).fit()
    again = trained(batches(bad=7), nan_policy="rollback", **options)
    assert again.resume() == 4
    again._saving.remove_from(4)
    assert sorted(entry.step for entry in folder.entries(tmp_path / "checkpoints")) == [2]
