"""`fulltilt recipes`: what there is, and projects that train as they are made."""

from __future__ import annotations

import csv
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from typer.testing import CliRunner

from fulltilt.cli import app
from fulltilt.errors import FulltiltError, InputError
from fulltilt.recipes import classification, segmentation
from fulltilt.recipes.catalog import RECIPES, recipe_named
from fulltilt.recipes.new import make_project
from fulltilt.train.build import make_trainer
from fulltilt.train.config.file import read_config

SMALL_UNET = "model.args={features: 80, width: 4, depth: 2}"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder of one's own, and an interpreter that has not seen another project's model.py."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FULLTILT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "model", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path
    torch.set_num_threads(before)
    sys.modules.pop("model", None)


def trained(*overrides):
    """Where config.yaml is."""
    settings = read_config(Path("config.yaml"), ["data.num_workers=1", *overrides], look_up=True)
    return make_trainer(settings).fit()


@pytest.mark.parametrize("there", [False, True])
def test_a_disk_that_fills_up_leaves_no_half_of_a_project(there, tmp_path):
    folder = tmp_path / "project"
    if there:
        folder.mkdir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, before[1]))  # config.yaml has fewer bytes, model.py more
    try:
        with pytest.raises(FulltiltError, match=r"can't write into .*project \(File too large\)"):
            make_project(folder, recipe_named("classification"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.rglob("*")) == [folder] * there
    assert len(make_project(folder, recipe_named("classification")).files) == 3


def test_the_list_names_every_file():
    told = CliRunner().invoke(app, ["recipes", "list"], catch_exceptions=False).stdout
    for recipe in RECIPES.values():
        for path in (recipe.after, recipe.before, *map(recipe.variant, recipe.variants)):
            assert path.name in told
    listed = json.loads(CliRunner().invoke(app, ["recipes", "list", "--json"], catch_exceptions=False).stdout)
    assert [entry["name"] for entry in listed] == list(RECIPES)
    assert all(Path(path).is_file() for entry in listed for path in entry["files"].values())


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_can_be_begun_with(name, here):
    done = CliRunner().invoke(app, ["recipes", "new", "mine", "--recipe", name], catch_exceptions=False)
    assert done.exit_code == 0
    assert sorted(path.name for path in Path("mine").iterdir()) == ["README.md", "config.yaml", "model.py"]
    os.chdir("mine")
    read_config(Path("config.yaml"), look_up=True)  # also what it names, such as model:Classifier
    content = yaml.safe_load(Path("config.yaml").read_text())
    assert content["model"]["name"].startswith("model:")
    assert "fulltilt train config.yaml" in Path("README.md").read_text()
    assert bool(re.search(r"Paths (in a \.csv )?are", Path("README.md").read_text())) == (name != "forecast")


def test_a_project_trains_as_it_is(tmp_path):
    """The command in a process of its own, with the short options; only sizes are smaller."""
    make_project(tmp_path / "mine", recipe_named("classification"))
    small = ["data.args={count: 24, size: 32}", "data.size=32", "training.epochs=2"]
    small += ["model.args={classes: 8, width: 4, blocks: [1]}", "--json"]
    short = ["--num_workers", "1", "--batch_size", "4", "--eval_interval", "1", "--checkpoint-interval", "2"]
    command = [sys.executable, "-m", "fulltilt", "train", "config.yaml", *short, *small]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path / "mine", check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["steps"], result["epochs"]) == (2 * (22 // 4), 2)
    assert 0 <= result["last"]["val_accuracy"] <= 1
    used = yaml.safe_load((tmp_path / "mine/runs/config/config.yaml").read_text())
    assert used["data"]["batch_size"] == 4
    assert (used["training"]["eval_interval"], used["training"]["checkpoint_interval"]) == (1, 2)
    assert len(list((tmp_path / "mine/runs/data").glob("classification-*"))) == 1
    code = (tmp_path / "mine/README.md").read_text().partition("```python\n")[2].partition("```")[0]
    code += "import torch\nprint(model(torch.zeros(1, 1, 32, 32)).shape[1], checkpoints.best().is_file())"
    used_again = [sys.executable, "-c", code]
    done = subprocess.run(used_again, capture_output=True, text=True, cwd=tmp_path / "mine", check=False)
    assert done.stdout == "8 True\n", done.stderr


@pytest.mark.parametrize("name", RECIPES)
def test_a_small_project_is_the_recipe_s_small_size(name, here):
    """Segmentation's features alone are others: those that any pictures have."""
    make_project(Path("mine"), recipe_named(name), small=True)
    os.chdir("mine")
    made, wanted = read_config(Path("config.yaml"), look_up=True), recipe_named(name).config(small=True)
    assert made.training.epochs == wanted.training.epochs
    assert made.data.args == wanted.data.args
    assert made.model.args | {"features": None} == wanted.model.args | {"features": None}


def test_pictures_in_a_folder_for_each_class(here):
    for index in range(30):
        kind = index % 3
        folder = Path("photos", classification.KINDS[kind])
        folder.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(classification.draw(kind + 8 * index, 40)[0])
        picture.resize((40 + index, 36)).convert("RGB").save(folder / f"{index}.jpg")
    arguments = ["recipes", "new", "mine", "--data", "photos"]
    told = CliRunner().invoke(app, arguments, catch_exceptions=False).stdout
    assert "found 30 colour images of 36×55 in 3 classes (bars, checks, cross)" in told
    os.chdir("mine")
    assert "The model's outputs, in their order: bars, checks, cross." in Path("README.md").read_text()
    content = yaml.safe_load(Path("config.yaml").read_text())
    assert content["data"]["size"] == 32  # the shorter side, as a multiple of 16
    assert content["model"]["args"] == {"classes": 3, "channels": 3}
    assert content["metrics"]["accuracy"]["args"]["num_classes"] == 3
    history = trained("training.epochs=1", "model.args.width=4", "model.args.blocks=[1]")
    assert history.steps == 24 // 3
    assert 0 <= history.last["val_accuracy"] <= 1


def test_pictures_and_masks_of_255_in_a_table(here):
    rows = [["path", "mask"]]
    for index in range(10):
        picture, mask = segmentation.draw(index, 40)
        Image.fromarray(picture).save(f"{index}.png")
        Image.fromarray(np.uint8(255) * mask).save(f"{index}-mask.png")
        rows.append([f"{index}.png", f"{index}-mask.png"])
    with Path("train.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    make_project(Path("mine"), recipe_named("segmentation"), data=Path("train.csv"))
    os.chdir("mine")
    content = yaml.safe_load(Path("config.yaml").read_text())
    assert content["data"]["size"] == [32, 32]  # a multiple of 16
    assert content["model"]["args"]["features"] == 80
    history = trained("training.epochs=2", "data.batch_size=2", SMALL_UNET)
    assert history.steps == 8
    assert 0 <= history.last["val_iou"] <= 1


def test_a_table_with_pictures_masks_and_a_column_for_their_parts(here):
    rows = [["path", "mask", "split"]]
    for index in range(10):
        picture, mask = segmentation.draw(index, 40)
        Image.fromarray(picture).save(f"{index}.png")
        Image.fromarray(mask).save(f"{index}-mask.png")
        rows.append([f"{index}.png", f"{index}-mask.png", "train" if index < 6 else "val" if index < 8 else "test"])
    with Path("all.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    project = make_project(Path("mine"), recipe_named("segmentation"), data=Path("all.csv"))
    assert project.own.told.endswith("2 in val.csv to validate with; 2 to test with are left out")
    os.chdir("mine")
    data = yaml.safe_load(Path("config.yaml").read_text())["data"]
    assert (data["source"], data["val_source"], data.get("val_share")) == ("train.csv", "val.csv", None)
    history = trained("training.epochs=1", "data.batch_size=2", SMALL_UNET)
    assert history.steps == 3
    assert 0 <= history.last["val_iou"] <= 1


def test_pictures_and_masks_in_two_folders(here):
    for part in ("images", "masks"):
        Path(part).mkdir()
    for index in range(5):
        picture, mask = segmentation.draw(index, 48)
        Image.fromarray(picture).save(f"images/{index}.jpg")
        Image.fromarray(mask).save(f"masks/{index}.png")
    arguments = ["recipes", "new", "mine", "--recipe", "segmentation", "--data", "images", "--masks", "masks"]
    assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0
    os.chdir("mine")
    content = yaml.safe_load(Path("config.yaml").read_text())
    assert content["data"]["masks"] == str(Path("../masks").resolve())
    assert read_config(Path("config.yaml"), look_up=True).data.val_share == 0.2
    assert trained("training.epochs=1", SMALL_UNET).steps == 2, "of four images: batch norm needs two at a time"


def test_a_folder_that_holds_images_and_masks(here):
    for part in ("images", "masks"):
        Path("scans", part).mkdir(parents=True)
    for index in range(5):
        picture, mask = segmentation.draw(index, 48)
        Image.fromarray(picture).save(f"scans/images/{index}.jpg")
        Image.fromarray(mask).save(f"scans/masks/{index}.png")
    make_project(Path("mine"), recipe_named("segmentation"), data=Path("scans"))
    content = yaml.safe_load(Path("mine/config.yaml").read_text())
    assert content["data"]["source"] == str(Path("scans/images").resolve())
    assert content["data"]["masks"] == str(Path("scans/masks").resolve())
    with pytest.raises(InputError, match="scans holds the folders images and masks, which are no classes"):
        make_project(Path("other"), recipe_named("classification"), data=Path("scans"))


def test_parts_that_hold_images_and_masks_each(here):
    for index in range(8):
        part = Path("scans", "train" if index < 6 else "val")
        picture, mask = segmentation.draw(index, 48)
        for kind, drawn in (("images", picture), ("masks", mask)):
            (part / kind).mkdir(parents=True, exist_ok=True)
            Image.fromarray(drawn).save(part / kind / f"{index}.png")
    project = make_project(Path("mine"), recipe_named("segmentation"), data=Path("scans"))
    val = Path("scans/val/images").resolve()
    assert project.own.told == f"6 colour images of 48×48 with masks; 2 in {val} to validate with"
    data = yaml.safe_load(Path("mine/config.yaml").read_text())["data"]
    keys = ("source", "masks", "val_source", "val_masks")
    folders = ("train/images", "train/masks", "val/images", "val/masks")
    assert [data[key] for key in keys] == [str(Path("scans", folder).resolve()) for folder in folders]
    with pytest.raises(InputError, match="scans/train holds the folders images and masks, which are no classes"):
        make_project(Path("other"), recipe_named("classification"), data=Path("scans"))
    Path("scans/val/masks").rename("scans/val/outlines")
    with pytest.raises(InputError, match="to validate with: there are labels, and those to train on have masks"):
        make_project(Path("other"), recipe_named("segmentation"), data=Path("scans"))


@pytest.mark.parametrize("has", ["parts", "a table"])
def test_labels_beside_masks_are_left_out(here, has):
    """Images in folders for training, validation and testing, masks of all in one; a table with both columns."""
    rows = [["path", "mask", "label"]]
    Path("masks").mkdir()
    for index in range(12):
        folder = Path("images", ("train", "val", "test")[index // 6 + index // 9], "ab"[index % 2])
        folder.mkdir(parents=True, exist_ok=True)
        picture, mask = segmentation.draw(index, 48)
        Image.fromarray(picture).save(folder / f"{index}.jpg")
        Image.fromarray(mask).save(f"masks/{index}.png")
        rows.append([str(folder / f"{index}.jpg"), f"masks/{index}.png", index % 2])
    with Path("all.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    parted = {"data": Path("images"), "masks": Path("masks")}
    project = make_project(
        Path("mine"), recipe_named("segmentation"), **(parted if has == "parts" else {"data": Path("all.csv")})
    )
    assert project.own.told.startswith(f"{6 if has == 'parts' else 12} colour images of 48×48 with masks")
    os.chdir("mine")
    history = trained("training.epochs=1", "data.batch_size=2", SMALL_UNET)
    assert history.steps == (3 if has == "parts" else 5)
    assert 0 <= history.last["val_iou"] <= 1


def test_readings_of_ones_own_sensors(here):
    for name, height in (("north", 3.0), ("south", 5.0)):
        hours = "".join(
            f"2024-01-{1 + h // 24:02} {h % 24:02}:00,{height + np.sin(h / 9)},{h % 7}\n" for h in range(480)
        )
        Path("readings").mkdir(exist_ok=True)
        Path("readings", f"{name}.csv").write_text(f"time,level,wind,sky\n{hours}")
    project = make_project(Path("mine"), recipe_named("forecast"), data=Path("readings"), target="Level")
    assert project.own is not None
    assert project.own.told == "480 hours of level, wind at 2 sensors; level is forecast; left out: sky"
    os.chdir("mine")
    content = yaml.safe_load(Path("config.yaml").read_text())
    assert content["data"]["args"]["target"] == "level"
    assert content["data"]["args"]["window"] == content["model"]["args"]["window"] == 40  # of 96 hours to validate
    assert content["data"]["val_args"] == {"split": "val"}, "the rest is as in args"
    assert content["data"]["batch_size"] == (384 - 40 - 6 + 1) // 10 // 8 * 8  # not the fastest, which is an epoch
    history = trained("training.max_steps=3", "model.args.widths=[8, 8]")
    assert history.steps == 3
    assert "val_r2" in history.last


def test_a_project_forecasts_in_the_target_s_own_unit(here):
    """By the code of its README, as it is."""
    rows = [f"{1700006400 + 3600 * hour},{1000 + hour % 24 / 10},{hour % 7}" for hour in range(480)]
    Path("north.csv").write_text("\n".join(["time,pm25,wind", *rows]))
    make_project(Path("mine"), recipe_named("forecast"), data=Path("north.csv"))
    command = [sys.executable, "-m", "fulltilt", "train", "config.yaml", "training.epochs=1"]
    subprocess.run(command, capture_output=True, cwd="mine", check=True)
    readme = Path("mine/README.md").read_text()
    assert "(here 6) hours after" in readme
    code = "".join(part.partition("```")[0] for part in readme.split("```python\n")[1:])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="mine", check=False)
    target, _, values = done.stdout.partition(" ")
    assert target == "pm25", done.stderr
    assert 990 < json.loads(values)[0][0] < 1010


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("classification", "model.args={classes: 8, width: 4, blocks: [1]}"), ("segmentation", SMALL_UNET)],
)
def test_a_project_looks_at_a_picture(here, name, sizes):
    """By the code of its README, as it is."""
    make_project(Path("mine"), recipe_named(name))
    small = ["data.args={count: 20, size: 32}", "data.size=32", "training.max_steps=1", "data.batch_size=4", sizes]
    command = [sys.executable, "-m", "fulltilt", "train", "config.yaml", *small]
    subprocess.run(command, capture_output=True, cwd="mine", check=True)
    Image.fromarray(segmentation.draw(0, 48)[0]).save("mine/photo.jpg")
    parts = Path("mine/README.md").read_text().split("```python\n")[1:]
    code = "".join(part.partition("```")[0] for part in parts)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="mine", check=False)
    if name == "classification":
        assert sum(json.loads(done.stdout)[0]) == pytest.approx(1, abs=1e-5), done.stderr
    else:
        assert 0 <= float(done.stdout) <= 1, done.stderr


def test_what_is_odd_in_readings_is_told(here):
    """A night without dust, a logger's -999, a sensor without a row, a last line that is cut off."""
    dust = [("" if 100 <= hour < 110 else -999 if hour in {7, 9} else hour % 11) for hour in range(480)]
    rows = [f"{1700006400 + 3600 * hour},{value},{hour + 1},{3 * hour % 7}" for hour, value in enumerate(dust)]
    Path("readings").mkdir()
    Path("readings", "north.csv").write_text("\n".join(["time,PM2.5,No,NO", *rows])[:-1])
    Path("readings", "south.csv").write_text("time,PM2.5\n")
    with pytest.raises(InputError, match=r"columns 3 and 4 \('No' and 'NO'\) are both no; rename one of them"):
        make_project(Path("mine"), recipe_named("forecast"), data=Path("readings"))
    Path("readings", "north.csv").write_text("\n".join(["time,PM2.5,index,NO", *rows, "17017"]))
    told = CliRunner().invoke(
        app, ["recipes", "new", "mine", "--recipe", "forecast", "--data", "readings"], catch_exceptions=False
    )
    assert told.stdout.splitlines()[0] == (
        "found 480 hours of pm25, no at 1 sensor; pm25 is forecast; 1.25 % are missing (most of pm25 at north: "
        "2.5 %), and the last reading before stands in their place; 2.5 % of the hours lack pm25 at a sensor and are "
        "no targets; left out: index; "
        "north.csv, line 482, the last one, is cut off and left out; south.csv holds no readings and is no sensor; "
        "2 × -999 in pm25: taken as missing"
    )
    os.chdir("mine")
    content = yaml.safe_load(Path("config.yaml").read_text())
    assert content["data"]["batch_size"] == (384 - 40 - 6 + 1 - 10) // 10 // 8 * 8, "of windows with a target"
    assert trained("training.max_steps=2", "model.args.widths=[8, 8]").steps == 2


@pytest.mark.parametrize(("hours", "batch"), [(110, 8), (1000, 72), (2000, 152)])
def test_a_batch_is_a_multiple_of_8(here, hours, batch):
    rows = [f"{1700006400 + 3600 * hour},{hour % 11}" for hour in range(hours)]
    Path("north.csv").write_text("\n".join(["time,x", *rows]))
    make_project(Path("mine"), recipe_named("forecast"), data=Path("north.csv"))
    assert yaml.safe_load(Path("mine/config.yaml").read_text())["data"]["batch_size"] == batch


def target_of(columns, *options):
    """What is forecast of a table with these columns, or what the command says."""
    rows = [",".join([str(1700006400 + 3600 * hour), *(str(hour % 7) for _ in columns)]) for hour in range(480)]
    Path("north.csv").write_text("\n".join([",".join(["time", *columns]), *rows]))
    shutil.rmtree("mine", ignore_errors=True)
    command = ["recipes", "new", "mine", "--recipe", "forecast", "--data", "north.csv", *options]
    done = CliRunner().invoke(app, command)
    if done.exit_code:
        return str(done.exception)
    data = yaml.safe_load(Path("mine/config.yaml").read_text())["data"]
    return data["args"]["target"]


def test_a_target_that_never_changes_is_said(here):
    """At all sensors, or at one whose values stay as they are in the last fifth."""
    Path("readings").mkdir()
    for name, last in (("north", 480), ("south", 380)):
        rows = [f"{1700006400 + 3600 * hour},{min(hour, last) % 11},5" for hour in range(480)]
        Path("readings", f"{name}.csv").write_text("\n".join(["time,pm25,wind", *rows]))
    project = make_project(Path("mine"), recipe_named("forecast"), data=Path("readings"))
    assert project.own.told.endswith("; in the hours to validate with, pm25 never changes at south")
    with pytest.raises(InputError, match="readings: wind is the same in every hour, so there is nothing to forecast"):
        make_project(Path("other"), recipe_named("forecast"), data=Path("readings"), target="wind")


def test_the_target_is_not_guessed(here):
    for name, target in (("PM2.5", "pm25"), ("pm2_5", "pm25"), ("PM25", "pm25"), ("PM2.5 (µg/m³)", "pm2.5 (µg/m³)")):
        assert target_of(["Wind", name]) == target
    assert target_of(["Wind", "Level"], "--target", "level") == "level"
    assert target_of(["Wind"]) == "wind", "the only one"
    for columns in (["Wind", "Level"], ["pm2.5_in", "pm2.5_out"]):
        assert "which of them is to be forecast? Say so with --target" in target_of(columns)
    assert "--target: ozone is no quantity of all sensors; north.csv: quantities are wind" in target_of(
        ["Wind"], "--target", "ozone"
    )
    Path("south.csv").write_text(Path("north.csv").read_text())
    target_of(["Wind", "PM2.5"])
    Path("both").mkdir()
    for name in ("north", "south"):
        Path(f"{name}.csv").rename(f"both/{name}.csv")
    with pytest.raises(InputError, match=r"quantities are wind \(left out: pm25 \(south has none\)\); which"):
        make_project(Path("other"), recipe_named("forecast"), data=Path("both"))


def test_names_of_files_and_columns_end_no_comment(here):
    rows = "".join(f"{1700006400 + 3600 * hour},{hour % 7},N\n" for hour in range(480))
    Path("readings").mkdir()
    Path("readings", "north.csv").write_text(f'time,x,"PM2.5\n(µg/m³)\u2028of\x07: [1"\n{rows}')
    Path("readings", "so\nuth: [2.csv").write_text("time,x\n")
    make_project(Path("mine"), recipe_named("forecast"), data=Path("readings"), target="x")
    head, _, content = Path("mine", "config.yaml").read_text(encoding="utf-8").partition("\n\n")
    assert "left out: pm2.5 (µg/m³) of : [1; so uth: [2.csv holds no readings" in head
    assert yaml.safe_load(f"{head}\n\n{content}")["data"]["args"]["target"] == "x"


def test_readings_whose_last_part_lacks_the_target(here):
    rows = [f"{1700006400 + 3600 * hour},{hour % 11 if hour < 390 else ''},{hour % 7}" for hour in range(480)]
    Path("north.csv").write_text("\n".join(["time,pm25,wind", *rows]))
    with pytest.raises(
        InputError, match=r"339 windows to train on and 0 to validate with .* north lacks most: 18\.8 %"
    ):
        make_project(Path("mine"), recipe_named("forecast"), data=Path("north.csv"))


def test_segments_of_ones_own_videos(here):
    pytest.importorskip("av")
    from fulltilt.recipes.video.data import SEGMENTS, make_videos

    folder = make_videos(6, frames=64, height=32, width=32, seed=0)
    arguments = ["recipes", "new", "mine", "--recipe", "video", "--data", str(folder / SEGMENTS)]
    assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0
    os.chdir("mine")
    tables = [Path(name).read_text().splitlines() for name in ("train.csv", "val.csv")]
    videos = [{row["path"] for row in csv.DictReader(table)} for table in tables]
    assert [len(part) for part in videos] == [5, 1]
    assert not videos[0] & videos[1]
    rows = list(csv.reader((here / folder / SEGMENTS).read_text().splitlines()))
    assert "*id" not in Path("config.yaml").read_text(), "names are written out, not referred to"
    data = yaml.safe_load(Path("config.yaml").read_text())["data"]
    taken = data["args"]
    assert (taken["length"], taken["size"], taken["clips"]) == (64, 32, 1), "as long and as large as the videos are"
    assert data["val_args"] == {"path": "val.csv", "jitter": False}, "the rest is as in args"
    assert data["batch_size"] == 2, "5 clips to train on are more than one batch"
    for bad, says in (
        ([rows[1][0], "left", 2, 1], "from 2 s to 1 s"),
        (
            [rows[1][0], "left", 50, 60],
            r"begins at 50 s, and the video is over after \S+ s; start and end are in seconds",
        ),
        (["none.mp4", "left", 0, 1], "as a video"),
    ):
        (here / folder / "none.mp4").write_text("text")
        with (here / folder / "bad.csv").open("w", newline="") as file:
            csv.writer(file).writerows([rows[0], bad, *rows[1:]])
        with pytest.raises(InputError, match=says):
            make_project(here / "other", recipe_named("video"), data=here / folder / "bad.csv")
    (here / folder / "idle.csv").write_text("\n".join(["path,label,start,end", *(f"{row[0]},,," for row in rows[1:])]))
    with pytest.raises(InputError, match="there is no segment in it"):
        make_project(here / "other", recipe_named("video"), data=here / folder / "idle.csv")
    paths = list(dict.fromkeys(row[0] for row in rows[1:]))
    still = [row if row[0] != paths[4] else [row[0], "", "", ""] for row in rows]
    (here / folder / "still.csv").write_text("\n".join(map(",".join, still)))
    project = make_project(here / "still", recipe_named("video"), data=here / folder / "still.csv")
    assert "nothing happens in those to validate with" in project.own.told
    new = [row if row[0] != paths[4] else [row[0], "zoom", *row[2:]] for row in rows]
    (here / folder / "new.csv").write_text("\n".join(map(",".join, new)))
    project = make_project(here / "new", recipe_named("video"), data=here / folder / "new.csv")
    assert project.own.told.endswith("; only in those to validate with: zoom: move some rows from val.csv to train.csv")
    beyond = [row if row[0] != paths[0] or at > 1 else [*row[:2], "0", "60"] for at, row in enumerate(rows)]
    (here / folder / "beyond.csv").write_text("\n".join(map(",".join, beyond)))
    project = make_project(here / "beyond", recipe_named("video"), data=here / folder / "beyond.csv")
    assert f"{paths[0]}: a segment ends at 60 s, and the video after" in project.own.told
    (here / folder / "odd.csv").write_text("\n".join(["video,action,begin,finish", *map(",".join, rows[1:])]))
    with pytest.raises(InputError, match="a label, a start and an end; its columns are video, action, begin, finish"):
        make_project(here / "other", recipe_named("video"), data=here / folder / "odd.csv")
    (here / folder / "odd.csv").write_text("\n".join(["path,label,begin,end", *map(",".join, rows[1:])]))
    with pytest.raises(
        InputError, match=r"odd\.csv, line 2: no start; segments .* are rows .* with label, start and end"
    ):
        make_project(here / "other", recipe_named("video"), data=here / folder / "odd.csv")
    model = [f"model.args.{part}" for part in ("widths=[8, 8]", "blocks=1", "hidden=8", "reduction=2")]
    history = trained("training.max_steps=2", "data.val_batch_size=1", "data.args.length=32", *model)
    assert history.steps == 2
    assert 0 <= history.last["val_map50"] <= 1


def test_what_can_not_be_made_is_said_before_anything_is_written(here):
    Path("full").mkdir()
    Path("full", "notes.txt").write_text("")
    Path("file").write_text("")
    for index in range(6):
        Path("photos", str(index % 2)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((16, 16), np.uint8)).save(f"photos/{index % 2}/{index}.png")
    Path("latin.csv").write_bytes("path,label\nKätzchen.png,0\n".encode("latin-1"))
    Path("short").mkdir()
    hours = "".join(f"2024-01-{1 + h // 24:02} {h % 24:02}:00,{h % 7}\n" for h in range(49))
    Path("short", "one.csv").write_text(f"time,level\n{hours}")
    Path("clips", "jump").mkdir(parents=True)
    Path("clips", "jump", "1.mp4").write_bytes(b"")
    some, other = recipe_named("classification"), recipe_named("segmentation")
    for folder, recipe, options, says in (
        ("full", some, {}, "full is not empty; name a folder that is, or a new one"),
        ("file", some, {}, "file is a file"),
        ("mine", some, {"masks": Path("photos")}, "give these, too, with --data"),
        ("mine", some, {"data": Path("nowhere")}, "nowhere does not exist"),
        ("mine", some, {"data": Path("photos"), "masks": Path("photos")}, "only segmentation has"),
        ("mine", some, {"data": Path("photos"), "target": "x"}, "only forecast has"),
        ("mine", recipe_named("forecast"), {"target": "x"}, "give these, too, with --data"),
        ("mine", some, {"data": Path("latin.csv")}, "latin.csv can't be read as a table .* in UTF-8"),
        ("mine", some, {"data": Path("photos"), "small": True}, "with --data leave it out"),
        ("mine", recipe_named("forecast"), {"data": Path("short")}, "49 hours .* too few; there must be 110 at least"),
        ("mine", other, {"data": Path("photos")}, "have labels and no masks; give --masks"),
        ("mine", some, {"data": Path("short")}, "short holds no images, but .csv files; try --recipe forecast"),
        ("mine", other, {"data": Path("clips")}, "clips holds no images, but .mp4 files; try --recipe video"),
        ("mine", recipe_named("forecast"), {"data": Path("photos")}, "photos holds no .csv file"),
        ("mine", recipe_named("video"), {"data": Path("photos")}, "photos is no .csv; segments are rows of path"),
    ):
        with pytest.raises(InputError, match=says):
            make_project(Path(folder), recipe, **options)
    assert not Path("mine").exists()
    assert [path.name for path in Path("full").iterdir()] == ["notes.txt"]
    with pytest.raises(InputError, match="no recipe 'segmentatoin'"):
        recipe_named("segmentatoin")
