"""`fulltilt train` as a real process: configurations good and bad, signals, resuming, a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from fulltilt.cli.train import train
from fulltilt.errors import FulltiltError, InputError

EXAMPLE = Path(__file__).parents[2] / "examples" / "train.yaml"
SMALL = """
data:
  source: fulltilt.train.shapes:shapes
  args: {count: 64, size: 16}
  val_share: 0.25
  batch_size: 8
model: {name: small_cnn, args: {classes: 4, width: 4}}
training: {epochs: 2, eval_interval: 1, seed: 3, scheduler: onecycle, output: out}
gpu_augmentation: {preset: minimal}
metrics:
  accuracy: {name: MulticlassAccuracy, args: {num_classes: 4}}
"""
SLOW = """
import time
import torch

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.randn(8, generator=torch.Generator().manual_seed(index)), index % 2

class Model(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))
"""
SLOW_CONFIG = """
data: {source: "slow:Slow", batch_size: 4, num_workers: 0}
model: {name: "slow:Model"}
training: {epochs: 2, seed: 1, output: out, checkpoint_every_steps: 1000}
logging: {perf_interval: 10}
"""


def command(*args):
    return [sys.executable, "-m", "fulltilt", "train", *map(str, args)]


def run(*args, cwd, **env):
    return subprocess.run(
        command(*args), capture_output=True, text=True, timeout=120, cwd=cwd, env={**os.environ, **env}, check=False
    )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run.yaml").write_text(SMALL)
    (tmp_path / "slow.yaml").write_text(SLOW_CONFIG)
    (tmp_path / "slow.py").write_text(SLOW)
    return tmp_path


@pytest.fixture
def inside(folder, monkeypatch):
    """For calls in this process."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return folder


@contextmanager
def started(*args, cwd, **how):
    with subprocess.Popen(command(*args), cwd=cwd, stdout=subprocess.PIPE, text=True, **how) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def losses(folder: Path) -> list[float]:
    lines = map(json.loads, (folder / "out" / "log.jsonl").read_text().splitlines())
    return [record["train_loss"] for record in lines if record["kind"] == "epoch"]


def test_a_resume_that_fails_leaves_the_runs_configuration(inside):
    train(inside / "run.yaml")
    before = (inside / "out" / "config.yaml").read_text()
    with pytest.raises(FulltiltError, match="the checkpoint is of another model"):
        train(inside / "run.yaml", ["model.args.width=8"], resume=True)
    assert (inside / "out" / "config.yaml").read_text() == before


def test_a_run_from_file_to_result(folder):
    done = run("run.yaml", "training.lr=5e-3", "--json", cwd=folder, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["steps"] == 12
    assert result["epochs"] == 2
    assert (result["steps_of_this_run"], result["epochs_of_this_run"]) == (12, 2)
    assert 0 < result["seconds_of_this_run"] < 600
    assert result["monitor"] == "val_loss"
    assert result["best"] == min(result["last"]["val_loss"], result["best"])
    assert 0 <= result["last"]["val_accuracy"] <= 1
    assert result["stopped_by"] is None
    assert "\x1b" not in done.stderr, "no bar where there is no terminal"
    assert re.search(r"^epoch 2/2: train_loss .*val_accuracy", done.stderr, re.MULTILINE)
    assert done.stderr.count("the plain loop's maths") == 1, "what all settings have for a reason is said once"
    used = yaml.safe_load((folder / "out" / "config.yaml").read_text())
    assert used["training"]["lr"] == 5e-3
    assert list((folder / "out" / "checkpoints").glob("*.safetensors"))


def test_a_single_step_is_one(inside, capsys):
    train(inside / "run.yaml", ["training.max_steps=1"])
    assert capsys.readouterr().out.startswith("finished after 1 step in 00:")


def test_a_second_run_does_not_write_over_the_first(inside, capsys):
    train(inside / "run.yaml", ["training.epochs=1"])
    with pytest.raises(FulltiltError, match="out holds 1 checkpoint of an earlier run: add --resume to go on with it"):
        train(inside / "run.yaml")
    capsys.readouterr()
    train(inside / "run.yaml", resume=True)
    said = capsys.readouterr()
    assert "fulltilt: resuming from step 6 (epoch 2)" in said.err
    assert re.match(r"finished after 12 steps in \d+:\d\d, best val_loss ", said.out)
    assert "to resume" not in said.err
    with pytest.raises(FulltiltError, match="out holds 2 checkpoints of an earlier run"):
        train(inside / "run.yaml")
    train(inside / "run.yaml", ["training.epochs=3"], resume=True, as_json=True)
    result = json.loads(capsys.readouterr().out)
    assert (result["steps"], result["epochs"], result["last"]["epoch"]) == (18, 3, 3), "in all"
    assert (result["steps_of_this_run"], result["epochs_of_this_run"]) == (6, 1)


def test_a_project_is_trained_from_another_folder(inside, monkeypatch, capsys):
    project, elsewhere = inside / "project", inside / "elsewhere"
    for folder in (project, elsewhere):
        folder.mkdir()
    (project / "of_a_project.py").write_text(SLOW)
    (project / "run.yaml").write_text(SLOW_CONFIG.replace("slow:", "of_a_project:"))
    monkeypatch.chdir(elsewhere)
    train(Path("../project/run.yaml"), ["training.max_steps=1"], as_json=True)
    assert json.loads(capsys.readouterr().out)["steps"] == 1
    assert (elsewhere / "out" / "checkpoints").is_dir()


def test_a_broken_file_lists_everything_and_trains_nothing(folder):
    (folder / "broken.yaml").write_text("data: {batch_size: 0}\ntraining: {lr: fast, epochz: 3}\n")
    done = run("broken.yaml", "training.precision=fp8", cwd=folder)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "fulltilt: broken.yaml: 6 problems",
        "  data.batch_size: found 0; allowed: a whole number ≥ 1 or auto",
        "  training.lr: found 'fast'; allowed: a number > 0",
        "  training.precision: found 'fp8'; allowed: one of auto, fp32, tf32, bf16, fp16",
        "  training.epochz: not a key; did you mean epochs?",
        "  data.source: missing; give a folder of images, a .csv file or package.module:callable",
        "  model: SmallCnn() failed: missing a required argument: 'classes'",
    ]
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["data.source=null"], "data.source: missing; give a folder of images"),
        (["data.source=nowhere", "data.args={}"], "data.source: nowhere does not exist (looked in "),
        (["data.source=no.module:here"], "data.source: there is no module 'no.module'"),
        (["data.source=fulltilt.train.shapes:shape"], "has no 'shape'; did you mean shapes?"),
        (["data.args={cont: 3}"], "data.source: shapes(cont=3) failed: got an unexpected keyword"),
        (["data.args={count: 0}"], "data.source: shapes: count=0 must be ≥ 1"),
        (["model.args={}"], "model: SmallCnn() failed: "),
        (["model.name=math:pi"], "model.name: math:pi is float; expected something that can be called"),
        (["model.name=fulltilt.train.shapes:shapes", "model.args={}"], "returned tuple; expected a torch.nn.Module"),
        (["training.optimizer_args={speed: 3}"], "training.optimizer: AdamW(lr=0.001, speed=3) failed: "),
        (["metrics.a={name: MulticlasAccuracy}"], "metrics.a.name: torchmetrics has no 'MulticlasAccuracy'; did you"),
        (["metrics.a={name: Nope}"], "torchmetrics has no 'Nope'. Others are named package.module:Class"),
        (["model.args.classes=3"], "labels out of range: found 3"),
        (["training.output=/proc/run"], "can't write checkpoints into /proc/run/checkpoints"),
        (["training.device=cuda:7"], "cuda:7"),
    ],
)
def test_what_can_not_be_made_is_said_before_training(inside, overrides, says):
    with pytest.raises(FulltiltError) as caught:
        train(inside / "run.yaml", overrides)
    assert caught.value.exit_status in (2, 3)
    *head, problem = str(caught.value).split("\n  ")
    assert says in problem
    assert head in ([], [f"{inside / 'run.yaml'}: 1 problem"]), "one, whether it was looked up or met"


def test_under_torchrun_the_first_rank_says_what_is_wrong(inside, monkeypatch):
    waited = []

    def leave(status):
        raise SystemExit(status)

    monkeypatch.setattr("os._exit", leave)
    monkeypatch.setattr("time.sleep", waited.append)
    before = signal.getsignal(signal.SIGTERM)
    try:
        monkeypatch.setenv("LOCAL_RANK", "0")
        with pytest.raises(FulltiltError, match=r"nothing\.yaml"):
            train(Path("nothing.yaml"))
        assert not waited
        monkeypatch.setenv("LOCAL_RANK", "1")
        with pytest.raises(FulltiltError, match=r"nothing\.yaml"):  # the first one has no such fault
            train(Path("nothing.yaml"))
        assert waited == [10.0]
        monkeypatch.setattr("time.sleep", lambda _: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(SystemExit, match="2"):  # torchrun: the first has said it, and left
            train(Path("nothing.yaml"))
    finally:
        signal.signal(signal.SIGTERM, before)


def test_print_config_is_complete_and_reads_back_as_the_same(inside, capsys):
    def printed(*args):
        train(*args, print_config=True)
        return capsys.readouterr().out

    whole = printed(inside / "run.yaml", ["training.epochs=7"])
    (inside / "all.yaml").write_text(whole)
    assert printed(inside / "all.yaml") == whole
    assert yaml.safe_load(whole)["training"]["epochs"] == 7
    assert yaml.safe_load(printed(None))["training"]["eval_interval"] == 5
    (inside / "mine.yaml").write_text("data: {source: x}")
    assert yaml.safe_load(printed(inside / "mine.yaml"))["training"]["output"] == "runs/mine"
    with pytest.raises(FulltiltError, match="CONFIG is missing"):
        train()


def test_print_config_says_what_validation_takes_over(inside, capsys):
    """What a run leaves behind does not: there the arguments of training may still be changed for both."""
    source = "fulltilt.train.shapes:shapes"
    (inside / "one.yaml").write_text(
        f"data: {{source: '{source}', args: {{count: 24, size: 16}}, val_source: '{source}', val_args: {{seed: 1}}}}\n"
        "model: {args: {classes: 4, width: 4}}\n"
        "gpu_augmentation: {preset: minimal}"
    )
    train(inside / "one.yaml", ["data.args.size=20"], print_config=True)
    printed = capsys.readouterr().out
    assert yaml.safe_load(printed)["data"]["val_args"] == {"count": 24, "size": 20, "seed": 1}
    train(inside / "one.yaml", ["training.max_steps=1", "training.compile=false", "training.output=run"])
    assert yaml.safe_load((inside / "run" / "config.yaml").read_text())["data"]["val_args"] == {"seed": 1}


def test_folders_of_images(inside, caplog, capsys):
    from PIL import Image

    from fulltilt.train.shapes import shapes

    images, labels = shapes(24, 20)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        where = inside / "pictures" / f"class{int(label)}"
        where.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(where / f"{number}.png")
    (inside / "files.yaml").write_text(
        "data: {source: pictures, val_share: 0.25, batch_size: 6, num_workers: 1, size: 16}\n"
        "model: {args: {classes: 4, width: 4}}\n"
        "training: {epochs: 1, output: out, use_gpu_augmentation: true}\n"
        "gpu_augmentation: {preset: minimal, normalize: imagenet}\n"
    )
    caplog.set_level("INFO", logger="fulltilt")
    train(inside / "files.yaml", as_json=True)
    assert json.loads(capsys.readouterr().out)["last"]["samples"] == 18
    assert "augmentation is on, in training only, in the feed: MinimalGPUAugmentation(" in caplog.text
    with pytest.raises(InputError, match=r"data\.source: \d images without labels or masks; have a"):
        train(inside / "files.yaml", ["data.source=pictures/class0", "training.output=other"])


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The losses of a run that nothing disturbs."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "slow.yaml").write_text(SLOW_CONFIG)
    (folder / "slow.py").write_text(SLOW)
    assert run("slow.yaml", cwd=folder).returncode == 0
    return losses(folder)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_leaves_and_the_losses_go_on_bit_for_bit(folder, uninterrupted, number, status):
    with started("slow.yaml", "logging={perf_interval: 10}", cwd=folder, stderr=subprocess.PIPE) as process:
        for line in process.stderr:
            if line.startswith("[perf] batch 20"):
                break
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == status
    assert re.search(rf"{number.name}: leaving at step \d+, saved in .*out/checkpoints", err)
    assert out.startswith("stopped after ")
    steps = int(out.split()[2])
    assert 20 <= steps < 50
    again = re.search(r"^fulltilt: to resume: fulltilt train (.*)$", err, re.MULTILINE)
    assert again, err
    resumed = run(*shlex.split(again[1]), "--json", cwd=folder)
    assert resumed.returncode == 0, resumed.stderr
    assert f"resuming from step {steps}" in resumed.stderr
    result = json.loads(resumed.stdout)
    assert (result["steps"], result["steps_of_this_run"]) == (100, 100 - steps)
    assert (result["epochs"], result["epochs_of_this_run"]) == (2, 2), "the first one was ended by this run"
    assert losses(folder) == uninterrupted


def test_ctrl_c_reaches_the_loaders_processes_too(folder):
    """A terminal sends it to the whole group; the step must not depend on workers that have gone."""
    config = ["data.num_workers=2", "data.batch_size=20"]
    with started("slow.yaml", *config, cwd=folder, stderr=subprocess.PIPE, start_new_session=True) as process:
        for line in process.stderr:
            if line.startswith("precision: "):  # said with the first step
                break
        time.sleep(0.3)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "SIGINT: leaving at step" in err
    steps = int(out.split()[2])
    resumed = run("slow.yaml", *config, "--resume", "--json", cwd=folder)
    assert resumed.returncode == 0, resumed.stderr
    assert f"resuming from step {steps}" in resumed.stderr
    assert json.loads(resumed.stdout)["steps"] == 20


def test_a_second_signal_breaks_off(folder):
    (folder / "stuck.py").write_text(
        "import time\nimport slow\n"
        "class Stuck(slow.Slow):\n"
        "    def __getitem__(self, index):\n"
        "        if index > 40:\n"
        "            print('stuck', flush=True)\n"
        "            time.sleep(1000)\n"
        "        return super().__getitem__(index)\n"
    )
    overrides = ["data.source=stuck:Stuck", "data.shuffle=false"]
    with started("slow.yaml", *overrides, cwd=folder, stderr=subprocess.DEVNULL) as process:
        assert process.stdout.readline() == "stuck\n"
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert process.poll() is None, "it waits for the batch"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == -signal.SIGTERM


def test_a_terminal_shows_the_bar(folder):
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "110", "LINES": "30"}
    with started("slow.yaml", "training.epochs=1", cwd=folder, stderr=theirs, env=env) as process:
        os.close(theirs)
        screen = b""
        while process.poll() is None or select.select([ours], [], [], 0.2)[0]:
            if select.select([ours], [], [], 0.2)[0]:
                try:
                    screen += os.read(ours, 65536)
                except OSError:  # the terminal's other side is closed
                    break
        process.wait(30)
        told = process.stdout.read()
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.decode())
    assert process.returncode == 0
    assert "best train_loss" in told, "nothing validates it"
    bars = re.findall(r"epoch 1/1 .*?(\d+)/50 +loss [\d.]+  [\d,.]+ samples/s  wait \d+ %  ETA \d+:\d\d", text)
    assert len(bars) >= 2, text[-2000:]
    assert len(bars) <= 60, "drawn a few times a second"
    assert "[perf] batch 20:" in text


def test_the_example_as_it_stands(inside, capsys):
    train(EXAMPLE, ["training.epochs=1", "training.max_steps=6"], as_json=True)
    assert json.loads(capsys.readouterr().out)["steps"] == 6
    assert (inside / "runs" / "shapes" / "log.jsonl").exists()


def test_help_does_not_load_torch():
    code = (
        "import sys\nfrom fulltilt.cli import app\n"
        "try: app(['train', '--help'])\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
