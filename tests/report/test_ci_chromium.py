""".ci/chromium, with stand-ins for apt-get: nothing is installed here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "chromium"
ROOT = 'echo "0"'


def run(folder: Path, **commands: str) -> subprocess.CompletedProcess[str]:
    """With a PATH that has these commands alone, each a line of shell; calls of apt-get are kept in a file."""
    for name, line in commands.items():
        path = folder / name.replace("_", "-")
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
    bash = shutil.which("bash")
    assert bash is not None
    return subprocess.run(
        [bash, str(SCRIPT)], env={"PATH": str(folder), "ASKED": str(folder / "asked")}, capture_output=True, text=True,
        timeout=30, check=False,
    )  # fmt: skip


def asked(folder: Path) -> list[str]:
    path = folder / "asked"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("name", ["chromium", "chromium_browser", "google_chrome"])
def test_what_is_there_is_left_alone(tmp_path: Path, name: str) -> None:
    ended = run(tmp_path, **{name: "exit 0", "apt_get": 'echo "$@" >> "$ASKED"', "id": ROOT})
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert asked(tmp_path) == []


def test_it_is_installed_by_root(tmp_path: Path) -> None:
    install = f'echo "$@" >> "$ASKED"; printf "#!/bin/sh\\n" > {tmp_path}/chromium; /bin/chmod 755 {tmp_path}/chromium'
    ended = run(tmp_path, apt_get=install, id=ROOT)
    assert ended.returncode == 0, ended.stderr
    assert len(asked(tmp_path)) == 1
    assert "--no-install-recommends chromium" in asked(tmp_path)[0]


def test_old_lists_are_fetched_anew(tmp_path: Path) -> None:
    install = (
        'echo "$@" >> "$ASKED"; case "$*" in *update*) : > "$ASKED.fresh"; exit 0;; esac; '
        f'test -e "$ASKED.fresh" || exit 100; printf "#!/bin/sh\\n" > {tmp_path}/chromium; '
        f"/bin/chmod 755 {tmp_path}/chromium"
    )
    ended = run(tmp_path, apt_get=install, id=ROOT)
    assert ended.returncode == 0, ended.stderr
    assert [words.split()[2] for words in asked(tmp_path)] == ["install", "update", "install"]


@pytest.mark.parametrize(
    ("commands", "reason"),
    [
        ({"id": ROOT}, "no apt-get"),
        ({"id": "echo 1000", "apt_get": "exit 0"}, "only root"),
        ({"id": ROOT, "apt_get": "echo E: no network >&2; exit 100"}, "could not install it"),
        ({"id": ROOT, "apt_get": "exit 0"}, "something that is not it"),
    ],
)
def test_what_is_missing_is_said(tmp_path: Path, commands: dict[str, str], reason: str) -> None:
    ended = run(tmp_path, **commands)
    assert ended.returncode == 1
    assert reason in ended.stderr
    assert "apt-get install chromium" in ended.stderr
