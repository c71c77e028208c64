"""What larger batches cost: a recipe before and after, trained with the same samples.

    python benchmarks/quality.py forecast --batch 96 --samples 36800 --seeds 0 1 --json quality.json

*Before* is the plain loop with the guide's batch size, *after* is `fulltilt train` with another one. Both train along a
whole schedule, with as many steps as these samples make batches. Rates don't matter, so this runs anywhere: on a CPU in
fp32, in minutes to hours at the full size.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from fulltilt.bench.ground import joined, machine_facts, now
from fulltilt.bench.guides.claims import WORKLOADS
from fulltilt.machine.files import write_whole
from fulltilt.recipes.catalog import Recipe, Side, recipe_named
from fulltilt.recipes.plain import train_plainly
from fulltilt.train.build import make_trainer


def main() -> None:
    parser = argparse.ArgumentParser(description="What larger batches cost, at the same number of samples.")
    parser.add_argument("recipe", choices=WORKLOADS)
    parser.add_argument("--samples", type=int, required=True, help="to train with")
    parser.add_argument("--batch", type=int, required=True, help="batch size of after")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="of the configuration, on both sides")
    parser.add_argument("--small", action="store_true", help="the recipe's small size")
    parser.add_argument("--json", type=Path, required=True, help="other recipes in it stay")
    wanted = parser.parse_args()
    recipe = recipe_named(wanted.recipe)
    cases: list[dict[str, Any]] = []
    for seed in wanted.seeds:
        for side, overrides in (("before", ()), ("after", (f"data.batch_size={wanted.batch}",))):
            cases.append(
                trained(recipe, side, (*wanted.set, *overrides), samples=wanted.samples, seed=seed, small=wanted.small)
            )
            found = {"machine": machine_facts({}), "date": now(), "cases": cases}
            result = joined(wanted.json, found, by="workload", order=WORKLOADS)
            write_whole(wanted.json, json.dumps(result, indent=1) + "\n")


def trained(
    recipe: Recipe, side: Side, overrides: tuple[str, ...], *, samples: int, seed: int, small: bool
) -> dict[str, Any]:
    """One training, and what it reached."""
    config = recipe.config(side, overrides, small=small)
    size = config.data.batch_size
    assert isinstance(size, int), "an override has set it"
    steps = round(samples / size)
    with tempfile.TemporaryDirectory() as folder:
        changes = {"max_steps": steps, "seed": seed, "output": folder}
        config = config.model_copy(update={"training": config.training.model_copy(update=changes)})
        last = train_plainly(config).last if side == "before" else make_trainer(config).fit().last
    metric = round(last[recipe.metric], 4)
    print(f"{recipe.name}: {side}, {steps} steps of {size}, seed {seed}: {recipe.metric} {metric:.4f}", flush=True)
    return {
        "workload": recipe.name, "key": side, "batch_size": size, "steps": steps, "seed": seed,
        "metric_name": recipe.metric, "metric": metric,
    }  # fmt: skip


if __name__ == "__main__":
    main()
