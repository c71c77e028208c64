"""What `python -m build` makes, installed into an environment that has nothing of this checkout."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import fulltilt

ROOT = Path(__file__).parents[1]
SOURCES = ("pyproject.toml", "MANIFEST.in", "README.md", "README.zh-CN.md", "CHANGELOG.md", "LICENSE")

# A loop that is over in a moment: what is wanted is that hooks reach it, which an installed sitecustomize brings.
LOOP = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.randn(256, 4), batch_size=8)
for batch in loader:
    optimizer.zero_grad()
    model(batch).mean().backward()
    optimizer.step()
"""
OBSERVE = """
import json, sys
import fulltilt
from fulltilt.launch.command import parse
from fulltilt.launch.observe import observe
seen = observe(parse([sys.argv[1]]), full=True)
print(json.dumps({"file": fulltilt.__file__, "last": seen.steps[-1].number, "phases": list(seen.steps[-1].phases)}))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel that was built from it; nothing is downloaded."""
    pytest.importorskip("build")
    copy = tmp_path_factory.mktemp("checkout")  # an old build/ beside the sources would get into the wheel
    for name in SOURCES:
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", str(copy)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return copy / "dist"


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel; torch and the rest are the tests' own, looked for after it."""
    home = tmp_path_factory.mktemp("clean") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    (wheel,) = built.glob("*.whl")
    command = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install", "--no-deps", "--quiet"]
    subprocess.run([*command, "--no-index", "--disable-pip-version-check", str(wheel)], check=True)
    (site,) = home.glob("lib/python*/site-packages")
    # A folder named by a .pth is only added to the path: the checkout's own .pth in it stays unread.
    (site / "tests-own.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return home


def run(home: Path, *arguments: str, cwd: Path) -> str:
    command = [str(home / "bin" / arguments[0]), *arguments[1:]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_has_all_that_the_package_has(built):
    (wheel,) = built.glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    wanted = {"fulltilt/py.typed", "fulltilt/launch/site/sitecustomize.py"}
    sources = [file for file in (ROOT / "src" / "fulltilt").rglob("*") if file.suffix in (".py", ".yaml")]
    wanted |= {str(file.relative_to(ROOT / "src")) for file in sources}
    assert wanted - inside == set()
    assert not any(name.startswith("tests") for name in inside)


def test_the_sdist_has_what_people_read(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        inside = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert set(SOURCES) <= inside


def test_it_works_where_the_checkout_is_not(installed, tmp_path):
    assert run(installed, "fulltilt", "--version", cwd=tmp_path).strip() == f"fulltilt {fulltilt.__version__}"
    machine = json.loads(run(installed, "fulltilt", "env", "--json", cwd=tmp_path))
    assert machine["machine"]["cores"]["usable"] >= 1


def test_scripts_are_watched_by_the_installed_hooks(installed, tmp_path):
    (tmp_path / "loop.py").write_text(LOOP)
    found = json.loads(run(installed, "python", "-c", OBSERVE, "loop.py", cwd=tmp_path))
    assert Path(found["file"]).is_relative_to(installed)
    assert found["last"] == 31
    assert {"forward", "backward"} <= set(found["phases"])


def test_the_changelog_speaks_of_this_version():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    entries = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert entries[0].startswith(fulltilt.__version__)
    assert entries[0].count("\n- ") >= 1
