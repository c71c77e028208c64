"""`fulltilt recipes new`: a recipe as the beginning of a project of one's own: config.yaml, model.py, README.md."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fulltilt.errors import FulltiltError, InputError
from fulltilt.recipes.catalog import Recipe

if TYPE_CHECKING:
    from fulltilt.recipes.files import Found

CONFIG: Final = "config.yaml"
MODEL: Final = "model.py"
README: Final = "README.md"
PICTURES: Final = ("classification", "segmentation")
"""Recipes whose own data are folders or CSV files of pictures, which can be looked at."""
_SIDE: Final = 16
"""A U-Net halves its pictures four times: sides are multiples of this."""
_LARGEST: Final = 512
_MANY: Final = 100
"""Of fewer pictures a larger share is needed to see anything by."""
_OTHER: Final = "--recipe classification"


def make_project(folder: Path, recipe: Recipe, *, data: Path | None = None, masks: Path | None = None) -> list[Path]:
    """Write a project into a folder that is empty or not there yet, and return its files.

    Args:
        data: the user's own: pictures in a folder or .csv; otherwise the project trains on generated ones.
        masks: the folder of masks of the same names.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name a folder")
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty; name a folder that is, or a new one")
    if data is None and masks is not None:
        raise InputError("masks belong to pictures: give these, too, with --data")
    content = _content(recipe)
    module = content["model"]["name"].partition(":")[0]
    if data is not None:
        from fulltilt.recipes.files import look

        if recipe.name not in PICTURES:
            raise InputError(
                f"--data: of {recipe.name} only the data that {content['data']['source']} reads are known; make the "
                f"project without it and see its {README} (allowed for {', '.join(PICTURES)})"
            )
        _use(look(data, masks), recipe, content)
    source = importlib.util.find_spec(module)
    assert source is not None
    assert source.origin is not None
    _rename(content, f"{module}:", f"{Path(MODEL).stem}:")
    if recipe.name == "segmentation":  # what holds for any pictures, not for the generated ones alone
        content["data"]["features"] = "fulltilt.assist:extract_features"
        content["model"]["args"] |= {"features": _numbers(content)}
        content["metrics"] = {"iou": {"name": "model:Iou"}}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG).write_text(_yaml(recipe, content), encoding="utf-8")
        shutil.copyfile(source.origin, folder / MODEL)
        (folder / README).write_text(_readme(recipe, folder, own=data is not None), encoding="utf-8")
    except OSError as error:
        raise FulltiltError(f"can't write into {folder} ({error.strerror or error}); name another folder") from error
    return [folder / name for name in (CONFIG, MODEL, README)]


def _content(recipe: Recipe) -> dict[str, Any]:
    """The sections as the recipe's file has them, and nothing that it leaves out."""
    return recipe.config().model_dump(mode="json", exclude_unset=True)


def _use(found: Found, recipe: Recipe, content: dict[str, Any]) -> None:
    """The user's own pictures in place of the generated ones."""
    data, model = content["data"], content["model"]
    for key in ("args", "val_source", "val_args"):
        data.pop(key, None)
    data |= {"source": str(found.source), "val_share": 0.1 if found.count >= _MANY else 0.2, "channels": found.channels}
    model["args"] = {**model["args"], "channels": found.channels}
    if recipe.name == "segmentation":
        if found.classes is not None:
            raise InputError(f"{found.source}: these pictures have labels and no masks; give --masks, or try {_OTHER}")
        if found.masks is not None:
            data["masks"] = str(found.masks)
        data["size"] = [min(_LARGEST, max(_SIDE, side // _SIDE * _SIDE)) for side in (found.height, found.width)]
    else:
        if found.classes is None:
            raise InputError(f"{found.source}: these pictures have masks and no labels; try --recipe segmentation")
        number = len(found.classes)
        model["args"]["classes"] = number
        content["metrics"]["accuracy"]["args"]["num_classes"] = number
    data["batch_size"] = min(data["batch_size"], max(1, found.count // 10))  # ten steps to an epoch, at least


def _numbers(content: Mapping[str, Any]) -> int:
    """How many `extract_features` makes of a picture."""
    import torch

    from fulltilt.assist import extract_features

    return len(extract_features(torch.zeros(content["data"].get("channels", 3), 8, 8)))


def _rename(content: Any, before: str, after: str) -> None:
    """References to the recipe's module become references to the file that is edited."""
    for key, value in content.items():
        if isinstance(value, dict):
            _rename(value, before, after)
        elif isinstance(value, str) and value.startswith(before):
            content[key] = value.replace(before, after, 1)


def _yaml(recipe: Recipe, content: Mapping[str, Any]) -> str:
    import yaml

    parts = [yaml.safe_dump({name: section}, sort_keys=False, allow_unicode=True) for name, section in content.items()]
    head = f"# fulltilt train {CONFIG}\n#\n# Begun with the recipe {recipe.name}: {recipe.title}.\n"
    return "\n".join([f"{head}# Every key that there is: fulltilt train {CONFIG} --print-config\n", *parts])


_OWN: Final = {
    "classification": """\
Your own pictures: a folder with a subfolder for each class, or a .csv with the columns `path` and `label` (paths are
relative to it). Say where they are, and how many classes there are:

    fulltilt train config.yaml data.source=/path/to/pictures data.args={} model.args.classes=10 \\
        metrics.accuracy.args.num_classes=10 training.output=runs/mine
""",
    "segmentation": """\
Your own pictures: a folder of them and one of masks with the same names (PNG; 0 is ground, anything else is what is
searched for), or a .csv with the columns `path` and `mask` (paths are relative to it):

    fulltilt train config.yaml data.source=/path/to/images data.masks=/path/to/masks data.args={} \\
        training.output=runs/mine
""",
}


def _readme(recipe: Recipe, folder: Path, *, own: bool) -> str:
    trains_on = "your data" if own else "generated data, which are made on the first run, into runs/data"
    parts = [
        f"# {folder.resolve().name}\n",
        f"Begun with fulltilt's recipe *{recipe.name}*: {recipe.title}. It trains on {trains_on}.\n",
        "    fulltilt train config.yaml\n"
        "    fulltilt train config.yaml training.lr=0.01 data.batch_size=64 training.output=runs/other\n"
        "    fulltilt train config.yaml --resume\n",
        "Run these here, in this folder: `model.py`, which is yours to edit, is looked for where the command is run.\n",
        "| | |\n|---|---|\n"
        "| config.yaml | data, model, training, augmentation, metrics; overridden by `section.key=value` |\n"
        "| model.py | the model, and what goes with it |\n"
        "| runs/config | checkpoints, log.jsonl, the configuration as it was used |\n",
    ]
    if not own:
        parts.append(_OWN.get(recipe.name, "Your own data: see the recipe's page in the documentation.\n"))
        if recipe.name in PICTURES:
            masks = " --masks /path/to/masks" if recipe.name == "segmentation" else ""
            parts.append(
                "Or have the configuration written for them, in another folder:\n\n"
                f"    fulltilt recipes new DIR --recipe {recipe.name} --data /path/to/pictures{masks}\n"
            )
    return "\n".join(parts)
