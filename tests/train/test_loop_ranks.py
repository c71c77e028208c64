"""Two processes under torchrun: both train, one speaks and writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Each rank writes its line at once, newline included: lines that `print` writes may mingle.
SCRIPT = """
import sys

import torch
from fulltilt import Trainer
from fulltilt.feed import feed
from tests.train.helpers import EXACT, network, samples

torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
data, held_out = (feed(samples(), batch_size=8, shuffle=shuffle, device="cpu") for shuffle in (True, False))
trainer = Trainer(network(), data, held_out, config={"epochs": 2, "eval_interval": 1, "output": "out", **EXACT})
history = trainer.fit()
figures = [(record["train_loss"], record["val_loss"]) for record in history.epochs]
rank = torch.distributed.get_rank()
sys.stdout.write(f"rank {rank}: {trainer.step} steps, main {trainer.is_main}, figures {figures}\\n")
torch.distributed.destroy_process_group()
"""


def torchrun(folder: Path, script: str) -> subprocess.Popen[str]:
    (folder / "script.py").write_text(script)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "script.py"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )  # fmt: skip


def test_only_rank_0_speaks_and_writes_and_figures_are_of_all(tmp_path):
    with torchrun(tmp_path, SCRIPT) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    first, second = sorted(out.splitlines())
    assert first.startswith("rank 0: 12 steps, main True")
    assert second.startswith("rank 1: 12 steps, main False")
    assert first.split("figures ")[1] == second.split("figures ")[1], "each decides by the same figures"
    assert err.count("epoch 1/2: train_loss") == 1
    assert err.count("training Sequential") == 1
    records = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert [record["kind"] for record in records] == ["start", "epoch", "epoch", "end"]
    assert records[1]["samples"] == 96, "of both ranks"
    assert len(list((tmp_path / "out" / "checkpoints").iterdir())) == 2


STOPPED = """
import os, signal, sys, time
import torch
from fulltilt import Trainer
from fulltilt.feed import feed
from tests.train.helpers import EXACT, network, samples

torch.distributed.init_process_group("gloo")
inputs, labels = samples()

def slowly(batch):
    time.sleep(0.01)
    if trainer.step == 25 and torch.distributed.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGTERM)  # one is told, both leave
    return batch

data = feed((inputs, labels), batch_size=4, device="cpu")
trainer = Trainer(network(), data, config={"epochs": 20, "output": "out", **EXACT}, gpu_augmentation=slowly)
history = trainer.fit()
sys.stdout.write(f"rank {torch.distributed.get_rank()}: {trainer.step} steps, {history.stopped_by.name}\\n")
torch.distributed.destroy_process_group()
"""


def test_ranks_leave_at_the_same_step(tmp_path):
    with torchrun(tmp_path, STOPPED) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    first, second = sorted(out.splitlines())
    assert first.endswith("SIGTERM")
    assert first.removeprefix("rank 0") == second.removeprefix("rank 1")
    assert 25 <= int(first.split()[2]) < 200, "soon, at a step that all came to agree on"


AUGMENTED = """
import sys
from pathlib import Path
import torch
from torch.utils.data import DataLoader, TensorDataset
from fulltilt import GPUAugmentation, Trainer
from fulltilt.train import process_group
from tests.train.helpers import EXACT
from tests.train.test_sources import Seen, pictures

with process_group():
    rank = torch.distributed.get_rank()
    image, _ = pictures(1)
    alike = TensorDataset(image.expand(12, -1, -1, -1), torch.arange(12) % 2)  # what differs was drawn
    model = Seen()
    config = {"epochs": 2, "checkpoint_every_steps": 1, "keep_last": 9, "output": "out", **EXACT}

    def trainer(model):
        augmentation = GPUAugmentation(rotation_degrees=30, seed=3)
        return Trainer(model, DataLoader(alike, 2), config=config, gpu_augmentation=augmentation)

    trainer(model).fit()
    whole = torch.cat(model.given[True])
    again = Seen()
    resumed = trainer(again)
    resumed.resume(sorted(Path("out/checkpoints").iterdir())[1])
    step = resumed.step
    resumed.fit()
    same = torch.equal(torch.cat(again.given[True]), whole[2 * step:])
    sums = [round(float(images.double().sum()), 4) for images in whole]
    sys.stdout.write(f"rank {rank} {step} {same} {' '.join(map(str, sums))}\\n")
"""


def test_ranks_augment_what_they_count_each_in_its_own_way(tmp_path):
    with torchrun(tmp_path, AUGMENTED) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    first, second = (line.split() for line in sorted(out.splitlines()))
    assert first[2:4] == second[2:4] == ["2", "True"], "gone on with in the middle of an epoch as if never left"
    drawn = [*first[4:], *second[4:]]
    assert len(drawn) == 24
    assert len(set(drawn)) == 24, "two epochs of six samples, on each of two ranks"
