"""Short epochs, and workers that take long to start."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Rows(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        return torch.rand(64), index % 4


def open_index(_):
    time.sleep(0.4)  # a large index is read


model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = DataLoader(Rows(), batch_size=16, num_workers=1, worker_init_fn=open_index)
for _ in range(100):
    for features, labels in loader:
        loss = nn.functional.cross_entropy(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
