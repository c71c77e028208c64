"""`fulltilt recipes`: whole trainings to begin with."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

recipes = typer.Typer(help="Complete trainings to start from.", no_args_is_help=True)


@recipes.callback()
def _recipes() -> None:
    pass


@recipes.command("list")
def list_recipes(
    *, as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list, in one line.")] = False
) -> None:
    """List the recipes: the file for `fulltilt train`, what it trains, and the metric it has to reach."""
    from fulltilt.recipes.catalog import RECIPES

    if as_json:
        import json

        print(json.dumps([recipe.to_json() for recipe in RECIPES.values()]))
        return
    width = max(map(len, RECIPES)) + 2
    for recipe in RECIPES.values():
        print(f"{recipe.name:{width}}{recipe.title}")
        extra = f'; needs the extra "{recipe.requires}"' if recipe.requires else ""
        print(f"{'':{width}}{recipe.metric} ≥ {recipe.wanted:g} at a small size on a CPU{extra}")
        files = [recipe.after, *map(recipe.variant, recipe.variants)]
        for path in files:
            print(f"{'':{width}}fulltilt train {_shown(path)}")
        print(f"{'':{width}}python -m fulltilt.recipes.plain {_shown(recipe.before)}\n")
    print("To see one learn here: fulltilt recipes new DIR --recipe NAME --small")
    print("With your own data:    fulltilt recipes new DIR --recipe NAME --data FOLDER_OR_CSV")


@recipes.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that is empty or not there yet.")],
    *,
    recipe: Annotated[str, typer.Option(help="Which one; `fulltilt recipes list` names them.")] = "classification",
    data: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER_OR_CSV", help="Your own data; by default generated data.", show_default=False),
    ] = None,
    masks: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Masks of images, of the same names (1.png or 1_mask.png).", show_default=False
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="QUANTITY",
            help="The column of your readings that is forecast; by default PM2.5, or the only one.",
            show_default=False,
        ),
    ] = None,
    small: Annotated[
        bool, typer.Option("--small", help="Generated data and a model that learn in half a minute on two CPU cores.")
    ] = False,
) -> None:
    """Start a project from a recipe: a configuration, the model to edit, a README with the commands."""
    from fulltilt.recipes.catalog import recipe_named
    from fulltilt.recipes.new import make_project

    project = make_project(folder, recipe_named(recipe), data=data, masks=masks, target=target, small=small)
    if project.own is not None:
        print(f"found {project.own.told}")
    for path in project.files:
        print(f"wrote {path}")
    print(f"next: cd {shlex.quote(str(folder))} && fulltilt train config.yaml")


def _shown(path: Path) -> str:
    """As one would type it in a clone of the repository; elsewhere the whole path."""
    near = Path("recipes") / path.name
    return str(near) if near.exists() else str(path)
