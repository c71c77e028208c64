"""Recipes of pictures on a real GPU: in bf16, augmented there, from files; before and after reach the same."""

from __future__ import annotations

import pytest

from fulltilt.recipes.catalog import RECIPES
from fulltilt.recipes.plain import train_plainly
from fulltilt.train.build import make_trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:.*is multi-threaded, use of fork:DeprecationWarning"),  # a DataLoader on 3.12
]

MEDIUM = {
    "segmentation": (
        "data.args={count: 640, size: 128}",
        "data.size=128",
        "data.batch_size=16",
        "model.args={features: 4, width: 16, depth: 3}",
        "training.epochs=8",
        "training.lr=4e-3",
    ),
    "classification": (
        "data.args={count: 2400, size: 128}",
        "data.batch_size=64",
        "model.args={classes: 8, width: 32, blocks: [1, 1, 1]}",
        "training.epochs=8",
        "training.lr=4e-3",
    ),
}


@pytest.mark.parametrize("name", MEDIUM)
def test_it_learns_before_and_after(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FULLTILT_CACHE_DIR", str(tmp_path / "cache"))
    recipe = RECIPES[name]
    settings = (*MEDIUM[name], "data.num_workers=4", "training.eval_interval=100")
    before = train_plainly(recipe.config("before", settings))
    after = make_trainer(recipe.config("after", (*settings, "training.compile=false"))).fit()
    figures = [side.last[recipe.metric] for side in (before, after)]
    assert min(figures) >= recipe.wanted, figures
    assert abs(figures[0] - figures[1]) <= 0.05, figures
