"""`fulltilt augment preview` as a command."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fulltilt.cli import app

COMMAND = [sys.executable, "-m", "fulltilt", "augment", "preview"]


@pytest.fixture
def photo(tmp_path):
    y, x = np.mgrid[0:60, 0:80]
    Image.fromarray(np.dstack([x * 3, y * 4, (x + y) % 255]).astype(np.uint8)).save(tmp_path / "photo.png")
    Image.fromarray(((x > 30) & (y > 20)).astype(np.uint8)).save(tmp_path / "mask.png")
    return tmp_path / "photo.png"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False)


def invoke(*arguments: object) -> str:
    """In this process, which has torch already: the error's text, or nothing."""
    result = CliRunner().invoke(app, ["augment", "preview", *map(str, arguments)])
    return str(result.exception or "")


def test_a_grid_is_written(photo, tmp_path):
    out = tmp_path / "grid.png"
    done = run(photo, "--mask", tmp_path / "mask.png", "-n", 2, "--size", 64, "-o", out)
    assert done.returncode == 0, done.stderr
    with Image.open(out) as grid:
        assert f"wrote {out} ({grid.width}x{grid.height})" in done.stderr
        assert grid.width == 24 + 172 + 2 * 64 + 10 + 24
    assert done.stdout == ""


def test_the_same_seed_draws_the_same_and_another_does_not(photo, tmp_path):
    grids = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert invoke(photo, "-n", 2, "--size", 64, "--seed", seed, "-o", tmp_path / f"{name}.png") == ""
        # Below the title, which names the seed.
        grids.append(np.asarray(Image.open(tmp_path / f"{name}.png"))[60:])
    assert np.array_equal(grids[0], grids[1])
    assert not np.array_equal(grids[0], grids[2])


def test_presets_and_configurations(photo, tmp_path):
    config = tmp_path / "aug.yaml"
    config.write_text("gpu_augmentation: {rotation_degrees: 0, brightness: 0, contrast: 0}")
    heights = {}
    for name, how in {
        "minimal": ("--preset", "minimal"),
        "config": ("--config", config),
        "default": (),
        "strong": ("--preset", "strong"),
    }.items():
        assert invoke(photo, *how, "-n", 1, "--size", 64, "-o", tmp_path / f"{name}.png") == ""
        with Image.open(tmp_path / f"{name}.png") as grid:
            heights[name] = grid.height
    assert heights["minimal"] == heights["config"] < heights["default"] < heights["strong"]


@pytest.mark.parametrize("suffix", ["jpg", "webp"])
def test_other_formats(photo, tmp_path, suffix):
    out = tmp_path / f"grid.{suffix}"
    assert invoke(photo, "-n", 1, "--size", 64, "--preset", "minimal", "-o", out) == ""
    with Image.open(out) as grid:
        assert grid.format == {"jpg": "JPEG", "webp": "WEBP"}[suffix]


def test_wrong_arguments_are_one_clear_message(photo, tmp_path):
    out = ("-o", tmp_path / "grid.png")
    config = tmp_path / "aug.yaml"
    config.write_text("gpu_augmentation: {brightness: 99}")
    assert "--columns: expected 1 to 16, found 0" in invoke(photo, "-n", 0, *out)
    assert "--size: expected 64 to 1024, found 3" in invoke(photo, "--size", 3, *out)
    assert "no such file or folder" in invoke(tmp_path / "none.png", *out)
    assert "expected a name ending in .png" in invoke(photo, "-o", tmp_path / "grid.txt")
    assert "there is no folder" in invoke(photo, "-o", tmp_path / "no" / "grid.png")
    assert "leave one of them out" in invoke(photo, "--config", config, "--preset", "strong", *out)
    assert "gpu_augmentation.brightness=99 must be a number from 0 to 10" in invoke(photo, "--config", config, *out)
    assert "expected cpu or cuda, found tpu" in invoke(photo, "--device", "tpu", *out)
    config.write_text("gpu_augmentation: {normalize: [[0.5, 0.5], [0.2, 0.2]]}")
    assert "normalize has 2 channels" in invoke(photo, "--config", config, *out)
    assert not (tmp_path / "grid.png").exists()


def test_an_unreadable_file_exits_with_2_and_its_name(tmp_path):
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    done = run(tmp_path / "broken.jpg", "-o", tmp_path / "grid.png")
    assert done.returncode == 2
    assert done.stderr.startswith("fulltilt: ")
    assert "broken.jpg: can't be read as an image" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_names_every_option():
    text = CliRunner().invoke(app, ["augment", "preview", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    for option in ("--mask", "--config", "--preset", "--columns", "--size", "--seed", "--device", "--output"):
        assert option in text
