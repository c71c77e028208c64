"""Which recipes there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fulltilt.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fulltilt.train.config.config import Config

CONFIGS = Path(__file__).parent / "configs"

Side = Literal["before", "after"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One workload: its configurations, and what training has to reach."""

    name: str
    title: str
    metric: str
    """The figure in the history that says how good the model is."""
    wanted: float
    """What it reaches at the small size, before and after."""
    small: tuple[str, ...]
    """Overrides that make it fit for two CPU cores and half a minute."""
    variants: tuple[str, ...] = ()
    """Further configurations: NAME_variant.yaml."""
    requires: str | None = None
    """The extra of the package that it needs."""
    by_hand: tuple[str, ...] = ()
    """Overrides of *before* for one who reads its data with a DataLoader of many workers, and knows how."""

    @property
    def after(self) -> Path:
        """For `fulltilt train`."""
        return CONFIGS / f"{self.name}.yaml"

    @property
    def before(self) -> Path:
        """For `python -m fulltilt.recipes.plain`."""
        return CONFIGS / f"{self.name}_before.yaml"

    def variant(self, name: str) -> Path:
        """The file of one of `variants`."""
        if name not in self.variants:
            raise InputError(f"{self.name} has no variant {name!r}; it has {', '.join(self.variants) or 'none'}")
        return CONFIGS / f"{self.name}_{name}.yaml"

    def to_json(self) -> dict[str, object]:
        """For `fulltilt recipes list --json`."""
        files = {"after": self.after, "before": self.before} | {name: self.variant(name) for name in self.variants}
        return {
            "name": self.name,
            "title": self.title,
            "metric": self.metric,
            "wanted": self.wanted,
            "small": list(self.small),
            "requires": self.requires,
            "files": {name: str(path) for name, path in files.items()},
        }

    def config(self, side: Side = "after", overrides: Sequence[str] = (), *, small: bool = False) -> Config:
        """The configuration, read; `overrides` as on the command line, after those of the small size."""
        from fulltilt.train.config.file import read_config

        path = self.before if side == "before" else self.after
        return read_config(path, [*(self.small if small else ()), *overrides])

    def model(self, overrides: Sequence[str] = (), *, small: bool = False) -> nn.Module:
        """The model, which is one for before and after."""
        from fulltilt.train.build import make_model

        return make_model(self.config("after", overrides, small=small))

    @property
    def loss(self) -> Callable[..., Tensor]:
        """Called with (outputs, target)."""
        from fulltilt.train.build import make_loss

        found = make_loss(self.config().training)
        assert found is not None, f"{self.after} names no loss"
        return found


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="segmentation",
            title="cells in 512×512 images, with extra features of each image",
            metric="val_iou",
            wanted=0.8,
            variants=("lmsa_gpu_aug", "low_memory", "debug"),
            small=(
                "data.args={count: 320, size: 48}",
                "data.val_share=0.2",
                "data.size=48",
                "data.num_workers=1",
                "data.batch_size=8",
                "model.args={features: 4, width: 8, depth: 2}",
                "training.epochs=6",
                "training.lr=5e-3",
            ),
        ),
        Recipe(
            name="classification",
            title="grey 128×128 images of eight classes",
            metric="val_accuracy",
            wanted=0.9,
            small=(
                "data.args={count: 1200, size: 48}",
                "data.val_share=0.2",
                "data.size=48",
                "data.num_workers=1",
                "data.batch_size=32",
                "model.args={classes: 8, width: 16, blocks: [1, 1, 1]}",
                "training.epochs=6",
                "training.lr=5e-3",
            ),
        ),
        Recipe(
            name="forecast",
            title="PM2.5 some hours ahead, from windows of sensor readings",
            metric="val_r2",
            wanted=0.8,
            small=(
                "data.args={split: train, hours: 3000, sensors: 8, window: 24, horizon: 3}",
                "data.batch_size=32",
                "data.num_workers=0",
                "model.args={sensors: 8, window: 24, widths: [16, 32], hidden: 32}",
                "training.epochs=5",
                "training.lr=1e-2",
                "training.use_amp=false",
                "training.eval_interval=5",
            ),
        ),
        Recipe(
            name="video",
            title="actions in untrimmed videos: which, from when to when",
            metric="val_map50",
            wanted=0.8,
            requires="video",
            by_hand=("data.args.threads=1",),
            small=(
                "data.args={count: 48, clips: 2, frames: 128, length: 48, height: 32, width: 32, size: 32, threads: 1}",
                "data.val_args={count: 16, seed: 1, clips: 1, length: 128, jitter: false}",
                "data.num_workers=0",
                "data.batch_size=4",
                "data.val_batch_size=8",
                "model.args={classes: 4, widths: [16, 32, 64], blocks: 1, reduction: 2, hidden: 64}",
                "training.epochs=8",
                "training.lr=8e-3",
                "training.use_amp=false",
                "training.eval_interval=8",
            ),
        ),
    )
}


def recipe_named(name: str) -> Recipe:
    """The recipe, or an error that lists those there are."""
    if name not in RECIPES:
        raise InputError(f"there is no recipe {name!r}; there are {', '.join(RECIPES)}")
    return RECIPES[name]
