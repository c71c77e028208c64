"""The plain loop is the ordinary one: on the CPU its losses are the Trainer's, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

from fulltilt.errors import InputError
from fulltilt.recipes import plain
from fulltilt.recipes.catalog import RECIPES
from fulltilt.recipes.plain import loaders, train_plainly
from fulltilt.train.build import make_trainer
from fulltilt.train.config.file import parse_config

SMALL = """
data:
  source: fulltilt.train.shapes:shapes
  args: {count: 64, size: 16}
  val_share: 0.25
  batch_size: 8
  num_workers: 0
  shuffle: false
model: {name: "tests.recipes.test_plain:Floats"}
training: {epochs: 3, lr: 1e-2, eval_interval: 2, seed: 3, scheduler: onecycle, loss: cross_entropy, clip_norm: 1.0}
metrics:
  accuracy: {name: MulticlassAccuracy, args: {num_classes: 4}}
"""


class Floats(torch.nn.Module):
    """Tensors in memory come as they are: 8-bit."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(4))
        self.layers(torch.zeros(1, 3, 16, 16))

    def forward(self, images):
        return self.layers(images.float() / 255)


def config(*overrides, tmp_path=None):
    text = SMALL.replace("tests.recipes.test_plain:Floats", f"{__name__}:Floats")
    return parse_config(text, [*overrides, *([f"training.output={tmp_path}"] if tmp_path else [])])


def test_losses_and_metrics_are_the_trainers():
    mine, its = train_plainly(config()), make_trainer(config()).fit()
    assert mine.steps == its.steps == 18
    assert mine.losses == its.losses
    for record, other in zip(mine.epochs, its.epochs, strict=True):
        for name in ("train_loss", "train_accuracy", "val_loss", "val_accuracy"):
            assert record.get(name) == pytest.approx(other.get(name), abs=1e-6), name
    assert [("val_loss" in record) for record in mine.epochs] == [False, True, True]
    assert mine.last["samples"] == 48
    assert 0 <= mine.last["waited_seconds"] < mine.last["seconds"]


def test_arguments_of_one_callable_hold_for_validation():
    sources = ["data.val_share=null", "data.val_source=fulltilt.train.shapes:shapes", "data.val_args={seed: 1}"]
    train, val = loaders(config(*sources))
    assert len(train.dataset) == len(val.dataset) == 64
    assert not torch.equal(train.dataset[0][0], val.dataset[0][0])


def test_it_saves_as_often_as_the_file_says(tmp_path):
    train_plainly(config("training.checkpoint_interval=2", tmp_path=tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plain-0002.pt", "plain-0003.pt"]
    assert set(torch.load(tmp_path / "plain-0003.pt")) == {"model", "optimizer", "epoch"}


def test_it_ends_where_it_is_told_to():
    history = train_plainly(config("training.max_steps=7"))
    assert history.steps == 7
    assert len(history.epochs) == 2
    assert "val_accuracy" in history.last


def test_an_epoch_is_told_when_it_is_over(tmp_path):
    """Not at the end of all: a person looks at it meanwhile."""

    def leave(record):
        raise KeyboardInterrupt(record["epoch"])

    with pytest.raises(KeyboardInterrupt, match="1"):
        train_plainly(config("training.checkpoint_interval=1", tmp_path=tmp_path), each=leave)
    assert [path.name for path in tmp_path.iterdir()] == ["plain-0001.pt"]


def test_precision_is_what_the_file_asks_for():
    assert (
        train_plainly(config("training.max_steps=6")).losses
        != train_plainly(config("training.max_steps=6", "training.use_amp=true")).losses
    )
    assert plain._precision(config("training.precision=fp16").training) is torch.float16
    assert plain._precision(config().training) is None


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("training.ema_decay=0.9", "training.ema_decay: a plain loop does not do that"),
        ("training.accumulate=2", "training.accumulate: a plain loop does not"),
        ("training.precision=tf32", "training.precision=tf32: a plain loop does not"),
        ("data.batch_size=auto", "data.batch_size: 'auto' is not for a plain loop"),
        ("training.loss=null", "training.loss: missing"),
        ("data={source: 'fulltilt.train.shapes:shapes', args: {count: 4}, drop_last: true}", "gives no batch"),
    ],
)
def test_what_it_does_not_do_is_refused(override, says):
    with pytest.raises(InputError, match=says):
        train_plainly(config(override))


def test_loaders_take_what_a_tuned_script_gives_them(tmp_path):
    recipe = RECIPES["classification"]
    small = recipe.config("before", [f"data.args={{count: 20, size: 32, root: {tmp_path}}}"], small=True)
    train, val = loaders(small, num_workers=0, pin_memory=False, batch_size=4)
    assert isinstance(train, DataLoader)
    assert train.batch_size == val.batch_size == 4
    assert len(train.dataset) == 16
    assert len(val.dataset) == 4
    images, labels = next(iter(train))
    assert recipe.loss(recipe.model(small=True)(images), labels).isfinite()


def test_the_command_prints_a_line_for_each_epoch(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(
        "import torch\nclass Net(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.last = torch.nn.Linear(768, 4)\n"
        "    def forward(self, x):\n        return self.last(x.flatten(1).float() / 255)\n"
    )
    (tmp_path / "small.yaml").write_text(SMALL.replace("tests.recipes.test_plain:Floats", "own:Net"))
    plain.main(["small.yaml", "training.epochs=2"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["epoch", "1"], ["epoch", "2"]]
    assert "val_accuracy" in lines[1]
    assert (tmp_path / "runs/small/plain-0002.pt").exists()
