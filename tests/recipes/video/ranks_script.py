"""For torchrun: the recipe's training, its losses written down. Also called in one process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from fulltilt.recipes.catalog import RECIPES
from fulltilt.train import process_group
from fulltilt.train.build import make_trainer

GLOBAL_BATCH = 4
SETTINGS = (
    "data.args={count: 6, clips: 2, frames: 64, length: 32, height: 32, width: 32, size: 32, threads: 1}",
    "data.val_args={count: 3, seed: 1, clips: 1, length: 64, jitter: false}",
    "data.num_workers=0",
    "data.val_batch_size=1",  # three videos, which two ranks can't halve
    "model.args={classes: 4, widths: [8, 16], blocks: 1, reduction: 2, hidden: 16}",
    "training.epochs=3",
    "training.use_amp=false",
    "training.eval_interval=3",
    "training.device=cpu",
)


def run(ranks: int) -> dict[str, object]:
    """Losses of every step, and the last validation."""
    recipe = RECIPES["video"]
    trainer = make_trainer(recipe.config("after", [*SETTINGS, f"data.batch_size={GLOBAL_BATCH // ranks}"]))
    history = trainer.fit()
    record = {name: value for name, value in history.last.items() if name.startswith("val_") and "second" not in name}
    return {"losses": list(history.losses), "last": record, "main": trainer.is_main}


if __name__ == "__main__":
    with process_group():
        found = run(int(sys.argv[2]))
    if found["main"]:
        Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")
