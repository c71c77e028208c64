"""Every command that the documentation shows can be given, and those that take seconds are run.

A page's commands run one after the other in a folder of stand-ins for a user's files, each of them once. Each kind has
its own stand-in:

    env, cache, video            as they are, except that nobody is asked
    augment                      once in all, with a small photograph
    monitor                      for half a second; the process to watch is this one
    train                        the example's configuration, cut to two steps: once in all, and once more to resume;
                                 others are only read
    diagnose                     once in all, for a short loop; the others take its result
    compare                      of that result
    run, bench, torchrun, make   parsed only: they take minutes (tests/cli, tests/launch and tests/train run them)
"""

from __future__ import annotations

import io
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from tests.decode.video.support import make
from tests.docs.commands import PAGES, ROOT, Command, check, in_blocks, inline
from typer.testing import CliRunner

from fulltilt.bench.photos import photos
from fulltilt.cli import app
from fulltilt.errors import UnavailableError

PLACEHOLDERS = {
    "CONFIG": "examples/train.yaml",
    "run.yaml": "examples/train.yaml",
    "config.yaml": "examples/train.yaml",
    "PHOTO": "photo.jpg",
    "照片": "photo.jpg",
    "FILE…": "clip.mp4",
    "SOURCE": "videos",
    "CACHE": "frames",
    "DIR": "started",
    "NAME": "classification",
    "4242": str(os.getpid()),
}
PHOTOGRAPHS = ("train", "folder", "photos")
PARSED_ONLY = ("run", "bench")
LOOP = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.randn(4096, 4), batch_size=8)
for batch in loader:
    optimizer.zero_grad()
    model(batch).mean().backward()
    optimizer.step()
"""


def filled(word: str) -> str:
    """With the stand-in for what a reader puts there."""
    return PLACEHOLDERS.get(word) or re.sub(r"\bNAME(?=/)", PLACEHOLDERS["NAME"], word)


def commands(find: Callable[[str], list[Command]]) -> list[object]:
    found: dict[Command, str] = {}
    for page in PAGES:
        for command in find(page.read_text(encoding="utf-8")):
            found.setdefault(command, page.name)
    return [pytest.param(command, id=f"{page}: {command}") for command, page in found.items()]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the pages' commands speak of."""
    folder = tmp_path_factory.mktemp("workshop")
    (folder / "masks").mkdir()
    for name in PHOTOGRAPHS:
        for kind in ("cats", "dogs"):
            (folder / name / kind).mkdir(parents=True)
    for number, photo in enumerate(map(_small, photos(6))):
        for name in PHOTOGRAPHS:
            (folder / name / ("cats", "dogs")[number % 2] / f"{number}.jpg").write_bytes(photo)
        _mask(photo, folder / "masks" / f"{number}.png")
        (folder / "photo.jpg").write_bytes(photo)
        _mask(photo, folder / "mask.png")
    for name in ("examples", "recipes"):
        shutil.copytree(ROOT / name, folder / name, symlinks=False)
    (folder / "train.yaml").write_text("gpu_augmentation: {rotation_degrees: 30}\n")
    make(folder / "ball")
    (folder / "videos").mkdir()
    shutil.copy(folder / "ball.mp4", folder / "clip.mp4")
    shutil.copy(folder / "ball.mp4", folder / "videos")
    for name in ("train.py", "script.py"):
        (folder / name).write_text(LOOP)
    return folder


def _small(photo: bytes) -> bytes:
    out = io.BytesIO()
    Image.open(io.BytesIO(photo)).resize((64, 48)).save(out, "JPEG")
    return out.getvalue()


def _mask(photo: bytes, out: Path) -> None:
    Image.new("L", Image.open(io.BytesIO(photo)).size, 1).save(out)


@pytest.fixture(scope="module")
def diagnosis(workshop: Path) -> Path:
    """One real diagnosis, for all that are shown."""
    out = workshop / "diagnosis.json"
    words = ["diagnose", "--max-steps", "40", "--max-seconds", "2", "--json", str(out), str(workshop / "train.py")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return out


@pytest.mark.parametrize("command", [*commands(in_blocks), *commands(inline)])
def test_it_can_be_given(command, workshop, monkeypatch):
    monkeypatch.chdir(workshop)
    check(Command(tuple(filled(word) for word in command.words)))


_run: set[tuple[str, ...]] = set()
"""What has been run in this process."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_pages_commands_run(page, workshop, monkeypatch, request):
    monkeypatch.chdir(workshop)
    monkeypatch.setenv("XDG_CACHE_HOME", str(workshop / "own-cache"))
    for command in in_blocks(page.read_text(encoding="utf-8")):
        if command.tool != "fulltilt" or command.words[1] in PARSED_ONLY:
            continue
        words = [filled(word) for word in command.words[1:]]
        if words[0] == "diagnose":
            _hand_over(request.getfixturevalue("diagnosis"), words)
            continue
        if words[0] == "compare":
            for name in words[1:3]:
                shutil.copy(request.getfixturevalue("diagnosis"), name)
        words = _shortened(words)
        if _as_run(words) in _run:
            continue
        _make_room(words)
        done = CliRunner().invoke(app, words)
        # Here a GPU is idle, which is less than was asked for, or there is none. A usage error has another status.
        less = isinstance(done.exception, UnavailableError) or (
            done.exit_code == 1 and type(done.exception) is SystemExit
        )
        may_fail = "--fail-under" in words and less
        assert done.exit_code == 0 or may_fail, f"{command}: {done.output}{done.exception!r}"
        _run.add(_as_run(words))


def _make_room(words: list[str]) -> None:
    """A page's builds are to choose from, not to do one upon the other; a recording is never written over."""
    if words[:2] == ["cache", "build"] and "--dry-run" not in words:
        shutil.rmtree("cache", ignore_errors=True)
    if words[:2] == ["recipes", "new"]:
        shutil.rmtree(words[2], ignore_errors=True)
    if "--record" in words:
        Path(words[words.index("--record") + 1]).unlink(missing_ok=True)


def _as_run(words: list[str]) -> tuple[str, ...]:
    """What takes seconds and differs in settings alone counts as the same; tests/cli runs those."""
    if words[0] == "augment":
        return ("augment",)
    if words[0] == "train" and "--print-config" not in words:
        return ("train", "--resume" if "--resume" in words else "")
    return tuple(words)


def _hand_over(diagnosis: Path, words: list[str]) -> None:
    if "--json" in words:
        shutil.copy(diagnosis, words[words.index("--json") + 1])


def _shortened(words: list[str]) -> list[str]:
    """The stand-in for a command, as above."""
    more = {("video", "info"): ["--seconds", "0.1"], ("cache", "clear"): ["--yes"]}.get(tuple(words[:2]), [])
    if words[0] == "monitor" and "--replay" not in words:
        if "--duration" in words:
            at = words.index("--duration")
            words = [*words[:at], *words[at + 2 :]]
        more = ["--duration", "0.4", "--interval", "0.2"]
    elif words[0] == "train" and words[1] != "examples/train.yaml":
        more = ["--print-config"]  # read and checked with its settings; tests/recipes trains with it
    elif words[0] == "train" and "--print-config" not in words:
        small = ["training.max_steps=2", "data.args.count=64", "data.val_args.count=16", "data.num_workers=0"]
        output = f"training.output={'resumed' if '--resume' in words else 'trained'}"
        more = [*small, "training.compile=false", output]
    return [*words, *more]


def test_commands_are_found_and_checked():
    text = """
    fulltilt monitor --duration 300   five minutes

```sh
torchrun --nproc-per-node 2 \\
    -m fulltilt train CONFIG
```

and `fulltilt env --json`, `make nonsense`.
"""
    assert [str(one) for one in in_blocks(text)] == [
        "torchrun --nproc-per-node 2 -m fulltilt train CONFIG",
        "fulltilt monitor --duration 300",
    ]
    env, nonsense = inline(text)
    assert env.words == ("fulltilt", "env", "--json")
    with pytest.raises(AssertionError, match="nonsense"):
        check(nonsense)


@pytest.mark.parametrize(
    "written",
    [
        "cd mine && fulltilt no-such-command",
        "OMP_WAIT_POLICY=passive fulltilt no-such-command",
        "OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1 fulltilt env --no-such-option",
        ".venv/bin/fulltilt no-such-command",
        "fulltilt env --no-such-option",
        "fulltilt cache build only-one",
        "fulltilt run nonexistent.py --its --own --args",
        "fulltilt run --no-such-option 3 train.py",
        "fulltilt diagnose --no-such-option train.py",
        "fulltilt train nonexistent.yaml",
        "fulltilt bench guides --only nowhere",
        "fulltilt bench guides --only NAME/nobody",
        "fulltilt bench feed --only nowhere",
        "fulltilt bench predictions --only unknown",
        "pytest --no-such-option",
        "pytest tests/nowhere",
        "pytest nowhere",
        "pytest tests/gpu -m nowhere",
        "python -m pytest tests/nowhere",
        "python3 scripts/nonexistent.py",
        "python nonexistent.py",
        "python scripts/tables.py --no-such",
        "python -m fulltilt.recipes.plain recipes/nonexistent.yaml",
        "python -m fulltilt.recipes.plain recipes/video_before.yaml --no-such",
        "python -m fulltilt.nowhere",
        "python -m fulltilt no-such-command",
        "torchrun --nproc-per-node 2 nonexistent.py",
        "torchrun --nproc-per-node 2 -m fulltilt train nonexistent.yaml",
        "make nonsense",
        "pip install 'fulltilt[nonsense]'",
    ],
)
@pytest.mark.parametrize("shown", [lambda text: in_blocks(f"    {text}\n"), lambda text: inline(f"`{text}`")])
def test_a_wrong_command_is_noticed(written, shown, workshop, monkeypatch):
    monkeypatch.chdir(workshop)
    (command,) = shown(written)
    with pytest.raises(
        Exception, match=r"[Nn]o such|Missing|(there is|has|there are) no|nothing is known|--only: found"
    ):
        check(Command(tuple(filled(word) for word in command.words)))


@pytest.mark.parametrize(
    "written",
    [
        "cd mine && fulltilt train config.yaml",
        "OMP_WAIT_POLICY=passive fulltilt train …",
        "fulltilt run script.py --config its_own.yaml",
        "fulltilt run -m package.train",
        "fulltilt bench guides --only NAME/before,video",
        'pytest tests/gpu -m "not alone" -n 5',
        "python3 scripts/tables.py --check",
        "python script.py --its --own --args",
        "python -m fulltilt.recipes.plain recipes/video_before.yaml training.epochs=2",
    ],
)
def test_a_right_command_passes(written, workshop, monkeypatch):
    monkeypatch.chdir(workshop)
    (command,) = in_blocks(f"    {written}\n")
    check(Command(tuple(filled(word) for word in command.words)))
