"""A small task whose loader takes its time: 2 ms a sample."""

import time

import torch
from torch import nn
from torch.utils.data import Dataset

SAMPLES, BATCH, EPOCHS = 64, 8, 3
BATCH_SECONDS = 0.002 * BATCH


class Slow(Dataset):
    def __init__(self, *, named: bool = False) -> None:
        self.named = named

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int):
        time.sleep(0.002)
        values = torch.randn(16, generator=torch.Generator().manual_seed(index))
        return {"values": values, "labels": index % 4} if self.named else (values, index % 4)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, values, labels=None):
        logits = self.layers(values)
        return logits if labels is None else {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}
