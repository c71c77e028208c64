"""An ordinary loop on the CPU: a DataLoader, a small model, an evaluation after each epoch."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __init__(self, count, seconds):
        self.count = count
        self.seconds = seconds

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(self.seconds)
        generator = torch.Generator().manual_seed(index)
        return torch.randn(16, generator=generator), index % 4


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.001)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--count", type=int, default=64)
    options = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(Slow(options.count, options.seconds), batch_size=8, num_workers=options.workers, shuffle=True)
    held_out = DataLoader(Slow(16, options.seconds), batch_size=8)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(options.epochs):
        model.train()
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for images, labels in held_out:
                model(images).argmax(1).eq(labels).sum().item()
        print(f"epoch {epoch}")


if __name__ == "__main__":
    main()
