"""The package as a whole: its public surface, and how light it is to import."""

import inspect
import pickle
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import fulltilt
from fulltilt import errors
from fulltilt.cli import app

PUBLIC = {
    "AsyncDataProcessor",
    "CPUAssistedTraining",
    "FulltiltError",
    "GPUAugmentation",
    "HybridPrecisionTrainer",
    "MinimalGPUAugmentation",
    "ProgressiveAugmentation",
    "StrongGPUAugmentation",
    "Trainer",
    "__version__",
    "get_optimal_batch_size",
}


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


def test_the_public_surface_is_pinned_and_small():
    assert set(fulltilt.__all__) == PUBLIC
    assert len(fulltilt.__all__) <= 15


def test_every_public_name_resolves():
    for name in fulltilt.__all__:
        assert getattr(fulltilt, name) is not None


def test_an_unknown_name_says_what_there_is():
    with pytest.raises(AttributeError, match="FulltiltError"):
        _ = fulltilt.nothing_of_this_name


@pytest.mark.parametrize("heavy", ["torch", "numpy", "triton", "pydantic"])
def test_import_fulltilt_is_light(heavy):
    assert python(f"import sys, fulltilt; print({heavy!r} in sys.modules)").stdout.strip() == "False"


def test_help_is_light_and_quick():
    code = (
        "import sys, time\n"
        "from fulltilt.cli import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "print('torch' in sys.modules, 'numpy' in sys.modules, time.process_time())"
    )
    runs = [python(code).stdout.split()[-3:] for _ in range(3)]
    assert all(run[:2] == ["False", "False"] for run in runs)
    assert min(float(run[2]) for run in runs) < 0.5


def test_python_dash_m_is_the_command():
    done = subprocess.run([sys.executable, "-m", "fulltilt", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"fulltilt {fulltilt.__version__}"


def test_every_error_goes_from_process_to_process_with_what_it_carries():
    carried = [
        errors.TaskError("failed", task="metrics"),
        errors.TaskTimeoutError("late", task="metrics"),
        errors.LossError("NaN", step=3, epoch=1, batch=2),
        errors.DecodeError("cut off", problem="truncated"),
        errors.RecordingError("no number", line=7),
        errors.UnavailableError("no GPU"),
    ]
    for error in carried:
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)


def _commands(command, path=()):
    yield path, command
    for name, inside in getattr(command, "commands", {}).items():
        yield from _commands(inside, (*path, name))


def test_help_is_whole_in_a_terminal_of_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    found = list(_commands(get_command(app)))
    assert len(found) > 10
    for path, command in found:
        shown = CliRunner().invoke(app, [*path, "--help"]).output
        assert not re.search(r"…\s", shown), f"{path}: something is cut off"  # NAME… is the text's own
        later = inspect.cleandoc(command.help or "").split("\n\n")[1:]
        assert not any("\n" in paragraph for paragraph in later), f"{path}: broken where the source's lines are"


def test_every_room_but_the_machine_s_is_kept_from_nvml():
    contracts = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["tool"]["importlinter"]
    (kept,) = [one for one in contracts["contracts"] if one.get("forbidden_modules") == ["pynvml"]]
    rooms = {f"fulltilt.{file.parent.name}" for file in Path(fulltilt.__file__).parent.glob("*/__init__.py")}
    assert set(kept["source_modules"]) == rooms - {"fulltilt.machine"}
