"""What the catalogue promises of every recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from fulltilt.errors import InputError
from fulltilt.recipes.catalog import CONFIGS, RECIPES, recipe_named
from fulltilt.train.config.file import read_config

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=RECIPES.values(), ids=RECIPES)
def recipe(request):
    return request.param


def test_all_its_files_can_be_read(recipe):
    for path in (recipe.after, recipe.before, *map(recipe.variant, recipe.variants)):
        config = read_config(path, look_up=True)
        assert recipe.metric.removeprefix("val_") in config.metrics
        assert config.training.monitor == recipe.metric


def test_before_and_after_train_the_same(recipe):
    for small in (False, True):
        before, after = (recipe.config(side, small=small) for side in ("before", "after"))
        assert before.model == after.model
        assert before.metrics == after.metrics
        assert before.gpu_augmentation == after.gpu_augmentation
        for key in ("epochs", "lr", "optimizer", "scheduler", "loss", "seed"):
            assert getattr(before.training, key) == getattr(after.training, key), key


def test_its_parts_are_easy_to_have(recipe):
    assert sum(p.numel() for p in recipe.model(small=True).parameters()) > 0
    assert callable(recipe.loss)


def test_every_configuration_belongs_to_a_recipe():
    known = {path for r in RECIPES.values() for path in (r.after, r.before, *map(r.variant, r.variants))}
    assert set(CONFIGS.glob("*.yaml")) == known


def test_the_folder_in_the_root_is_the_packages():
    assert (ROOT / "recipes").resolve() == CONFIGS.resolve()


def test_an_unknown_name_says_which_there_are():
    with pytest.raises(InputError, match="no recipe 'forecasts'; there are segmentation, classification"):
        recipe_named("forecasts")
