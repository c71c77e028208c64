"""Ranks that the script starts itself, and that leave their process group before they end."""

import gc
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def work(rank: int, meeting: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(30):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).mean().backward()
        optimizer.step()
    dist.destroy_process_group()
    del model, optimizer  # as in ranks.py
    gc.collect()


if __name__ == "__main__":
    mp.spawn(work, args=(sys.argv[1],), nprocs=2)
