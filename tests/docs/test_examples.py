"""Every code block in the documentation runs, and its tables say what the code says."""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import fields
from importlib.machinery import PathFinder
from pathlib import Path
from typing import get_type_hints

import pytest
from PIL import Image
from tests.decode.video.support import make

from fulltilt.augment import GPUAugmentation, Settings
from fulltilt.bench.photos import photos
from fulltilt.launch.settings import SETTINGS
from fulltilt.train.config.config import Config
from fulltilt.train.config.file import parse_config

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README, CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"
APART = {"integrations.md"}
"""Run in a process of their own: hooks that are put into torch stay there."""
PEERS = Path(sys.prefix) / "peers"
"""Where `make test` puts transformers."""
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

READER = """
import torch
from torch.utils.data import DataLoader, TensorDataset

if not torch.cuda.is_available():
    torch.Tensor.cuda = lambda self: self
images, masks = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8), torch.randint(0, 2, (4, 32, 32))
loader = DataLoader(TensorDataset(images, masks), batch_size=2)
train_loader = val_loader = DataLoader(TensorDataset(images / 255, torch.tensor([0, 1, 0, 1])), batch_size=2)
model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(3 * 64, 2))


def train_one_epoch():
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    device = next(model.parameters()).device
    for inputs, labels in train_loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device)).backward()
        optimizer.step()


"""
"""What the READMEs' examples take for granted."""


def _small_photo() -> bytes:
    out = io.BytesIO()
    Image.open(io.BytesIO(next(photos(1)))).resize((32, 32)).save(out, "JPEG")
    return out.getvalue()


PHOTO = _small_photo()


def blocks() -> list[tuple[str, int, str]]:
    """File, line and code of each block."""
    found = []
    for page in sorted(page for page in DOCS.glob("*.md") if page.name not in APART):
        text = page.read_text(encoding="utf-8")
        found += [(page.name, text.count("\n", 0, match.start(1)), match[1]) for match in BLOCK.finditer(text)]
    return found


@pytest.mark.parametrize(("page", "line", "code"), [pytest.param(*b, id=f"{b[0]}:{b[1]}") for b in blocks()])
def test_block(page, line, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("photo.jpg").write_bytes(next(photos(1)))
    if page == "video.md":
        make(Path("ball"))
    tree = ast.increment_lineno(ast.parse(code), line)
    exec(compile(tree, DOCS / page, "exec"), {"__name__": "example"})


def test_the_readmes_blocks_run_one_after_the_other(tmp_path):
    """With what a reader has: loaders, a model, a folder of photographs. Without a GPU, `cuda()` is the CPU's."""
    code = READER + "\n".join(match[1] for match in BLOCK.finditer(README.read_text(encoding="utf-8")))
    for kind in ("cat", "dog"):
        (tmp_path / "train" / kind).mkdir(parents=True)
        for number in range(4):
            (tmp_path / "train" / kind / f"{number}.jpg").write_bytes(PHOTO)
    assert "data_wait" in code
    _run_apart(code, tmp_path)


def test_the_chinese_readme_has_the_same_code():
    english, chinese = (
        [ast.dump(ast.parse(match[1])) for match in BLOCK.finditer(page.read_text(encoding="utf-8"))]
        for page in (README, CHINESE)
    )
    assert chinese == english


@pytest.mark.parametrize("page", sorted(APART))
def test_pages_whose_hooks_stay(page, tmp_path):
    found = [match[1] for match in BLOCK.finditer((DOCS / page).read_text(encoding="utf-8"))]
    assert found
    there = {name: PathFinder.find_spec(name, [*sys.path, str(PEERS)]) for name in ("lightning", "transformers")}
    missing = [name for name, spec in there.items() if spec is None]
    left_out = [code for code in found if any(name in code for name in missing)]
    _run_apart("\n".join(code for code in found if code not in left_out), tmp_path)
    if left_out:
        pytest.skip(f"{len(left_out)} of {len(found)} blocks were left out: {', '.join(missing)} missing (make peers)")


def _run_apart(code: str, folder: Path) -> None:
    start = f"import sys; sys.path.append({str(PEERS)!r})\n"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", start + code]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def fenced(language: str) -> list[object]:
    block = re.compile(rf"^```{language}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    pages = [README, CHINESE, *sorted(DOCS.glob("*.md"))]
    found = [(page.name, match[1]) for page in pages for match in block.finditer(page.read_text(encoding="utf-8"))]
    return [pytest.param(text, id=f"{name}-{number}") for number, (name, text) in enumerate(found)]


@pytest.mark.parametrize("text", fenced("yaml"))
def test_a_configuration_that_is_shown_is_one(text):
    assert parse_config(text, source="shown").data.source


def test_no_configuration_is_shown_where_it_is_not_read():
    """Indented, it would look the same, and nothing would notice a key that there is not."""
    begins = re.compile(rf"^ +(?:{'|'.join(Config.model_fields)}):(?: .*)?$", re.MULTILINE)
    for page in (README, CHINESE, *sorted(DOCS.glob("*.md"))):
        outside = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        assert begins.findall(outside) == [], f"{page.name}: fence it as yaml"


@pytest.mark.parametrize("text", fenced("toml"))
def test_a_plan_that_is_shown_has_settings_that_there_are(text):
    assert set(tomllib.loads(text)["settings"]) <= set(SETTINGS)


def test_there_are_blocks():
    assert sum(page == "augmentation.md" for page, _, _ in blocks()) >= 12


def test_every_option_is_in_the_table_with_its_default():
    text = (DOCS / "augmentation.md").read_text(encoding="utf-8").split("## Options")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| `([^`]*)` \| (.+) \|$", text, re.MULTILINE)
    settings = GPUAugmentation().settings
    assert [(name, ast.literal_eval(default)) for name, default, _ in rows] == [
        (f.name, _rounded(getattr(settings, f.name))) for f in fields(Settings)
    ]
    assert set(get_type_hints(Settings)) == {name for name, _, _ in rows}


def _rounded(value: object) -> object:
    """3/4 and 4/3 are written in three digits."""
    return tuple(round(v, 3) for v in value) if isinstance(value, tuple) else value


def test_every_image_and_page_that_is_linked_exists():
    found = [
        (page, target)
        for page in DOCS.glob("*.md")
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
    ]
    assert len(found) > 50
    for page, target in found:
        assert (page.parent / target).exists(), f"{page.name} links {target}"
