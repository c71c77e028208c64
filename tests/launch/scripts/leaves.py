"""Trains so many steps, four to each loader that it makes, and leaves in one of many ways."""

import argparse
import os
import signal
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--how", default="returns")
    parser.add_argument("--seconds", type=float, default=0.0)
    options = parser.parse_args()
    data = TensorDataset(torch.randn(32, 16), torch.zeros(32, dtype=torch.long))
    model = nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = 0
    while steps < options.steps:
        for images, labels in DataLoader(data, batch_size=8):
            time.sleep(options.seconds)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            steps += 1
            if steps == options.steps:
                break
    if options.how == "exits":
        sys.exit(3)
    if options.how == "raises":
        raise RuntimeError("it could not go on")
    if options.how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if options.how == "sleeps":
        time.sleep(60)


if __name__ == "__main__":
    main()
