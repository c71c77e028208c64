"""Trains in a process of its own, as launchers do; the process that was started only waits."""

import multiprocessing
import sys

import torch
from torch import nn


def train():
    torch.set_num_threads(1)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).mean().backward()
        optimizer.step()


if __name__ == "__main__":
    process = multiprocessing.get_context(sys.argv[1]).Process(target=train)
    process.start()
    process.join()
    sys.exit(process.exitcode)
