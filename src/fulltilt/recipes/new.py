"""`fulltilt recipes new`: a recipe as the beginning of a project of one's own: config.yaml, model.py, README.md."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fulltilt.errors import FulltiltError, InputError
from fulltilt.recipes.catalog import Recipe
from fulltilt.recipes.own_data import OwnData, use_own_data

CONFIG: Final = "config.yaml"
MODEL: Final = "model.py"
README: Final = "README.md"


@dataclass(frozen=True, kw_only=True)
class Project:
    """What was written."""

    files: tuple[Path, ...]
    own: OwnData | None
    """None: it trains on generated data."""


def make_project(
    folder: Path,
    recipe: Recipe,
    *,
    data: Path | None = None,
    masks: Path | None = None,
    target: str | None = None,
    small: bool = False,
) -> Project:
    """Write a project into a folder that is empty or not there yet.

    Args:
        data: the user's own, in a folder or .csv; otherwise the project trains on generated data.
        masks: the folder of masks of the same names.
        target: the quantity of the readings that is forecast; by default PM2.5, or the only one.
        small: generated data and a model of a size that learns in half a minute on two CPU cores.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name a folder")
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty; name a folder that is, or a new one")
    if data is None and masks is not None:
        raise InputError("masks belong to images: give these, too, with --data")
    if data is None and target is not None:
        raise InputError("a target is a quantity of your own readings: give these, too, with --data")
    if data is not None and small:
        raise InputError("--small is a size of generated data; with --data leave it out")
    content = _content(recipe, small=small)
    module = content["model"]["name"].partition(":")[0]
    own = None if data is None else use_own_data(recipe.name, content, data, masks, target)
    _rename(content, f"{module}:", f"{Path(MODEL).stem}:")
    if recipe.name == "segmentation":  # what holds for any pictures, not for the generated ones alone
        content["data"]["features"] = "fulltilt.assist:extract_features"
        content["model"]["args"] |= {"features": _numbers(content)}
        content["metrics"] = {"iou": {"name": "model:Iou"}}
    texts = {
        CONFIG: _yaml(recipe, content, own),
        MODEL: _source(module),
        README: _readme(recipe, folder, own, content["data"]),
        **({} if own is None else own.files),
    }
    _write(folder, texts)
    return Project(files=tuple(folder / name for name in texts), own=own)


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    """All of them or none: with a part of them the folder would be refused the next time, as it is not empty."""
    was_there = folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            # YAML has an escape for names that are not UTF-8; what is left is said to people.
            (folder / name).write_text(text, encoding="utf-8", errors="replace")
    except BaseException as error:
        with suppress(OSError):
            for name in texts:
                (folder / name).unlink(missing_ok=True)
            if not was_there:
                folder.rmdir()
        if not isinstance(error, OSError):
            raise
        raise FulltiltError(f"can't write into {folder} ({error.strerror or error}); name another folder") from error


def _source(module: str) -> str:
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).read_text(encoding="utf-8")


def _content(recipe: Recipe, *, small: bool) -> dict[str, Any]:
    """The sections as the recipe's file has them, and nothing that it leaves out."""
    return recipe.config(small=small).model_dump(mode="json", exclude_unset=True)


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


def _yaml(recipe: Recipe, content: Mapping[str, Any], own: OwnData | None) -> str:
    import yaml

    parts = [yaml.safe_dump({name: section}, sort_keys=False, allow_unicode=True) for name, section in content.items()]
    what = recipe.title if own is None else _in_a_line(own.told)
    head = f"# fulltilt train {CONFIG}\n#\n# Made from the recipe {recipe.name}: {what}.\n"
    return "\n".join([f"{head}# All keys: fulltilt train {CONFIG} --print-config\n", *parts])


def _in_a_line(text: str) -> str:
    """Without what ends a comment or can't stand in YAML: names of files and columns may hold anything."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


_OWN: Final = {
    "classification": (
        "--data /path/to/images",
        "A folder with a subfolder for each class, or a .csv with the columns `path` and `label`. Paths in a .csv are\n"
        "relative to it.",
    ),
    "segmentation": (
        "--data /path/to/images --masks /path/to/masks",
        "A folder of images and one of masks with the same names (PNG; 0 is background, anything else is the\n"
        "object), or a .csv with the columns `path` and `mask`. Paths in a .csv are relative to it.",
    ),
    "forecast": (
        "--data /path/to/readings",
        "A folder with a .csv for each sensor, or one .csv, of one sensor or with a column `sensor`: `time`, and a\n"
        "column for each quantity.",
    ),
    "video": (
        "--data /path/to/segments.csv",
        "Segments of videos in a .csv with the columns `path`, `label`, `start` and `end` (in seconds). Paths are\n"
        "relative to it.",
    ),
}
"""Options of the command for data of one's own, and what these have to look like."""


_TRAINED: Final = """## The trained model

```python
from pathlib import Path

from fulltilt.train.build import make_model
from fulltilt.train.checkpoint import Checkpoints, load_trained
from fulltilt.train.config.file import read_config

config = read_config(Path("runs/config/config.yaml"))
checkpoints = Checkpoints("runs/config/checkpoints")
model = make_model(config)
load_trained(model, checkpoints.load(checkpoints.best()))  # the best by training.monitor
model.eval()
```
"""

_PICTURE: Final = """## A picture

```python
import torch

{imports}from fulltilt.feed import ImageFiles, feed
from fulltilt.train.config.data import make_augmentation

options = {{"channels": config.data.channels, {features}"device": "cpu"}}  # where the model is
prepare = make_augmentation(config, seed=0).eval()  # size and scale as in validation, and nothing else
with torch.no_grad(), feed(ImageFiles(["photo.jpg"]), batch_size=1, augment=prepare, **options) as batches:
    for {inputs} in batches:
        {shown}
```
"""

_OF_PICTURES: Final = {
    "classification": {
        "imports": "",
        "features": "",
        "inputs": "(images,)",
        "shown": "print(model(images).softmax(1).tolist())  # how likely each class is",
    },
    "segmentation": {
        "imports": "from fulltilt.assist import extract_features\n",
        "features": '"features": extract_features, ',
        "inputs": "images, features",
        "shown": "print((model(images, features) > 0).float().mean().item())  # the object's share of the picture",
    },
}
"""What differs among recipes for pictures."""

_FORECAST: Final = """## A forecast

The model's inputs and outputs are scaled to mean 0 and deviation 1. `latest` gives the newest window and how it was
scaled; this prints the target at each sensor in its own unit, `horizon` (here {horizon}) hours after the last one
that all sensors cover:

```python
import torch

from model import latest

options = {{name: value for name, value in config.data.args.items() if name != "split"}}
inputs, scaling = latest(**options)
with torch.no_grad():
    print(scaling.target, scaling.of_target(model(inputs)).tolist())
```

The scaling follows from the hours to train on. Where readings are added after the training, keep it
(`json.dumps(asdict(scaling))`, `asdict` from `dataclasses`), and give it back: `latest(**options,
scaling=Scaling(**json.loads(kept)))`.
"""


def _readme(recipe: Recipe, folder: Path, own: OwnData | None, data: Mapping[str, Any]) -> str:
    begun = (
        f"{recipe.title}. It trains on generated data, which the first run writes to runs/data."
        if own is None
        else f"{own.told}."
    )
    parts = [
        f"# {folder.resolve().name}\n",
        f"Made from fulltilt's recipe *{recipe.name}*: {begun}\n",
        "    fulltilt train config.yaml\n"
        "    fulltilt train config.yaml training.lr=0.01 data.batch_size=64 training.output=runs/other\n"
        "    fulltilt train config.yaml --resume\n",
        "Run these commands in this folder: paths of data and results are relative to it. Edit `model.py` and\n"
        "`config.yaml` as you like.\n",
        "| | |\n|---|---|\n"
        "| config.yaml | data, model, training, augmentation, metrics; overridden by `section.key=value` |\n"
        "| model.py | the model, and the functions that belong to it |\n"
        "| runs/config | checkpoints, log.jsonl, the configuration that was used |\n",
    ]
    if "val_share" in data:
        parts.append(
            "A share `data.val_share` of the images is set aside for validation, the same images for the same\n"
            "`training.seed`. To validate on other images, replace it by `data.val_source` (and `data.val_masks`).\n"
        )
    if own is not None and own.outputs:
        parts.append(f"The model's outputs, in their order: {', '.join(own.outputs)}.\n")
    parts.append(_TRAINED)
    if recipe.name in _OF_PICTURES:
        parts.append(_PICTURE.format(**_OF_PICTURES[recipe.name]))
    if recipe.name == "forecast":
        from fulltilt.recipes.forecast import HORIZON

        parts.append(_FORECAST.format(horizon=data["args"].get("horizon", HORIZON)))
    if own is None:
        options, what = _OWN[recipe.name]
        parts.append(
            f"## Your own data\n\n{what}\n"
            "This makes another project, with a configuration that fits your data:\n\n"
            f"    fulltilt recipes new DIR --recipe {recipe.name} {options}\n"
        )
    return "\n".join(parts)
