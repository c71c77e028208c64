"""What each recipe reaches, before and after, and what larger batches cost.

    python benchmarks/quality.py --json FILE                        all four, at the small size: minutes on two cores
    python benchmarks/quality.py forecast --full --json FILE        one, at its full size: hours

*Before* is the plain loop with the settings that the guide sets out to improve, *after* is `fulltilt train`. Each
trains along its whole schedule, with the same samples. Rates don't matter: this runs anywhere, beside other work too.

Of the forecast, *the last reading* is what comes out where nothing is learnt: what was read last, forecast unchanged.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from fulltilt.bench.ground import machine_facts, now
from fulltilt.bench.guides.claims import WORKLOADS
from fulltilt.bench.results import joined
from fulltilt.machine.files import write_whole
from fulltilt.recipes.catalog import Recipe, Side, recipe_named
from fulltilt.recipes.forecast import windows
from fulltilt.recipes.forecast_data import QUANTITIES
from fulltilt.recipes.plain import train_plainly
from fulltilt.train.build import make_trainer

TIMES_LARGER = {"classification": 2, "forecast": 3}
"""By how much the batches of *after* are larger at the full size on an H200."""
TIMES_LONGER = 4
"""What larger batches cost is looked at in trainings so much longer as well."""


def main() -> None:
    parser = argparse.ArgumentParser(description="What recipes reach, and what larger batches cost.")
    parser.add_argument("recipes", nargs="*", default=WORKLOADS, help="all of them, if none is named")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--full", action="store_true", help="at the full size")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="of the configuration, on both sides")
    parser.add_argument("--json", type=Path, required=True, help="other recipes in it stay")
    wanted = parser.parse_args()
    cases: list[dict[str, Any]] = []
    for recipe in map(recipe_named, wanted.recipes):
        if recipe.name == "forecast":
            cases.append(unlearnt(recipe, wanted.set, small=not wanted.full))
        trainings: list[tuple[Side, int, int]] = [("before", 1, 1), ("after", 1, 1)]
        if (larger := TIMES_LARGER.get(recipe.name)) is not None:
            trainings += [("after", larger, 1), ("after", 1, TIMES_LONGER), ("after", larger, TIMES_LONGER)]
        for side, times, longer in trainings:
            for seed in wanted.seeds:
                cases.append(trained(recipe, side, times, longer, wanted.set, seed=seed, small=not wanted.full))
                found = {"machine": machine_facts({}), "date": now(), "cases": cases}
                result = joined(wanted.json, found, by="workload", order=WORKLOADS)
                write_whole(wanted.json, json.dumps(result, indent=1) + "\n")


def unlearnt(recipe: Recipe, overrides: list[str], *, small: bool) -> dict[str, Any]:
    """The metric of a forecast that repeats the last reading of each window."""
    from torchmetrics import R2Score

    inputs, targets = windows(**recipe.config("after", overrides, small=small).data.full_val_args)
    metric = round(float(R2Score()(inputs[:, QUANTITIES.index("pm25"), -1], targets)), 4)
    print(f"{recipe.name}: the last reading: {recipe.metric} {metric:.4f}", flush=True)
    return {
        "workload": recipe.name, "key": "the last reading", "small": small, "metric_name": recipe.metric,
        "metric": metric,
    }  # fmt: skip


def trained(
    recipe: Recipe, side: Side, times_larger: int, times_longer: int, overrides: list[str], *, seed: int, small: bool
) -> dict[str, Any]:
    """One training, and what it reached."""
    before = recipe.config("before", overrides, small=small).data.batch_size
    assert isinstance(before, int), "a plain loop searches for nothing"
    size = times_larger * before
    config = recipe.config(side, [*overrides, f"data.batch_size={size}"], small=small)
    with tempfile.TemporaryDirectory() as folder:
        epochs = times_longer * config.training.epochs
        changes = {"seed": seed, "output": folder, "epochs": epochs, "eval_interval": epochs}
        config = config.model_copy(update={"training": config.training.model_copy(update=changes)})
        history = train_plainly(config) if side == "before" else make_trainer(config).fit()
    metric = round(history.last[recipe.metric], 4)
    what = f"{side}, batches of {size}, {epochs} epochs, seed {seed}"
    print(f"{recipe.name}: {what}: {recipe.metric} {metric:.4f}", flush=True)
    return {
        "workload": recipe.name, "key": side, "batch_size": size, "times_longer": times_longer,
        "steps": len(history.losses), "seed": seed, "small": small, "metric_name": recipe.metric, "metric": metric,
    }  # fmt: skip


if __name__ == "__main__":
    main()
