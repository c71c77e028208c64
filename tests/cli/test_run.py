"""`fulltilt run` as a user types it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from html import unescape
from pathlib import Path
from typing import Any

import psutil
import pytest

FULLTILT = [sys.executable, "-m", "fulltilt", "run"]

SLEEPY = """
import sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)

class Slow(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.randn(8) + index / 4000, index % 3

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step, (inputs, labels) in enumerate(DataLoader(Slow(), batch_size=4, shuffle=True)):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(inputs), labels)
    loss.backward()
    optimizer.step()
    time.sleep(0.02)  # the step's own work: four workers feed it, and more of them win nothing
    if step == int(sys.argv[1]):
        break
print("trained", step, flush=True)
sys.exit(7)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str, timeout: float = 240.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*FULLTILT, *words], capture_output=True, text=True, timeout=timeout, check=False)


def plans(home: Path) -> list[Path]:
    return list((home / "cache" / "fulltilt" / "plans").glob("*.toml"))


@pytest.mark.timeout(700)
def test_a_starved_script_is_found_a_plan_that_is_used_again(home: Path) -> None:
    """The whole way: planted are samples that wait 20 ms each, and no workers.

    Nobody computes, so a busy machine changes little; the time is a bound that is reached only there, where noise asks
    for more and more trials, and nothing here is held against a clock. Trials are faster than the script as it is, and
    reach its `sys.exit(7)` where it was not watched so far: that is its own, and no failure of a setting.
    """
    (home / "train.py").write_text(f"import helpers\n{SLEEPY}")
    (home / "helpers.py").write_text("")
    first = run("--max-seconds", "200", "--json", "found.json", "--html", "found.html", "train.py", "90", timeout=500)
    assert first.returncode == 7, first.stderr
    assert first.stdout == "trained 90\n", "trials' output is not the script's"
    assert "failed" not in first.stderr, first.stderr
    found = json.loads((home / "found.json").read_text())
    plan = found["plan"]
    assert plan is not None, first.stderr
    assert plan["settings"].get("loader.num_workers", 0) >= 2, first.stderr
    assert plan["after"] >= 1.5 * plan["before"]
    assert "to the last bit, with each sample's random draws fixed; in the run itself they are" in plan["verified"]
    assert f"fulltilt: verified: {plan['verified']}\n" in first.stderr
    assert found["after"]["verified"] == plan["verified"]
    assert "random draws fixed" in (home / "found.html").read_text()
    assert found["losses"]["before"] == found["losses"]["after"]
    assert len(found["losses"]["before"]) >= 12
    assert found["diagnosis"]["headroom"] > 0.5
    assert found["after"]["samples_per_second"] >= 1.5 * plan["before"], "the full run, too"
    assert "<html" in (home / "found.html").read_text()
    assert len(plans(home)) == 1

    again = run("train.py", "90")
    assert (again.returncode, again.stdout) == (7, "trained 90\n")
    assert "the plan found before" in again.stderr
    assert "an earlier search measured" in again.stderr
    assert "; this run " in again.stderr
    assert not any(word in again.stderr for word in ("looking for", "tried", "comparing")), (
        "nothing is looked for again"
    )

    shown = run("--dry-run", "train.py", "90")
    assert shown.returncode == 0
    assert "trained" not in shown.stdout
    assert '"loader.num_workers" =' in shown.stdout
    assert "DataLoader(…, num_workers=" in shown.stdout
    assert f'verified = "{plan["verified"]}"' in shown.stdout

    other = run("--level", "exact", "--no-tune", "--dry-run", "train.py", "90")
    assert "does not fit: it is of level numeric, asked for is exact" in other.stderr
    assert "no plan" in other.stdout, "its samples draw: with its workers they would draw others"

    (home / "helpers.py").write_text("# changed\n")
    stale = run("--no-tune", "--dry-run", "train.py", "90")
    assert f"{home / 'helpers.py'}, which the script imports, has changed since" in stale.stderr
    assert "no plan" in stale.stdout
    (home / "train.py").write_text(SLEEPY)
    stale = run("--no-tune", "--dry-run", "train.py", "90")
    assert "the script has changed since" in stale.stderr


DRAWING = """
import sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)

class Samples(Dataset):
    def __init__(self, count, draws):
        self.count, self.draws = count, draws

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(0.005)
        own = torch.Generator().manual_seed(index)
        return torch.randn(8, generator=None if self.draws else own) + index % 3, index % 3

def slow_start(_):
    time.sleep(0.2)

torch.manual_seed(0)
net = nn.Sequential(nn.Dropout(0.1), nn.Linear(8, 3))  # draws of its own, between those of the loaders
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
draws, workers = sys.argv[1] == "draws", int(sys.argv[2])
train = DataLoader(Samples(96, draws), 8, shuffle=True, num_workers=workers, worker_init_fn=slow_start)
held_out = DataLoader(Samples(8, True), 8)
for epoch in range(int(sys.argv[3])):
    for inputs, labels in train:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(inputs), labels)
        loss.backward()
        optimizer.step()
        time.sleep(0.01)  # as many workers as that needs, no more
    with torch.no_grad():
        for inputs, labels in held_out:
            print(epoch, loss.item(), nn.functional.cross_entropy(net(inputs), labels).item())
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("draws", [True, False], ids=["samples that draw", "samples that draw nothing"])
def test_at_level_exact_the_run_prints_what_the_script_does(home: Path, draws: bool) -> None:
    """To the last digit, over many epochs, with an evaluation in between whose samples draw in the training process: it
    is given no workers, or the next epoch's order would be another one. Planted is a training loader without workers.
    """
    (home / "train.py").write_text(DRAWING)
    words = ("draws" if draws else "own", "0", "12")
    plain = subprocess.run([sys.executable, "train.py", *words], capture_output=True, text=True, check=True)
    ended = run("--level", "exact", "--max-seconds", "100", "--json", "found.json", "train.py", *words)
    assert ended.returncode == 0, ended.stderr
    plan = json.loads((home / "found.json").read_text())["plan"]
    assert plan is not None, ended.stderr
    assert ("loader.num_workers" in plan["settings"]) != draws, ended.stderr
    left_out = "another number of workers is left out at level exact: its samples draw random numbers"
    assert (left_out in ended.stderr) == draws
    assert plan["verified"].endswith("left as it is" if draws else "losses are the same, to the last bit")
    assert ended.stdout == plain.stdout


TRAIN = f"train.py:{DRAWING[: DRAWING.index('train = ')].count(chr(10)) + 1} Samples 96"


@pytest.mark.parametrize(
    ("settings", "fits"),
    [
        ({"loader.persistent_workers": True, "loader.keep_memory": True, "loader.prefetch_factor": 4}, True),
        ({"loader.num_workers": 4}, False),
        ({"loader.num_workers": 4, "loader.undrawn": [TRAIN]}, True),
    ],
    ids=["living on", "other workers", "other workers, it was thought"],
)
def test_a_plan_is_used_at_level_exact_where_it_leaves_draws_as_they_are(
    home: Path, settings: dict[str, Any], fits: bool
) -> None:
    """Samples draw in two workers. The last plan says that they don't: it is told, and corrected."""
    from fulltilt.launch.command import parse
    from fulltilt.launch.search.plan import Plan, key_of, read, write

    (home / "train.py").write_text(DRAWING)
    words = ["train.py", "draws", "2", "4"]
    plan = Plan(key=key_of(parse(words)), level="exact", settings=settings, before=1.0, verified="the same")
    write(plan, home / "plan.toml")
    plain = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    ended = run("--level", "exact", "--no-tune", "--plan", "plan.toml", *words)
    assert ended.returncode == 0, ended.stderr
    assert ("does not fit: it is of level numeric, asked for is exact" in ended.stderr) != fits
    thought = "loader.undrawn" in settings
    assert (ended.stdout == plain.stdout) != thought, "with other workers, draws are others"
    assert (f"{TRAIN} drew random numbers, which was not seen" in ended.stderr) == thought
    assert read(home / "plan.toml").settings == ({} if thought else settings)


def test_a_time_too_short_for_one_trial_is_said_with_one_that_does(home: Path) -> None:
    """Before the script's own output and behind it; what was seen is in the files.

    Each start takes 6 s at the least: two runs to watch it, two trials and two to compare losses are more than 40.
    """
    (home / "train.py").write_text(SLEEPY.replace("import sys, time, torch", "import sys, time, torch; time.sleep(6)"))
    ended = run("--max-seconds", "40", "--json", "found.json", "--html", "found.html", "train.py", "30")
    assert (ended.returncode, ended.stdout) == (7, "trained 30\n")
    found = json.loads((home / "found.json").read_text())
    assert found["plan"] is None
    assert "40 s are too short for one trial" in found["not_tuned"]
    assert "would do" in found["not_tuned"]
    assert f"fulltilt: {found['not_tuned']}: the script is run as it is" in ended.stderr
    assert ended.stderr.splitlines()[-1] == f"fulltilt: run as it is: {found['not_tuned']}"
    assert found["diagnosis"]["findings"]
    assert f"Run as it is: {found['not_tuned']}." in unescape((home / "found.html").read_text())
    assert not plans(home)


def test_a_script_that_fails_by_itself(home: Path) -> None:
    (home / "train.py").write_text("import sys\nprint('begins')\nraise KeyError('its own')\n")
    plain = subprocess.run([sys.executable, "train.py"], capture_output=True, text=True, check=False)
    ended = run("train.py")
    assert ended.returncode == plain.returncode == 1
    assert ended.stdout == plain.stdout
    assert plain.stderr in ended.stderr, "its traceback, nothing of ours in between"
    assert not plans(home)


def test_a_script_that_never_trains_is_simply_run(home: Path) -> None:
    (home / "job.py").write_text("import sys\nprint(sys.argv[1:], sys.stdin.read())\nsys.exit(3)\n")
    ended = subprocess.run(
        [*FULLTILT, "job.py", "--lr", "1", "-h"], input="said", capture_output=True, text=True, check=False
    )
    assert ended.returncode == 3
    assert ended.stdout == "['--lr', '1', '-h'] said\n"
    assert "run as it is" in ended.stderr


@pytest.mark.parametrize("options", [(), ("--no-tune",)], ids=["tuning", "no-tune"])
def test_standard_input_that_is_closed_stays_so(home: Path, options: tuple[str, ...]) -> None:
    (home / "job.py").write_text("import sys\nprint(sys.stdin)\nsys.exit(3)\n")
    closed = ["sh", "-c", '"$@" <&-', "sh", *FULLTILT, *options, "job.py"]
    ended = subprocess.run(closed, capture_output=True, text=True, timeout=100, check=False)
    assert "Traceback" not in ended.stderr
    assert (ended.returncode, ended.stdout) == (3, "None\n")


@pytest.mark.parametrize("archive", [False, True], ids=["folder", "archive"])
def test_a_folder_or_an_archive_with_a_main_is_run(home: Path, archive: bool) -> None:
    (home / "job").mkdir()
    (home / "job" / "__main__.py").write_text("import sys, beside\nprint(beside.said, sys.argv[1:])\nsys.exit(3)\n")
    (home / "job" / "beside.py").write_text("said = 'ran'\n")
    target = shutil.make_archive("packed", "zip", "job") if archive else "job/"
    ended = run(target, "--lr", "1")
    assert "Traceback" not in ended.stderr
    assert (ended.returncode, ended.stdout) == (3, "ran ['--lr', '1']\n")
    assert "run as it is" in ended.stderr


def test_a_script_is_run_although_there_is_no_room_for_temporary_files(home: Path) -> None:
    from fulltilt.launch.command import parse
    from fulltilt.launch.search.plan import Plan, key_of, write

    (home / "hello.py").write_text("print('hello')\n")
    command = parse(["hello.py"])
    plan = Plan(key=key_of(command), level="numeric", settings={"tf32": True}, before=1.0, after=2.0)
    write(plan, home / "hello.toml")
    limited = ["prlimit", "--fsize=0", *FULLTILT]  # of any file: the disk is full for it
    for options, said in ((["--no-tune"], False), ([], True), (["--plan", "hello.toml"], True)):
        done = subprocess.run([*limited, *options, "hello.py"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "hello\n")
        assert ("no room for temporary files" in done.stderr) == said
        assert "Traceback" not in done.stderr


def test_no_tune_without_a_plan_adds_nothing(home: Path) -> None:
    (home / "job.py").write_text("import os\nprint(os.environ.get('FULLTILT_JOB'))\n")
    ended = run("--no-tune", "job.py")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "None\n", "")


def test_tune_searches_again_although_a_plan_fits(home: Path) -> None:
    from fulltilt.launch.command import parse
    from fulltilt.launch.search import plan as plans

    (home / "job.py").write_text("print('ran')\n")
    plans.write(plans.Plan(key=plans.key_of(parse(["job.py"])), level="numeric", settings={}), home / "plan.toml")
    kept = (home / "plan.toml").read_text()
    known = run("--plan", "plan.toml", "job.py")
    assert (known.returncode, known.stdout) == (0, "ran\n")
    assert "the plan of plan.toml" in known.stderr
    assert "looking for" not in known.stderr
    again = run("--tune", "--plan", "plan.toml", "job.py")
    assert (again.returncode, again.stdout) == (0, "ran\n")
    assert "looking for what makes job.py faster" in again.stderr
    assert "the plan of" not in again.stderr
    assert (home / "plan.toml").read_text() == kept, "nothing was found: what was known stays"


def test_a_damaged_plan_is_said(home: Path) -> None:
    (home / "job.py").write_text("print('ran')\n")
    (home / "plan.toml").write_text("format = [")
    ended = run("--no-tune", "--plan", "plan.toml", "job.py")
    assert ended.returncode == 0
    assert ended.stdout == "ran\n"
    assert "can't be read" in ended.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no script was given"),
        (("none.py",), "there is no script"),
        (("--max-seconds", "1", "x.py"), "10 to 86400"),
    ],
)
def test_bad_input(home: Path, words: tuple[str, ...], said: str) -> None:
    ended = run(*words)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("tuning", [True, False])
def test_ctrl_c_leaves_nothing(home: Path, tuning: bool) -> None:
    (home / "train.py").write_text(SLEEPY)
    words = ["train.py", "100000"] if tuning else ["--no-tune", "train.py", "100000"]
    process = subprocess.Popen([*FULLTILT, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    children: set[psutil.Process] = set()
    until = time.monotonic() + 60
    while time.monotonic() < until and not any("train.py" in " ".join(_line(one)) for one in children):
        children |= set(psutil.Process(process.pid).children(recursive=True))
        time.sleep(0.1)
    time.sleep(3.0)
    children |= set(psutil.Process(process.pid).children(recursive=True))
    assert children
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 if tuning else process.returncode in (1, 130)
    assert (b"interrupted while looking: no plan is kept" in said) == tuning
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    assert not plans(home)
    assert sorted(os.listdir(home)) == ["train.py"]


DEAF = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.stdout.write("deaf\\n")
sys.stdout.flush()
time.sleep(100)
"""


def test_the_third_ctrl_c_no_longer_asks(home: Path) -> None:
    (home / "train.py").write_text(DEAF)
    with subprocess.Popen(
        [*FULLTILT, "--no-tune", "train.py"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "deaf\n"
            for _ in range(3):
                assert process.poll() is None
                process.send_signal(signal.SIGINT)
                time.sleep(0.5)
            assert process.wait(20) == 128 + signal.SIGKILL
        finally:
            process.kill()


def _line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_a_plan_that_can_not_be_kept_is_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from importlib import import_module

    from fulltilt.launch.command import parse
    from fulltilt.launch.search import tune
    from fulltilt.launch.search.plan import Key, Plan

    cli = import_module("fulltilt.cli.run")  # the package has a function of that name
    key = Key(command=("train.py",), content="", hardware="", versions={})
    plan = Plan(
        key=key, level="exact", settings={"loader.num_workers": 2}, before=1.0, after=2.0, limit=None, verified=""
    )
    found = tune.Tuned(plan=plan, diagnosis=None, seconds=3.0)  # type: ignore[arg-type]
    monkeypatch.setattr(tune.Tuner, "tune", lambda _: found)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "cache").write_text("a file")
    command, path = parse([str(tmp_path / "train.py")]), tmp_path / "cache" / "plan.toml"
    assert cli._tuned(command, cli.LevelName.EXACT, path, max_seconds=10.0) == (plan, found)
    assert "the plan is not kept: can't make the folder" in capsys.readouterr().err


@pytest.mark.parametrize("complete", [True, False])
def test_nothing_found_is_kept_only_where_all_was_tried(
    complete: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from importlib import import_module

    from fulltilt.cli.run_view import show_plan
    from fulltilt.diagnose import diagnose
    from fulltilt.launch.command import parse
    from fulltilt.launch.search import tune
    from fulltilt.launch.search.plan import Key, Plan
    from fulltilt.measure.observation import Observation

    cli = import_module("fulltilt.cli.run")
    key = Key(command=("train.py",), content="", hardware="", versions={})
    plan = Plan(key=key, level="exact", settings={}, before=1.0, after=1.0, limit=None, verified="")
    seen = diagnose(Observation(command=("train.py",), ended="steps", seconds=1.0))
    found = tune.Tuned(plan=plan, diagnosis=seen, seconds=3.0, complete=complete)
    monkeypatch.setattr(tune.Tuner, "tune", lambda _: found)
    (tmp_path / "train.py").write_text("")
    command, path = parse([str(tmp_path / "train.py")]), tmp_path / "plan.toml"
    assert cli._tuned(command, cli.LevelName.EXACT, path, max_seconds=10.0) == (plan, found)
    assert path.exists() == complete
    assert ("a larger --max-seconds looks further" in capsys.readouterr().err) != complete
    show_plan(command, plan, found)
    assert ("best left as it is" in capsys.readouterr().out) == complete


def test_ctrl_c_at_a_terminal_is_told_from_others_whatever_standard_input_is() -> None:
    import fcntl
    import pty
    import termios

    ours, theirs = pty.openpty()
    code = "from fulltilt.launch.run import _at_terminal; print(_at_terminal())"

    def asked(*, terminal: bool) -> str:
        # The first terminal that a new session has to do with is its own.
        take = (lambda: fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)) if terminal else None
        return subprocess.run(
            [sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True,
            start_new_session=True, preexec_fn=take, pass_fds=(theirs,),
        ).stdout.strip()  # fmt: skip

    try:
        assert asked(terminal=True) == "True"
        assert asked(terminal=False) == "False"
    finally:
        os.close(ours)
        os.close(theirs)
