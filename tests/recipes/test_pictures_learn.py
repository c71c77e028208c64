"""Segmentation and classification learn, before and after alike, at the small size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fulltilt.errors import InputError
from fulltilt.recipes.catalog import RECIPES
from fulltilt.recipes.plain import train_plainly
from fulltilt.recipes.segmentation_model import Iou, Unet, bce_dice
from fulltilt.train.build import make_trainer
from fulltilt.train.config.file import read_config

NOISE = 0.08
"""Between seeds, of one side alone: 0.05 for IoU, 0.07 for accuracy (of 240 pictures)."""
TINY = (
    "data.batch_size=4",
    "training.max_steps=2",
    "training.epochs=1",
    "model.args={features: 4, width: 4, depth: 2}",
)


@pytest.fixture(autouse=True)
def _features_of_its_own(tmp_path, monkeypatch):
    """They are not kept for the next test."""
    monkeypatch.setenv("FULLTILT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", ["segmentation", "classification"])
def test_it_learns_before_and_after(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = RECIPES[name]
    quiet = ("training.eval_interval=100",)
    before = train_plainly(recipe.config("before", ["data.num_workers=0", *quiet], small=True))
    made = sorted(path.stat().st_mtime_ns for path in Path("runs/data").rglob("*.*"))
    after = make_trainer(recipe.config("after", quiet, small=True)).fit()
    assert sorted(path.stat().st_mtime_ns for path in Path("runs/data").rglob("*.*")) == made  # the same files
    figures = [side.last[recipe.metric] for side in (before, after)]
    assert min(figures) >= recipe.wanted, figures
    assert abs(figures[0] - figures[1]) <= NOISE, figures
    assert before.steps == after.steps


@pytest.mark.parametrize("variant", RECIPES["segmentation"].variants)
def test_every_variant_trains(variant, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sizes = ["data.args={count: 20, size: 32}", "training.seed=0"]
    sizes += [] if variant == "debug" else ["data.size=32"]
    history = make_trainer(read_config(RECIPES["segmentation"].variant(variant), [*sizes, *TINY])).fit()
    assert history.steps == 2
    assert 0 <= history.last["val_iou"] <= 1


def test_an_unknown_variant_says_which_there_are():
    with pytest.raises(InputError, match="lmsa_gpu_aug, low_memory, debug"):
        RECIPES["segmentation"].variant("fast")


def test_features_change_what_the_model_says():
    torch.manual_seed(0)
    model = Unet(features=4, width=4, depth=2)
    images, features = torch.rand(2, 3, 16, 16), torch.rand(2, 4)
    assert model(images).shape == (2, 16, 16)
    assert model(images).equal(model(images, features))  # begins with what a U-Net without them says
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(2):
        optimizer.zero_grad()
        bce_dice(model(images, features), torch.randint(0, 2, (2, 16, 16))).backward()
        optimizer.step()
    model.eval()
    assert not model(images, features).allclose(model(images, features.flip(0)))
    assert Unet(features=0, width=4, depth=1)(images).shape == (2, 16, 16)


def test_loss_and_metric_take_masks_of_255():
    logits = torch.randn(2, 8, 8, requires_grad=True)
    mask = torch.randint(0, 2, (2, 8, 8), dtype=torch.uint8)
    assert bce_dice(logits, mask) == bce_dice(logits, 255 * mask)
    sure = 20 * (2 * mask.float() - 1)
    assert bce_dice(sure, 255 * mask) < 1e-3
    assert bce_dice(-sure, mask) > 1
    metric = Iou()
    metric.update(sure, 255 * mask)
    assert metric.compute() == 1
    metric.update(-sure, mask)
    assert 0 < metric.compute() < 1


def test_loss_stays_finite_where_there_is_nothing_to_find():
    loss = bce_dice(torch.full((1, 8, 8), -30.0, requires_grad=True), torch.zeros(1, 8, 8))
    loss.backward()
    assert loss < 0.1
