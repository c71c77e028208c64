"""A user's own script for torchrun: a Trainer, and nothing said about processes. Runs the jobs that it is given.

Also called in one process, with `jobs(…)`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from fulltilt import Trainer
from fulltilt.feed import feed
from fulltilt.machine.ranks import rank
from fulltilt.train import process_group

GLOBAL_BATCH = 12
SAMPLES = 96


def samples() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(3)
    inputs = torch.randn(SAMPLES, 8, generator=draw)
    return inputs, (inputs[:, 0] * inputs[:, 1] > 0).long()


class Stream:
    """Batches without a length; rank 1 has fewer than rank 0."""

    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        self._inputs, self._labels = inputs, labels

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(5 - 2 * rank()):
            part = slice(4 * number, 4 * number + 4)
            yield self._inputs[part], self._labels[part]


def run(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Train; losses, figures and whole weights."""
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    if job.get("unused"):
        model.register_parameter("unused", nn.Parameter(torch.ones(3)))
    inputs, labels = samples()
    if (bad := job.get("bad_sample")) is not None:
        inputs[bad] = torch.nan
    size, config = GLOBAL_BATCH // int(os.environ.get("WORLD_SIZE", "1")), dict(job["config"])
    device = job.get("device", "cpu")
    train: Any = feed((inputs, labels), batch_size=size, shuffle=True, device=device)
    if job.get("loader"):
        train = DataLoader(TensorDataset(inputs, labels), size, shuffle=True)
    if job.get("uneven"):
        train = Stream(inputs, labels)
    held_out = DataLoader(TensorDataset(inputs[:41], labels[:41]), 4)  # which no number of ranks divides
    config |= {
        "epochs": 3,
        "eval_interval": 1,
        "compile": False,
        "precision": "fp32",
        "device": device,
        "output": str(folder / job["name"]),
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    if job.get("wrapped"):
        model = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    metrics = {"accuracy": MulticlassAccuracy(2)} if device == "cpu" else None
    trainer = Trainer(model, train, held_out, None, optimizer, config=config, metrics=metrics)
    history = trainer.fit()
    weights = {name: value.full_tensor() if hasattr(value, "full_tensor") else value
               for name, value in trainer.model.state_dict().items()}  # fmt: skip
    figures = [{key: value for key, value in record.items() if "loss" in key or "accuracy" in key or key == "samples"}
               for record in history.epochs]  # fmt: skip
    return {"losses": torch.tensor(list(history.losses)), "weights": weights, "figures": figures, "step": trainer.step}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    jobs = json.loads(sys.argv[2])
    # Feeds have to know their rank; a script with DataLoaders alone needs no such line.
    if jobs[0].get("device") == "cuda":  # NCCL wants a GPU for each process, gloo does with one for all
        torch.distributed.init_process_group("gloo")
    with nullcontext() if all(job.get("loader") for job in jobs) else process_group():
        for job in jobs:
            torch.save(run(job, folder), folder / f"{job['name']}-{rank()}.pt")
