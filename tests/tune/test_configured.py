"""`batch_size: auto` of a configuration file: the size found with its own model and data, once, and kept."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from fulltilt.cli.train import train
from fulltilt.errors import InputError
from fulltilt.train.build import make_trainer
from fulltilt.train.config.file import make_config, parse_config
from fulltilt.tune import settle_batch_size

SOURCES = """
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

def tensors(count=200):
    return torch.randn(count, 8), torch.randint(0, 2, (count,))

def loader():
    return DataLoader(TensorDataset(*tensors()), batch_size=5)

class Samples(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        return torch.randn(8), index % 2

class Records(Samples):
    def __getitem__(self, index):
        return {"label": index % 2, "path": f"{index}.png", "image": torch.randn(8)}

class Stream(IterableDataset):
    def __iter__(self):
        for _ in range(300):
            yield torch.randn(8), 1
"""
MODEL = {"name": "mlp", "args": {"inputs": 8, "outputs": 2, "hidden": 4}}


@pytest.fixture(autouse=True)
def inside(tmp_path, monkeypatch):
    (tmp_path / "tuned_sources.py").write_text(SOURCES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("tuned_sources", None)


def settings(source, *, training=None, **data):
    return make_config(
        {
            "data": {"source": f"tuned_sources:{source}", "batch_size": "auto", **data},
            "model": MODEL,
            "training": {"device": "cpu", **(training or {})},
        }
    )


@pytest.mark.parametrize(
    ("source", "args", "allowed"),
    [
        ("tensors", {}, (32, 64, 96, 128, 160, 192)),
        ("tensors", {"count": 20}, (15, 16, 17, 18, 19, 20)),
        ("tensors", {"count": 5}, (5,)),
        ("Samples", {}, (32, 64, 96)),
        ("Records", {}, (32, 64, 96)),
        ("Stream", {}, range(32, 513, 32)),
    ],
)
def test_a_size_that_the_data_can_fill(source, args, allowed, capsys):
    before = torch.get_rng_state()
    config = settings(source, args=args, num_workers=0, training={"ema_decay": 0.9, "loss": "cross_entropy"})
    settled = settle_batch_size(config)
    assert settled.data.batch_size in allowed
    assert type(settled.data.batch_size) is int
    assert settled.model_copy(update={"data": config.data}) == config  # nothing else is another
    assert torch.equal(torch.get_rng_state(), before)
    assert "← chosen" in capsys.readouterr().err
    with_it = settled.training.model_copy(update={"epochs": 1})
    assert make_trainer(settled.model_copy(update={"training": with_it})).fit().steps > 0


def test_a_number_is_left_alone():
    config = settings("tensors", batch_size=24)
    assert settle_batch_size(config) is config


def test_a_source_with_batches_of_its_own_is_refused():
    with pytest.raises(InputError, match="tuned_sources:loader gives batches of 5 itself"):
        settle_batch_size(settings("loader"))


def test_processes_that_could_not_agree_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="or each process would choose for itself"):
        settle_batch_size(settings("tensors"))


def test_a_trainer_made_without_settling_says_what_to_do():
    with pytest.raises(InputError, match=r"'auto' has to be made a number first: .*settle_batch_size"):
        make_trainer(settings("tensors"))


def test_images_and_masks_go_through_their_feed_and_augmentation(inside):
    for name in ("pictures", "masks"):
        (inside / name).mkdir()
    for index in range(40):
        pixels = np.random.default_rng(index).integers(0, 256, (20, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(inside / "pictures" / f"{index}.png")
        Image.fromarray((pixels[..., 0] > 128).astype(np.uint8)).save(inside / "masks" / f"{index}.png")
    config = parse_config(
        "data: {source: pictures, masks: masks, val_share: 0.1, batch_size: auto, size: 16}\n"
        "model: {name: small_unet, args: {width: 2}}\n"
        "gpu_augmentation: {preset: minimal}\n"
        "training: {device: cpu}\n"
    )
    assert settle_batch_size(config).data.batch_size in (29, 30, 31, 32)


def test_the_command_finds_it_once_and_a_resumed_run_keeps_it(inside, capsys):
    content = {
        "data": {"source": "tuned_sources:tensors", "batch_size": "auto"},
        "model": MODEL,
        "training": {"device": "cpu", "epochs": 1, "output": "out", "seed": 1},
        "logging": {"tensorboard": False},
    }
    (inside / "run.yaml").write_text(yaml.safe_dump(content))
    train(inside / "run.yaml", [])
    assert "← chosen" in capsys.readouterr().err
    saved = yaml.safe_load((inside / "out" / "config.yaml").read_text())["data"]["batch_size"]
    assert saved in range(32, 193, 32)
    train(inside / "run.yaml", ["training.epochs=2"], resume=True)
    assert "← chosen" not in capsys.readouterr().err
    assert yaml.safe_load((inside / "out" / "config.yaml").read_text())["data"]["batch_size"] == saved
