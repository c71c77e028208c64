"""`fulltilt diagnose` and `fulltilt compare` as real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "diagnose" / "scripts" / "slow_transform.py"


LOOP = """import sys
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(20):
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
"""


def run(*args, cwd, env=None):
    command = [sys.executable, "-m", "fulltilt", *map(str, args)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=200, cwd=cwd, check=False, env={**os.environ, **(env or {})}
    )


@pytest.fixture(scope="module")
def diagnosed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("diagnosed")
    (folder / "train.py").write_text(SCRIPT.read_text() + "\nprint('never printed: it is ended before')\n")
    done = run(
        *("diagnose", "--max-steps", 20, "--max-seconds", 4, "--json", "a.json", "--html", "a.html"),
        *("train.py", "--lr", "1"),
        cwd=folder,
    )  # fmt: skip
    return folder, done


@pytest.mark.timeout(200)
def test_headroom_first_then_phases_then_the_finding(diagnosed):
    folder, done = diagnosed
    assert done.returncode == 0, done.stderr
    out = done.stdout
    parts = ("headroom. One transform", "limit of the step", "█ data wait", "One transform holds", "→ ")
    order = [out.rindex(part) for part in parts]
    assert order == sorted(order)
    assert "Vignette" in out
    assert "train.py --lr 1" in out
    assert all(line == line.rstrip() for line in out.splitlines())
    assert "wrote a.json" in done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["a.html", "a.json", "train.py"]


@pytest.mark.timeout(200)
def test_the_files_hold_the_same(diagnosed):
    folder, done = diagnosed
    assert done.returncode == 0, done.stderr
    data = json.loads((folder / "a.json").read_text())
    assert data["findings"][0]["cause"] == "slow-transform"
    assert data["observation"]["command"] == ["train.py", "--lr", "1"]
    page = (folder / "a.html").read_text()
    assert data["findings"][0]["title"] in page
    assert len(page) < 1_500_000
    assert "All cores" in page  # the machine was recorded meanwhile


@pytest.mark.timeout(200)
def test_compare_reads_what_was_written(diagnosed, tmp_path):
    folder, done = diagnosed
    assert done.returncode == 0, done.stderr
    data = json.loads((folder / "a.json").read_text())
    for step in data["observation"]["steps"]:
        step["seconds"] /= 2
        step["phases"] = {phase: seconds / 2 for phase, seconds in step["phases"].items()}
    data["findings"] = []
    (tmp_path / "b.json").write_text(json.dumps(data))
    done = run("compare", folder / "a.json", "b.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2.00×" in done.stdout
    assert done.stdout.count("as it is") == 2
    assert "gone  one slow transform" in done.stdout
    done = run("compare", folder / "a.json", "b.json", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["speedup"] == pytest.approx(2)
    # An observation alone has rates and phases too.
    (tmp_path / "c.json").write_text(json.dumps(data["observation"]))
    done = run("compare", folder / "a.json", "c.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "headroom" not in done.stdout


@pytest.mark.timeout(100)
def test_a_script_that_fails_has_its_traceback_and_its_status(tmp_path):
    (tmp_path / "fails.py").write_text("import sys\nprint('hello')\nraise SystemExit(7)\n")
    done = run("diagnose", "fails.py", cwd=tmp_path)
    assert done.returncode == 7
    assert done.stdout == "hello\n"
    (tmp_path / "raises.py").write_text("def f():\n    raise KeyError('mine')\nf()\n")
    done = run("diagnose", "raises.py", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("KeyError: 'mine'")
    assert "fulltilt/" not in done.stderr.split("Traceback", 1)[1]


@pytest.mark.timeout(100)
def test_one_that_has_trained_and_leaves_with_a_status_is_diagnosed(tmp_path):
    (tmp_path / "leaves.py").write_text(f"{LOOP}sys.exit(3)\n")
    done = run("diagnose", "leaves.py", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert "The step's limit could not be measured" in done.stdout
    assert "leaves.py ended with exit status 3" in done.stderr


@pytest.mark.timeout(100)
def test_one_that_has_trained_and_fails_is_not_whoever_shows_its_traceback(tmp_path):
    (tmp_path / "fails.py").write_text(f"{LOOP}sys.excepthook = print\nraise KeyError('mine')\n")
    done = run("diagnose", "fails.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "KeyError" in done.stdout
    assert "limit" not in done.stdout
    assert "what fails is not diagnosed" in done.stderr


@pytest.mark.timeout(100)
def test_a_module_is_run_as_python_would_with_its_own_options(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "train.py").write_text("import sys\nprint(sys.argv[1:])\nraise SystemExit(5)\n")
    done = run("diagnose", "-m", "pkg.train", "--html", "mine", "-h", cwd=tmp_path)
    assert done.returncode == 5, done.stderr
    assert done.stdout == "['--html', 'mine', '-h']\n"


@pytest.mark.timeout(100)
def test_ctrl_c_ends_the_script_and_leaves_nothing(tmp_path):
    (tmp_path / "endless.py").write_text(
        "import os, time\nopen('/dev/fd/1', 'w').write(f'{os.getpid()}\\n')\nwhile True:\n    time.sleep(0.1)\n"
    )
    command = [sys.executable, "-m", "fulltilt", "diagnose", "endless.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, stderr=subprocess.PIPE) as process:
        child = int(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
        assert process.returncode == 130
    assert "Traceback" not in said.replace("endless.py", "")
    assert said.splitlines()[-1] == "fulltilt: interrupted while watching: there is no diagnosis"
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["endless.py"]


@pytest.mark.timeout(100)
def test_a_script_that_never_trains_is_said(tmp_path):
    (tmp_path / "idle.py").write_text("print('nothing')\n")
    done = run("diagnose", "idle.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "fulltilt: idle.py was not seen to train" in done.stderr.splitlines()[-1]


@pytest.mark.timeout(100)
@pytest.mark.parametrize(
    "step",
    [
        "model(batch).sum().backward(); [p.data.add_(p.grad, alpha=-0.01) for p in model.parameters()]",
        "torch.func.grad(lambda w: (batch @ w).sum())(torch.zeros(4))",
    ],
)
def test_one_that_trains_without_an_optimizer_is_told_so(tmp_path, step):
    (tmp_path / "by_hand.py").write_text(
        f"import torch\nmodel, batch = torch.nn.Linear(4, 1), torch.randn(8, 4)\nfor _ in range(20):\n    {step}\n"
    )
    done = run("diagnose", "by_hand.py", cwd=tmp_path)
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert "by_hand.py: 20 backwards, but no step of a torch optimizer" in said
    assert "torch.optim.SGD" in said
    assert "arguments" not in said


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "no script was given"),
        (("gone.py",), "there is no script gone.py"),
        (("-m",), "no module was named"),
        (("--max-steps", "2", "x.py"), "--max-steps: expected at least 5, found 2"),
        (("--max-seconds", "0", "x.py"), "--max-seconds: expected at least 1, found 0"),
        (("--html", "no/such/page.html", "x.py"), "--html: there is no folder no/such"),
    ],
)
def test_wrong_arguments(tmp_path, args, said):
    done = run("diagnose", *args, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("fulltilt: ")
    assert said in done.stderr


def test_a_rank_of_torchrun_that_is_not_the_first_leaves_it_to_that(tmp_path):
    env = {"TORCHELASTIC_RUN_ID": "x", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2"}
    done = run("diagnose", "gone.py", cwd=tmp_path, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = run("diagnose", "gone.py", cwd=tmp_path, env={**env, "WORLD_SIZE": "4"})
    assert done.returncode == 2
    assert "4 processes, 2 of them on this machine" in done.stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "can't read"),
        ("{", "is not JSON"),
        ("[1]", "holds a list"),
        ('{"findings": 3}', "neither a diagnosis nor an observation"),
        ("{}", "neither a diagnosis nor an observation"),
    ],
)
def test_compare_of_something_else(tmp_path, content, said):
    if content is not None:
        (tmp_path / "a.json").write_text(content)
    done = run("compare", "a.json", "a.json", cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
