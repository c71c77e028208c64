"""The benchmark of ordinary scripts: its data and its figures; the scripts themselves need a GPU host."""

from __future__ import annotations

import ast
import os
import signal
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image
from typer.testing import CliRunner

from fulltilt.bench.scripts import SCRIPTS, ScriptFigures, chart, make_data, measure, to_json
from fulltilt.cli.bench import bench
from fulltilt.errors import InputError

FOLDER = Path(__file__).parents[2] / "benchmarks" / "scripts"


def test_data_is_made_once_and_as_the_scripts_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fulltilt.bench.scripts._PHOTO_SIZE", {"resnet50_plain": (64, 48), "unet_plain": (64, 64)})
    folders = make_data(tmp_path / "a", "resnet50_plain", 16)
    files = list(folders.glob("class-*/*.jpg"))
    assert (len(files), len({path.stat().st_ino for path in files})) == (64, 16), "each has four names"
    before = {path: path.stat().st_mtime_ns for path in folders.rglob("*.jpg")}
    make_data(tmp_path / "a", "resnet50_plain", 16)
    assert before == {path: path.stat().st_mtime_ns for path in folders.rglob("*.jpg")}
    pairs = make_data(tmp_path / "b", "unet_plain", 8)
    names = sorted(path.stem for path in (pairs / "images").glob("*.jpg"))
    assert names == sorted(path.stem for path in (pairs / "masks").glob("*.png"))
    with Image.open(pairs / "masks" / f"{names[0]}.png") as mask:
        assert mask.size == (64, 64)
        assert set(mask.tobytes()) <= {0, 255}


def test_the_scripts_know_nothing_of_us() -> None:
    for name in SCRIPTS:
        text = (FOLDER / f"{name}.py").read_text()
        ast.parse(text)
        assert "fulltilt" not in text
        assert "images per second" in text


def test_figures_and_bad_input(tmp_path: Path) -> None:
    one = ScriptFigures(
        script="resnet50_plain", before=672, after=2100, limit=2500, speed_up=3.125, verified="x",
        settings={}, tuning_seconds=1.0,
    )  # fmt: skip
    assert to_json([one])["cases"][0]["targets"][0]["met"] is True
    with pytest.raises(InputError, match="there is no script 'x'"):
        measure(tmp_path, scripts=FOLDER, only=["x"])
    with pytest.raises(InputError, match="benchmarks/scripts"):
        measure(tmp_path, scripts=tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_stays_of_an_interrupted_benchmark_unless_a_folder_was_named(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(folder: Path, **_: object) -> list[ScriptFigures]:
        folder.mkdir(exist_ok=True)
        (folder / "photo").write_text("x")
        if folder.name != "kept":
            os.kill(os.getpid(), number)
        return []

    monkeypatch.setattr("fulltilt.bench.scripts.measure", measure)
    monkeypatch.setattr("fulltilt.bench.feed.material.choose_folder", lambda _: tmp_path)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # one that is ignored stays ignored
    try:
        ended = CliRunner().invoke(bench, ["scripts"])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.exit_code == (130 if number == signal.SIGINT else 143)
    assert not list(tmp_path.iterdir())
    ended = CliRunner().invoke(bench, ["scripts", "--folder", str(tmp_path / "kept")])
    assert (tmp_path / "kept" / "photo").exists()
    assert f"stay in {tmp_path / 'kept'}" in ended.output


@pytest.mark.parametrize(
    "words",
    [
        ["scripts", "--level", "exakt"],
        ["scripts", "--only", "resnet5_plain"],
        ["scripts", "--only", ""],
        ["commands", "--level", "exakt", "mine=train.py"],
    ],
    ids=" ".join,
)
def test_what_is_misspelt_is_said_before_anything_is_made(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("scripts", "commands"):
        monkeypatch.setattr(f"fulltilt.bench.{module}.measure", lambda *_, **__: pytest.fail("it began"))
    monkeypatch.setattr("fulltilt.bench.feed.material.choose_folder", lambda _: tmp_path)
    ended = CliRunner().invoke(bench, words)
    assert ended.exit_code != 0
    assert "exakt" in ended.output or "allowed: resnet50_plain" in str(ended.exception)


def test_the_chart_has_before_and_after_of_every_script_with_a_limit() -> None:
    known = {"script": "unet_plain", "before": 100.0, "after": 290.0, "limit": 400.0}
    drawn = chart({"cases": [known, known | {"script": "resnet50_plain", "limit": None}]})
    assert drawn is not None
    root = ElementTree.fromstring(drawn)
    name = "{http://www.w3.org/2000/svg}"
    widths = {one.get("class"): float(one.get("width", 0)) for one in root.iter(f"{name}rect")}
    assert widths["after"] / widths["before"] == pytest.approx(2.9, rel=0.01)
    words = " ".join(one.text or "" for one in root.iter(f"{name}text"))
    assert "2.9 times as fast" in words
    assert "ResNet" not in words
    assert chart({"cases": [known | {"limit": None}]}) is None
