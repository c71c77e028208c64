"""The loop: the plain loop's losses, validation and checkpoints when they are due, resuming bit for bit."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tests.train.helpers import EXACT, loader, network, same, samples, weights
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchmetrics import MeanSquaredError
from torchmetrics.classification import MulticlassAccuracy

from fulltilt import GPUAugmentation, Trainer
from fulltilt.errors import CheckpointError, InputError
from fulltilt.feed import feed
from fulltilt.train.callbacks import Callback
from fulltilt.train.checkpoint import Checkpoints, folder, load_checkpoint


def steps_saved(output: Path) -> list[int]:
    return sorted(entry.step for entry in folder.entries(output / "checkpoints"))


def records(output: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]


# --- the same as a plain loop ------------------------------------------------------------------------------------


def test_losses_and_weights_are_a_plain_loops_bit_for_bit():
    torch.manual_seed(0)
    model, train, val = network(), loader(), loader(40, 16, shuffle=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    expected, val_losses = [], []
    for _ in range(3):
        model.train()
        for inputs, labels in train:
            loss = functional.cross_entropy(model(inputs), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            expected.append(loss.item())
        model.eval()
        with torch.no_grad():
            total = sum(functional.cross_entropy(model(x), y).item() * len(x) for x, y in val)
        val_losses.append(total / 40)
        scheduler.step()

    torch.manual_seed(0)
    again = network()
    optimizer = torch.optim.SGD(again.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    config = {"epochs": 3, "eval_interval": 1, "clip_norm": 1.0, **EXACT}
    trainer = Trainer(
        again, loader(), loader(40, 16, shuffle=False), functional.cross_entropy, optimizer, scheduler, config, "cpu"
    )
    history = trainer.fit()
    assert list(history.losses) == expected
    assert [record["val_loss"] for record in history.epochs] == pytest.approx(val_losses, rel=1e-12)
    assert same(weights(again), weights(model))
    assert again.training, "as a plain loop would leave it for the next epoch"
    assert history.steps == trainer.step == 36


def test_the_epochs_loss_is_the_mean_over_samples():
    history = Trainer(network(), loader(20, 8), config={"epochs": 1, **EXACT}).fit()
    sizes = [8, 8, 4]
    mean = sum(loss * size for loss, size in zip(history.losses, sizes, strict=True)) / 20
    assert history.last["train_loss"] == pytest.approx(mean, rel=1e-12)
    assert history.last["samples"] == 20


# --- when things happen ------------------------------------------------------------------------------------------


def test_an_epochs_time_lasts_until_the_device_is_done(monkeypatch):
    """Launching is quicker than doing: the host is through with its loop while steps are still under way."""
    trainer = Trainer(network(), loader(), config={"epochs": 1, **EXACT})
    watch = trainer._training.losses.watch
    take = watch.take

    def taking(*, wait=False):
        time.sleep(0.3 if wait else 0.0)
        return take(wait=wait)

    monkeypatch.setattr(watch, "take", taking)
    record = trainer.fit().epochs[0]
    assert record["seconds"] >= 0.3
    assert record["samples_per_second"] == pytest.approx(record["samples"] / record["seconds"])


def test_validation_and_checkpoints_come_at_their_intervals_and_at_the_end(tmp_path):
    config = {
        "epochs": 7, "eval_interval": 3, "checkpoint_interval": 2, "keep_last": 99, "keep_best": 0,
        "output": str(tmp_path), **EXACT,
    }  # fmt: skip
    history = Trainer(network(), loader(), loader(), config=config).fit()
    assert [record["epoch"] for record in history.epochs if "val_loss" in record] == [3, 6, 7]
    assert steps_saved(tmp_path) == [24, 48, 72, 84]


def test_checkpoints_every_so_many_steps(tmp_path):
    config = {"epochs": 2, "checkpoint_every_steps": 5, "keep_last": 99, "output": str(tmp_path), **EXACT}
    Trainer(network(), loader(), config=config).fit()
    assert steps_saved(tmp_path) == [5, 10, 12, 15, 20, 24], "12: the first epoch's end was the best so far"


def test_the_best_is_kept_among_the_last(tmp_path):
    class Worse(Callback):
        def on_epoch_end(self, trainer, record):
            with torch.no_grad():
                trainer.model[-1].weight.mul_(10)

    config = {
        "epochs": 6,
        "eval_interval": 1,
        "checkpoint_interval": 1,
        "keep_last": 2,
        "output": str(tmp_path),
        **EXACT,
    }
    history = Trainer(network(), loader(), loader(), config=config, callbacks=[Worse()]).fit()
    values = [record["val_loss"] for record in history.epochs]
    best = values.index(min(values))
    assert history.best == values[best]
    assert steps_saved(tmp_path) == sorted({12 * (best + 1), 60, 72})


class Interrupted:
    """Somebody presses Ctrl-C in the middle of the second epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def __len__(self) -> int:
        return 12

    def __iter__(self):
        self.epoch += 1
        for number, batch in enumerate(loader(96)):
            if (self.epoch, number) == (2, 5):
                signal.raise_signal(signal.SIGINT)
            yield batch


def test_the_last_line_says_where_it_was_left(tmp_path):
    config = {"epochs": 5, "output": str(tmp_path), **EXACT}
    history = Trainer(network(), Interrupted(), config=config).fit()
    last = records(tmp_path)[-1]
    assert (last["kind"], last["stopped_by"]) == ("end", "SIGINT")
    assert last["step"] == history.steps == max(steps_saved(tmp_path)) == 18
    assert last["epoch"] == 1, "the last that was completed"


def test_the_log_has_a_line_for_everything(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="fulltilt")
    config = {
        "training": {"epochs": 2, "eval_interval": 1, "output": str(tmp_path), **EXACT},
        "logging": {"perf_interval": 5},
    }
    augmentation = GPUAugmentation(rotation_degrees=0, brightness=0, contrast=0)
    images = torch.rand(24, 3, 8, 8)
    labels = torch.randint(2, (24,))
    data = DataLoader(TensorDataset(images, labels), 2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    Trainer(model, data, data, config=config, gpu_augmentation=augmentation).fit()
    kinds = [(record["kind"], record["step"]) for record in records(tmp_path)]
    assert kinds == [
        ("start", 0), ("perf", 5), ("perf", 10), ("epoch", 12), ("perf", 17), ("perf", 22), ("epoch", 24), ("end", 24),
    ]  # fmt: skip
    lines = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("[perf] batch 10: CPU ") and "samples/s, loss" in line for line in lines)
    assert any(line.startswith("epoch 2/2: train_loss ") and "val_loss" in line for line in lines)
    assert any(
        line.startswith("augmentation is on, in training only, on cpu: GPUAugmentation(horizontal") for line in lines
    )


def test_callbacks_and_an_early_end():
    seen: list[object] = []

    class Watcher(Callback):
        def on_start(self, trainer):
            seen.append(("start", trainer.epoch))

        def on_epoch_end(self, trainer, record):
            seen.append((record["epoch"], trainer.step))
            if record["epoch"] == 2:
                trainer.stop()

        def on_end(self, trainer):
            seen.append("end")

    Trainer(network(), loader(), config={"epochs": 9, **EXACT}, callbacks=[Watcher()]).fit()
    assert seen == [("start", 0), (1, 12), (2, 24), "end"]


def test_callbacks_are_told_of_the_end_where_one_fails_at_the_start():
    ended = []

    class Opening(Callback):
        def on_end(self, trainer):
            ended.append(trainer.step)

    class Failing(Callback):
        def on_start(self, trainer):
            raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        Trainer(network(), loader(), config={"epochs": 1, **EXACT}, callbacks=[Opening(), Failing()]).fit()
    assert ended == [0]


def test_max_steps_ends_in_the_middle_of_an_epoch_and_can_be_gone_on_from(tmp_path):
    config = {"epochs": 3, "max_steps": 17, "eval_interval": 9, "output": str(tmp_path), **EXACT}
    trainer = Trainer(network(), loader(), loader(), config=config)
    history = trainer.fit()
    assert (trainer.step, trainer.epoch) == (17, 1)
    assert "val_loss" in history.last
    more = Trainer(network(), loader(), loader(), config={**config, "max_steps": None})
    assert more.resume() == 17
    history = more.fit()
    assert (more.step, more.epoch) == (36, 3)
    assert len(history.losses) == 19
    assert history.epochs[0]["samples"] == 96, "the epoch's sums go on, too"


def test_max_steps_at_an_epochs_end_is_that_epochs_end(tmp_path):
    inputs = feed(samples(), batch_size=8, shuffle=True, device="cpu")
    trainer = Trainer(network(), inputs, config={"epochs": 3, "max_steps": 12, "output": str(tmp_path), **EXACT})
    trainer.fit()
    assert (trainer.step, trainer.epoch) == (12, 1)


# --- resuming ----------------------------------------------------------------------------------------------------


class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 44

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        return torch.rand(3, 8, 8, generator=draw), index % 2


def sources():
    inputs, labels = torch.stack([Pictures()[i][0] for i in range(44)]), torch.arange(44) % 2
    return {
        "loader": lambda: DataLoader(Pictures(), 4, shuffle=True),
        "data set": lambda: feed(Pictures(), batch_size=4, shuffle=True, device="cpu", num_workers=0),
        "tensors": lambda: feed((inputs, labels), batch_size=4, shuffle=True, seed=5, device="cpu"),
        "list": lambda: [(inputs[i : i + 4], labels[i : i + 4]) for i in range(0, 44, 4)],
    }


@pytest.mark.parametrize("kind", sources())
@pytest.mark.parametrize("augmented", [False, True])
def test_resuming_anywhere_continues_the_same_losses_bit_for_bit(kind, augmented, tmp_path):
    """With dropout, batch normalisation, accumulation, averages, a scheduler per step, and validation in between."""

    def trainer(output):
        torch.manual_seed(4)
        model = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.4), nn.Flatten(), nn.Linear(144, 2)
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=40)
        config = {
            "epochs": 3, "eval_interval": 1, "checkpoint_every_steps": 4, "keep_last": 99, "accumulate": 2,
            "ema_decay": 0.9, "output": str(output), **EXACT,
        }  # fmt: skip
        held_out = feed(Pictures(), batch_size=8, device="cpu", num_workers=0) if kind != "loader" else None
        val = DataLoader(Pictures(), 8, shuffle=True) if held_out is None else held_out
        augmentation = GPUAugmentation(seed=9) if augmented else None
        return Trainer(model, sources()[kind](), val, None, optimizer, scheduler, config, gpu_augmentation=augmentation)

    whole = trainer(tmp_path / "whole")
    history = whole.fit()
    final = weights(whole.model)
    entries = {entry.step: entry.path for entry in folder.entries(tmp_path / "whole" / "checkpoints")}
    assert set(entries) >= {4, 8, 11, 12, 16, 20, 22, 24, 28, 32, 33}
    for step in (4, 11, 20, 22):  # in an epoch's middle (20: between two optimizer steps of the first), and at its end
        again = trainer(tmp_path / f"from-{step}")
        assert again.resume(entries[step]) == step
        continued = again.fit()
        assert list(continued.losses) == list(history.losses)[step:]
        assert same(weights(again.model), final)
        expected = [record["val_loss"] for record in history.epochs]
        assert [record["val_loss"] for record in continued.epochs] == expected[-len(continued.epochs) :]
        expected_losses = [record["train_loss"] for record in history.epochs]
        assert [record["train_loss"] for record in continued.epochs] == expected_losses[-len(continued.epochs) :]


@pytest.mark.parametrize("kind", ["loader", "stream", "list"])
@pytest.mark.parametrize("steps", [3, 8, 11])
def test_where_max_steps_ends_a_run_it_is_gone_on_with_as_if_it_had_not(kind, steps, tmp_path):
    """Nothing shows of the validation at the end, nor of what is drawn before training goes on."""
    data = TensorDataset(torch.randn(30, 8), torch.arange(30) % 2)

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(data)

    def trainer(output, max_steps=None):
        torch.manual_seed(4)
        model = nn.Sequential(nn.Dropout(0.4), nn.Linear(8, 2))
        train = {
            "loader": lambda: DataLoader(data, 4, shuffle=True),
            "stream": lambda: DataLoader(Stream(), 4),
            "list": lambda: list(DataLoader(data, 4)),
        }[kind]()
        config = {"epochs": 3, "max_steps": max_steps, "eval_interval": 2, "output": str(output), **EXACT}
        return Trainer(model, train, DataLoader(data, 8, shuffle=True), config=config)

    whole = trainer(tmp_path / "whole").fit()
    trainer(tmp_path / "run", max_steps=steps).fit()
    again = trainer(tmp_path / "run")
    assert again.resume() == steps
    again.validate()
    torch.rand(3)
    continued = again.fit()
    assert list(continued.losses) == list(whole.losses)[steps:]
    assert continued.last["val_loss"] == whole.last["val_loss"]


def test_a_run_that_goes_on_by_another_figure_has_a_best_of_its_own(tmp_path, caplog):
    def trainer(epochs, monitor):
        torch.manual_seed(4)
        config = {"epochs": epochs, "monitor": monitor, "monitor_mode": "min", "output": str(tmp_path), **EXACT}
        return Trainer(network(), loader(), loader(), config=config)

    assert trainer(2, "val_loss").fit().best > 0
    again = trainer(4, "train_loss")
    with caplog.at_level("INFO"):
        again.resume()
    assert "epochs are judged by train_loss from here on, no longer by val_loss" in caplog.text
    assert again.history.best is None
    history = again.fit()
    losses = [record["train_loss"] for record in history.epochs]
    assert history.best == min(losses)
    best = Checkpoints(tmp_path / "checkpoints").best()
    assert load_checkpoint(best)["epoch"] == 3 + losses.index(min(losses))


@pytest.mark.parametrize("monitor", ["val_loss", "train_loss"])
def test_a_plateau_is_not_told_of_a_validation_that_a_longer_run_would_not_make(monitor, tmp_path):
    def rates(output, *, epochs=5, resume=False):
        torch.manual_seed(4)
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=10.0)
        config = {"epochs": epochs, "eval_interval": 2, "monitor": monitor, "output": str(output), **EXACT}
        trainer = Trainer(model, loader(), loader(), optimizer=optimizer, scheduler=scheduler, config=config)
        if resume:
            trainer.resume()
        return [record["lr"] for record in trainer.fit().epochs]

    whole = rates(tmp_path / "whole")
    begun = rates(tmp_path / "run", epochs=3)
    assert begun + rates(tmp_path / "run", resume=True) == whole
    assert len(set(whole)) > 1


@pytest.mark.parametrize("steps", [8, 11])
@pytest.mark.parametrize("stream", [False, True])
def test_workers_that_live_on_are_resumed_as_if_they_had(stream, steps, tmp_path):
    """Torch draws a seed when it starts them, and then no more: another start must not draw what follows otherwise."""
    data = TensorDataset(torch.randn(30, 8), torch.arange(30) % 2)

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(data)

    def trainer(output, max_steps=None):
        torch.manual_seed(4)
        model = nn.Sequential(nn.Dropout(0.4), nn.Linear(8, 2))
        lasting = {"num_workers": 1, "persistent_workers": True}
        train = DataLoader(Stream(), 4, **lasting) if stream else DataLoader(data, 4, shuffle=True, **lasting)
        config = {"epochs": 3, "max_steps": max_steps, "eval_interval": 1, "output": str(output), **EXACT}
        return Trainer(model, train, DataLoader(data, 8, **lasting), config=config)

    whole = trainer(tmp_path / "whole").fit()
    trainer(tmp_path / "run", max_steps=steps).fit()
    again = trainer(tmp_path / "run")
    assert again.resume() == steps
    assert list(again.fit().losses) == list(whole.losses)[steps:]


class Pressed(nn.Module):
    """Somebody presses Ctrl-C at a step."""

    def __init__(self, at: int | None) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Dropout(0.4), nn.Linear(192, 2))
        self.left = at

    def forward(self, images):
        if self.training and self.left is not None:
            self.left -= 1
            if not self.left:
                signal.raise_signal(signal.SIGINT)
        return self.layers(images)


@pytest.mark.parametrize("kind", ["loader", "stream", "list", "feed"])
def test_an_interrupted_fit_is_gone_on_with_by_the_next_one(kind):
    data = TensorDataset(torch.randint(0, 256, (30, 3, 8, 8), dtype=torch.uint8), torch.arange(30) % 2)

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(data)

    def trainer(at=None):
        torch.manual_seed(4)
        model = Pressed(at)
        train = {
            "loader": lambda: DataLoader(data, 4, shuffle=True),
            "stream": lambda: DataLoader(Stream(), 4),
            "list": lambda: list(DataLoader(data, 4)),
            "feed": lambda: feed(data.tensors, batch_size=4, shuffle=True, device="cpu"),
        }[kind]()
        return Trainer(
            model,
            train,
            config={"epochs": 3, **EXACT},
            gpu_augmentation=GPUAugmentation(rotation_degrees=20, seed=1),
            metrics={"accuracy": MulticlassAccuracy(num_classes=2)},
        )

    whole = trainer().fit()
    again = trainer(at=11)
    begun = again.fit()
    assert (begun.stopped_by, again.step) == (signal.SIGINT, 11)
    torch.rand(3)
    rest = again.fit()
    assert list(begun.losses) + list(rest.losses) == list(whole.losses)
    for record, expected in zip(rest.epochs, whole.epochs[1:], strict=True):
        assert all(record[name] == expected[name] for name in ("train_loss", "train_accuracy", "samples"))


def test_of_an_iterator_that_was_interrupted_what_is_left_is_trained_on():
    data = list(DataLoader(TensorDataset(torch.rand(30, 192), torch.arange(30) % 2), 4))
    trainer = Trainer(Pressed(3), iter(data), config={"epochs": 1, **EXACT})
    assert len(trainer.fit().losses) == 3
    rest = trainer.fit()
    assert len(rest.losses) == 5
    assert rest.last["samples"] == 30


def test_averages_that_a_resumed_run_begins_are_of_the_weights_that_it_resumed(tmp_path):
    """They were of those that the model was made with, and validation was of neither."""
    config = {"epochs": 2, "max_steps": 9, "output": str(tmp_path), **EXACT}
    Trainer(network(), loader(), loader(), config=config).fit()
    torch.manual_seed(1)
    again = Trainer(network(), loader(), loader(), config={**config, "max_steps": None, "ema_decay": 0.999})
    again.resume()
    resumed = [parameter.clone() for parameter in again.model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(again.stepper.ema.averages, resumed, strict=True))


def test_a_finished_run_has_nothing_left_to_do(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="fulltilt")
    config = {"epochs": 1, "output": str(tmp_path), **EXACT}
    Trainer(network(), loader(), config=config).fit()
    again = Trainer(network(), loader(), config=config)
    again.resume()
    assert again.fit().epochs == []
    assert "nothing is left to do: 1 of 1 epochs are over" in caplog.text
    assert "on cpu: 1 epoch of " in caplog.text


def test_a_learning_rate_that_has_no_effect_is_said(tmp_path, caplog):
    caplog.set_level(logging.INFO, "fulltilt.train")
    config = {"epochs": 1, "output": str(tmp_path), "lr": 0.01, **EXACT}
    Trainer(network(), loader(), config=config).fit()
    for rate in (0.01, 0.5):
        trainer = Trainer(network(), loader(), config={**config, "lr": rate})
        trainer.resume()
        assert ("lr 0.5 has no effect" in caplog.text) == (rate == 0.5)
        assert trainer.stepper.optimizers[0].param_groups[0]["lr"] == 0.01


def test_a_folder_of_an_earlier_run_is_spoken_of(tmp_path, caplog):
    caplog.set_level(logging.INFO, "fulltilt.train")
    config = {"epochs": 1, "output": str(tmp_path), **EXACT}
    Trainer(network(), loader(), config=config).fit()
    assert "earlier run" not in caplog.text
    Trainer(network(), loader(), config=config).fit()
    assert "holds checkpoints of an earlier run, which give way to this one's" in caplog.text


CLAIMS = """
import sys
from pathlib import Path
from fulltilt.train.checkpoint.folder import claimed
with claimed(Path(sys.argv[1])) as alone:
    print(alone, flush=True)
    sys.stdin.read()
"""


def test_another_process_that_trains_into_the_folder_is_spoken_of(tmp_path, caplog):
    (tmp_path / "checkpoints").mkdir()
    config = {"epochs": 1, "output": str(tmp_path), **EXACT}
    words = [sys.executable, "-c", CLAIMS, str(tmp_path / "checkpoints")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "True\n"
        Trainer(network(), loader(), config=config).fit()
        other.kill()
    (told,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert told.startswith(f"another process trains into {tmp_path}/checkpoints as well")
    caplog.clear()
    Trainer(network(), loader(), config=config).fit()
    assert "another process" not in caplog.text
    assert not (tmp_path / "checkpoints" / ".training").exists()


def test_a_checkpoint_whose_weights_are_not_numbers_is_passed_over(tmp_path, caplog):
    config = {"epochs": 2, "checkpoint_interval": 1, "output": str(tmp_path), **EXACT}
    trainer = Trainer(network(), loader(), config=config)
    trainer.fit()
    with torch.no_grad():
        trainer.model[0].weight[0, 0] = float("nan")
    trainer._course.save(0.0)
    trainer._saving.wait()
    again = Trainer(network(), loader(), config=config)
    assert again.resume() == 24
    assert bool(torch.isfinite(again.model[0].weight).all())
    assert "holds weights that are not numbers" in caplog.text


def test_a_checkpoint_of_another_model_names_the_keys(tmp_path):
    config = {"epochs": 1, "output": str(tmp_path), **EXACT}
    Trainer(network(), loader(), config=config).fit()
    other = nn.Sequential(nn.Linear(8, 2), nn.Linear(2, 2))
    with pytest.raises(CheckpointError, match=r"unexpected: 1\.running_mean.*of another shape: 0\.weight"):
        Trainer(other, loader(), config=config).resume()


# --- bad input ---------------------------------------------------------------------------------------------------


class Nothing(IterableDataset):
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([], "train_loader yields nothing: it has 0 batches"),
        (iter(()), "train_loader yields nothing in epoch 1"),
        (DataLoader(Nothing(), 4), "train_loader yields nothing in epoch 1"),
        (DataLoader(TensorDataset(*samples(3)), 4, drop_last=True), "train_loader yields nothing: it has 0 batches"),
        (5, "train_loader is int; expected a DataLoader, a fulltilt feed or an iterable of batches"),
        ([{"image": torch.zeros(2, 8)}], "train_loader gives a mapping with image: none of label, labels"),
        ([("a", torch.zeros(2))], "train_loader gives batches that begin with str"),
        ([(torch.tensor(1.0), torch.tensor(1))], "batches that begin with a tensor of no dimension; expected a tensor"),
        (
            [((torch.zeros(2, 8), torch.zeros(2)), torch.zeros(2))],
            r"begin with tuple; .* side by side, \(first, second,",
        ),
        (TensorDataset(*samples(3)), r"train_loader is TensorDataset; .* a data set becomes one with DataLoader\("),
        ([(torch.zeros(4, 8), torch.zeros(4).long(), torch.zeros(4, 3))], r"inputs \(.*\): .* with target="),
        ([samples(4), (torch.zeros(4, 9), samples(4)[1])], r"epoch 1, batch 2: the model can't .* had another shape"),
        ([(torch.zeros(0, 8), torch.zeros(0))], "train_loader gives a batch of 0 samples"),
        ([(torch.zeros(4, 8),)], "expected at least 2 values, found 1"),
        ([(torch.zeros(4, 9), torch.zeros(4).long())], "the model can't take this batch's inputs"),
        ([(torch.zeros(4, 8), torch.full((4,), 2))], "labels out of range: found 2"),
    ],
)
def test_a_loader_that_is_no_good(data, says):
    with pytest.raises(InputError, match=says):
        Trainer(network(), data, config={"epochs": 2, **EXACT}).fit()


def test_one_sample_left_over_is_too_few_for_batch_norm():
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    data = DataLoader(TensorDataset(*samples(9)), 4)
    with pytest.raises(InputError, match=r"epoch 1, batch 3: .*\(1, 8\).* batch norm needs several samples: drop_last"):
        Trainer(model, data, config={"epochs": 1, **EXACT}).fit()


def test_an_error_of_the_models_own_stays_what_it_is():
    class Late(nn.Linear):
        calls = 0

        def forward(self, x):
            Late.calls += 1
            if Late.calls == 3:
                raise RuntimeError("of my own")
            return super().forward(x)

    with pytest.raises(RuntimeError, match=r"^of my own$"):
        Trainer(Late(8, 2), loader(), config={"epochs": 1, **EXACT}).fit()


def test_an_iterator_that_is_used_up():
    batches = iter([samples(8), samples(8)])
    with pytest.raises(InputError, match="yields nothing in epoch 2; an iterator is used up after one epoch"):
        Trainer(network(), batches, config={"epochs": 2, **EXACT}).fit()


def test_a_loss_that_is_no_number_is_named_in_validation_too():
    trainer = Trainer(network(), loader(), loader(), nn.CrossEntropyLoss(reduction="none"))
    with pytest.raises(InputError, match="the loss must be one number"):
        trainer.validate()


def test_validation_data_that_is_no_good():
    with pytest.raises(InputError, match="val_loader yields nothing: it has 0 batches"):
        Trainer(network(), loader(), [])
    with pytest.raises(InputError, match="there is nothing to validate on"):
        Trainer(network(), loader()).validate()


def test_an_output_folder_that_can_not_be_written_is_found_before_training(tmp_path):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    with pytest.raises(InputError, match=r"can't write checkpoints into .*file/run"):
        Trainer(network(), loader(), config={"output": str(in_the_way / "run")})
    with pytest.raises(InputError, match="can't write checkpoints into /proc"):
        Trainer(network(), loader(), config={"output": "/proc/run"})


def test_a_scheduler_that_does_not_fit_the_run_is_named_before_it():
    model = network()
    optimizer, other = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    short = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=17)
    with pytest.raises(InputError, match=r"OneCycleLR was made for 17 steps .* this run has 18"):
        Trainer(model, loader(), optimizer=optimizer, scheduler=short, config={"epochs": 3, "accumulate": 2})
    Trainer(model, loader(), optimizer=optimizer, scheduler=short, config={"epochs": 3, "max_steps": 17, **EXACT}).fit()
    flat = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(InputError, match="ReduceLROnPlateau is told an epoch's figure"):
        Trainer(model, loader(), optimizer=optimizer, scheduler=flat, config={"scheduler_interval": "step"})
    of_other = torch.optim.lr_scheduler.StepLR(other, 1)
    with pytest.raises(InputError, match="StepLR was made for another optimizer"):
        Trainer(model, loader(), optimizer=optimizer, scheduler=[short, of_other], config={"epochs": 1})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"model": None}, "the model must be a Module, found NoneType"),
        ({"callbacks": [print]}, "a callback must be a Callback, found builtin_function_or_method"),
        ({"callbacks": Callback()}, r"callbacks is one Callback; expected a list"),
        ({"config": 3}, "config is int; expected a mapping"),
        ({"config": "run.yaml"}, r"config is str; .*read_config\(Path"),
        ({"model": nn.Flatten()}, "the model has no weights"),
        ({"optimizer": torch.optim.Adam}, r"optimizer is the class Adam; .* torch\.optim\.AdamW\(model\.parameters"),
        ({"optimizer": "adam"}, "optimizer is str; expected a torch.optim.Optimizer"),
        ({"scheduler": torch.optim.lr_scheduler.StepLR}, "scheduler: found the class StepLR; expected one made for"),
        ({"scheduler": "cosine"}, "scheduler: found 'cosine'; expected one made for the optimizer"),
        ({"criterion": nn.CrossEntropyLoss}, r"loss is the class CrossEntropyLoss; give one .*: CrossEntropyLoss\(\)"),
        ({"gpu_augmentation": "strong"}, "gpu_augmentation is 'strong'; expected a GPUAugmentation"),
        ({"gpu_augmentation": GPUAugmentation}, "gpu_augmentation is the class GPUAugmentation; expected a"),
        ({"metrics": ["accuracy"]}, "metrics is list; expected a torchmetrics Metric, a MetricCollection or a mapping"),
        ({"metrics": {"mse": MeanSquaredError}}, "metrics: mse is the class MeanSquaredError, not one made of it"),
    ],
)
def test_arguments_of_another_kind(given, says):
    with pytest.raises(InputError, match=says):
        Trainer(**{"model": network(), "train_loader": loader(), **given})


def test_settings_that_contradict_each_other():
    with pytest.raises(InputError, match=r"training\.epochs: found 0"):
        Trainer(network(), loader(), config={"epochs": 0})
    with pytest.raises(InputError, match="nan_policy rollback goes back to a checkpoint: set output"):
        Trainer(network(), loader(), config={"nan_policy": "rollback"})
    with pytest.raises(InputError, match="there are no checkpoints: set output"):
        Trainer(network(), loader()).resume()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"monitor": "val_los"}, r"found 'val_los' \(did you mean val_loss\?\); there are train_loss, val_loss"),
        ({"monitor": "val_accuracy"}, "found 'val_accuracy'; there are train_loss, val_loss"),
    ],
)
def test_a_figure_that_will_never_be_there_is_not_waited_for(config, says):
    with pytest.raises(InputError, match=r"training\.monitor: " + says):
        Trainer(network(), loader(), loader(), config=config)


def test_resuming_from_a_path_writes_nothing_beside_it(tmp_path):
    config = {"epochs": 1, "output": str(tmp_path), **EXACT}
    Trainer(network(), loader(), config=config).fit()
    (saved,) = folder.entries(tmp_path / "checkpoints")
    again = Trainer(network(), loader(), config={"epochs": 2, **EXACT})
    assert again.resume(saved.path) == 12
    assert len(again.fit().losses) == 12
    assert {path.name for path in saved.path.parent.iterdir()} == {saved.path.name}


def test_parts_that_are_kept_in_eval_mode_stay_so_through_validation():
    model = network()

    class Frozen(Callback):
        def on_start(self, trainer):
            trainer.model[1].eval()

    Trainer(model, loader(), loader(), config={"epochs": 2, "eval_interval": 1, **EXACT}, callbacks=[Frozen()]).fit()
    assert not model[1].training
    assert model[3].training


# --- what does not fit, and what is not this run's ---------------------------------------------------------------


def test_a_checkpoint_that_does_not_fit_changes_nothing(tmp_path):
    """Whichever of its parts it is that does not."""

    def trainer(optimizer=torch.optim.SGD, schedulers=1, data=None, kind=torch.optim.lr_scheduler.StepLR, **config):
        torch.manual_seed(1)
        model = network()
        made = optimizer(model.parameters(), lr=0.01)
        steps = [kind(made, 1) for _ in range(schedulers)]
        config = {"epochs": 1, "max_steps": 5, **EXACT, **config}
        return Trainer(model, data or feed(samples(), batch_size=8, device="cpu"), None, None, made, steps, config)

    trainer(output=str(tmp_path), ema_decay=0.9).fit()
    (saved,) = folder.entries(tmp_path / "checkpoints")
    others = {
        "is not of Adam": trainer(torch.optim.Adam),
        "1 schedulers, this run 2": trainer(schedulers=2),
        "is not CosineAnnealingLR: it has .*step_size": trainer(kind=torch.optim.lr_scheduler.CosineAnnealingLR),
        "is not ExponentialLR: it has .*step_size": trainer(kind=torch.optim.lr_scheduler.ExponentialLR),
        "this feed has length=40, the saved one had 96": trainer(data=feed(samples(40), batch_size=8, device="cpu")),
        "not that of an iterable of batches": trainer(data=[samples(8)] * 12),
    }
    for says, other in others.items():
        before, place = weights(other.model), other._training.source.state_dict()
        with pytest.raises(InputError, match=says):
            other.resume(saved.path)
        assert same(weights(other.model), before), says
        assert not other.stepper.optimizers[0].state, says
        assert other._training.source.state_dict() == place, says
        assert (other.step, other.epoch) == (0, 0), says
    assert trainer().resume(saved.path) == 5


def test_weights_in_another_order_are_not_this_optimizers(tmp_path):
    def trainer(turned):
        model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))
        parameters = list(model.parameters())
        optimizer = torch.optim.AdamW(parameters[::-1] if turned else parameters)
        return Trainer(model, loader(), None, None, optimizer, config={"epochs": 1, "output": str(tmp_path), **EXACT})

    trainer(turned=False).fit()
    other = trainer(turned=True)
    before = weights(other.model)
    with pytest.raises(InputError, match=r"exp_avg of weight 0 has the shape \(4, 8\), the weight of AdamW \(2,\)"):
        other.resume()
    assert same(weights(other.model), before)


class Fewer(IterableDataset):
    """Gives so many samples as it has been told, without a length."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(zip(*samples(self.count), strict=True))


@pytest.mark.parametrize("kind", ["list", "iterable data set"])
def test_going_on_with_less_data_than_was_seen_is_said(kind, tmp_path, caplog):
    def data(count):
        if kind == "list":
            return [samples(8)] * (count // 8)
        return DataLoader(Fewer(count), 8)

    config = {"epochs": 2, "max_steps": 5, "output": str(tmp_path), **EXACT}
    Trainer(network(), data(96), config=config).fit()
    for count, said in ((96, False), (24, True)):
        again = Trainer(network(), data(count), config={**config, "max_steps": None})
        again.resume(next(e.path for e in folder.entries(tmp_path / "checkpoints") if e.step == 5))
        caplog.clear()
        again.fit()
        assert ("no batch after the 5 that the checkpoint had been through" in caplog.text) is said


# --- batches that are mappings -----------------------------------------------------------------------------------


class Named(nn.Module):
    """Takes its inputs by name."""

    def __init__(self):
        super().__init__()
        self.images, self.extra = nn.Linear(8, 2), nn.Linear(3, 2)

    def forward(self, image, mask=None, features=None):
        assert mask is None, "the target is no input"
        out = self.images(image)
        return out if features is None else out + self.extra(features)


class Records(torch.utils.data.Dataset):
    def __init__(self, *keys):
        self.keys = keys

    def __len__(self):
        return 24

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        inputs, features = torch.randn(8, generator=draw), torch.randn(3, generator=draw)
        found = {"label": int(inputs[0] > 0), "features": features, "image": inputs, "path": f"{index}.png"}
        found |= {"y": found["label"], "mask": found["label"], "index": index}
        return {key: found[key] for key in self.keys}


def plain_losses(model, keys, target):
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for batch in DataLoader(Records(*keys, target), 8):
        loss = functional.cross_entropy(model(**{key: batch[key] for key in keys}), batch[target])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("make", "keys", "inputs", "target"),
    [
        (Named, ("label", "features", "image", "path", "index"), ("image", "features"), "label"),
        (Named, ("image", "y"), ("image",), "y"),
        (Named, ("image", "features", "mask"), ("image", "features"), "mask"),
        (lambda: nn.Sequential(nn.Linear(8, 2)), ("label", "index", "image", "path"), ("image",), "label"),
    ],
)
def test_mappings_are_taken_apart_by_the_names_of_the_models_parameters(make, keys, inputs, target):
    torch.manual_seed(0)
    theirs = make()
    torch.manual_seed(0)
    ours = make()
    records = DataLoader(Records(*keys), 8)
    metrics = {"accuracy": MulticlassAccuracy(num_classes=2)}
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    trainer = Trainer(ours, records, records, None, optimizer, config={"epochs": 1, **EXACT}, metrics=metrics)
    if isinstance(theirs, nn.Sequential):
        theirs.forward = lambda image, forward=theirs.forward: forward(image)
    assert list(trainer.fit().losses) == plain_losses(theirs, inputs, target)
    assert {"val_loss", "val_accuracy", "train_accuracy"} <= set(trainer.history.last)


@pytest.mark.parametrize(
    ("data", "target", "says"),
    [
        ({"a": 1}, "auto", "a mapping with a: none of label, labels, .*say which is the target with target='key'"),
        ({"image": 1, "label": 1, "y": 1}, "auto", "several of label"),
        (
            {"image": 1, "label": 1},
            "kind",
            "target=.kind. is not in the batches of train_loader",
        ),
        ({"image": 1, "label": 1}, 1, "target=1 is a number, but train_loader gives dict"),
        ({"a": 1, "b": 1, "label": 1}, "auto", r"with a, b, label, .* the model takes \(image, mask, features\)"),
    ],
)
def test_mappings_that_can_not_be_taken_apart(data, target, says):
    batch = {key: torch.zeros(4, 8) for key in data}
    with pytest.raises(InputError, match=says):
        Trainer(Named(), [batch], target=target, config={"epochs": 1, **EXACT}).fit()


def test_mappings_and_tuples_are_not_mixed():
    tuples, mappings = [(torch.zeros(4, 8), torch.zeros(4).long())], DataLoader(Records("image", "label"), 8)
    for first, second in ((tuples, mappings), (mappings, tuples)):
        with pytest.raises(InputError, match=r"val_loader gives .*, the other loader does not"):
            Trainer(Named(), first, second, config={"epochs": 1, **EXACT}).fit()
    with pytest.raises(InputError, match="target='label' is a key, but train_loader gives tuple"):
        Trainer(Named(), tuples, target="label", config={"epochs": 1, **EXACT}).fit()


def test_an_augmentation_finds_the_images_of_a_mapping_and_their_masks():
    seen = []

    class Masks(nn.Conv2d):
        def forward(self, image, features):
            seen.append(image.detach().clone())
            return super().forward(image) + 0 * features.sum()

    image, features = torch.rand(4, 3, 8, 8), torch.zeros(4, 2)
    batch = {"features": features, "mask": (image[:, :1] > 0.5).float(), "image": image}
    augmentation = GPUAugmentation(horizontal_flip_prob=1.0, rotation_degrees=0, brightness=0, contrast=0, seed=1)
    targets = []

    def loss(outputs, target):
        targets.append(target)
        return functional.binary_cross_entropy_with_logits(outputs, target)

    Trainer(Masks(3, 1, 1), [batch], None, loss, config={"epochs": 1, **EXACT}, gpu_augmentation=augmentation).fit()
    torch.testing.assert_close(seen[0], image.flip(-1))
    torch.testing.assert_close(targets[0], batch["mask"].flip(-1))
    Trainer(
        Masks(3, 1, 1), [batch], None, loss, config={"epochs": 1, **EXACT},
        gpu_augmentation=lambda found: {**found, "image": -found["image"]},
    ).fit()  # fmt: skip
    torch.testing.assert_close(seen[-1], -image)
