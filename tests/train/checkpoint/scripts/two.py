"""Processes that save into one folder at the same time. python two.py FOLDER PROCESSES SAVES"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import torch

from fulltilt.train.checkpoint import Checkpoints, load_checkpoint

# Libraries' threads are idle when children are forked, and these use none of them.
warnings.filterwarnings("ignore", message=r"This process .* is multi-threaded", category=DeprecationWarning)


def save_many(folder: Path, who: int, saves: int) -> None:
    for step in range(saves):
        with Checkpoints(folder, keep_last=2, keep_best=1) as checkpoints:  # looks for leftovers each time
            value = float(who * 1000 + step)
            checkpoints.save(
                {"value": value, "weights": torch.full((20_000,), value)}, step=step, epoch=0, metric=-value
            )
            checkpoints.wait()
            loaded = checkpoints.load()
            assert (loaded["weights"] == loaded["value"]).all()


def main(folder: Path, processes: int, saves: int) -> None:
    torch.set_num_threads(1)
    children = []
    for who in range(processes):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                save_many(folder, who, saves)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)
    left = sorted(folder.iterdir())
    assert not [path for path in left if path.name.startswith(".")], left
    values = [load_checkpoint(path)["value"] for path in left]
    print(max(values), len(left))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
