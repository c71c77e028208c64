"""Training that is killed at random moments, from one warm process: children are forked, so torch is imported once.

python killed.py LOOP FOLDER KILLS SEED prints what happened as JSON. LOOP is plain, or trainer for fulltilt's.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from fulltilt.train import Trainer
from fulltilt.train.checkpoint import Checkpoints, rng

STEPS, EVERY = 120, 2

# Libraries' threads are idle when children are forked, and these use none of them.
warnings.filterwarnings("ignore", message=r"This process .* is multi-threaded", category=DeprecationWarning)


def network() -> torch.nn.Module:
    random.seed(0)
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 4096), torch.nn.Dropout(0.3), torch.nn.Linear(4096, 1))


def tell(report: Path, begin: int, leftovers: int) -> None:
    with open(report, "a") as log:
        log.write(json.dumps({"begin": begin, "leftovers": leftovers}) + "\n")


def with_trainer(folder: Path, report: Path) -> None:
    """Three epochs of a shuffled loader, saved in the middle of them."""
    model = network()
    inputs = torch.randn(320, 8)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    loader = torch.utils.data.DataLoader(data, 8, shuffle=True)
    leftovers = len(list(folder.glob("checkpoints/.*")))
    config = {
        "training": {
            "epochs": STEPS // 40,
            "checkpoint_every_steps": EVERY,
            "keep_last": 2,
            "output": str(folder),
            "compile": False,
            "precision": "fp32",
        },
        "logging": {"tensorboard": False, "progress": False},
    }
    trainer = Trainer(model, loader, criterion=torch.nn.functional.mse_loss, config=config, device="cpu")
    begin = trainer.resume() if list(folder.glob("checkpoints/checkpoint-*")) else 0
    tell(report, begin, leftovers)
    trainer.fit()


def plain(folder: Path, report: Path) -> None:
    """A loop of one's own: data and dropout come from the random states, so all of them must be put back right."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
    leftovers = len(list(folder.glob(".*"))) if folder.exists() else 0
    with Checkpoints(folder, keep_last=2, keep_best=1) as checkpoints:
        begin = 0
        if checkpoints.latest() is not None:
            state = checkpoints.load()
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            scheduler.load_state_dict(state["scheduler"])
            rng.restore(state["rng"])
            begin = state["step"]
        tell(report, begin, leftovers)
        for step in range(begin + 1, STEPS + 1):
            inputs = torch.randn(16, 8)
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean() * (1 + random.random())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            if step % EVERY == 0:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "scheduler": scheduler.state_dict(),
                    "rng": rng.take(),
                    "step": step,
                }
                checkpoints.save(state, step=step, epoch=0, metric=loss.item())


def in_child(train: Callable[[Path, Path], None], folder: Path, report: Path) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            train(folder, report)
            status = 0
        finally:
            os._exit(status)
    return child


def await_a_write(folder: Path) -> None:
    until = time.monotonic() + 0.2
    while time.monotonic() < until and not list(folder.glob("**/.*.partial")):
        pass


def main(train: Callable[[Path, Path], None], folder: Path, kills: int, seed: int) -> None:
    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    draw = random.Random(seed)
    report = folder / "report"
    train(folder / "warm", folder / "warm-report")  # what torch imports on first use is imported once
    began = time.monotonic()
    train(folder / "whole", folder / "whole-report")
    seconds = time.monotonic() - began
    killed = 0
    (folder / "killed").mkdir()
    while killed < kills:
        child = in_child(train, folder / "killed", report)
        # Most lives are short, so that there is something left to be killed to the end.
        time.sleep(seconds * draw.random() ** 2 * 0.25)
        if killed % 2:  # every other one in the midst of a write, as far as it can be seen from here
            await_a_write(folder / "killed")
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status):
            killed += 1
        else:
            assert status == 0, f"a child failed with {status}"
            (folder / "killed").rename(folder / f"finished-{killed}")  # it was through: begin anew
            (folder / "killed").mkdir()
    assert os.waitpid(in_child(train, folder / "killed", report), 0)[1] == 0
    print(json.dumps({"killed": killed, "lives": [json.loads(line) for line in report.read_text().splitlines()]}))


if __name__ == "__main__":
    loops = {"plain": plain, "trainer": with_trainer}
    main(loops[sys.argv[1]], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
