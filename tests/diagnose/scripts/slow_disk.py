"""Each sample comes from far away: most of the time nobody computes."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Remote(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(0.003)
        return torch.rand(64), index % 4


model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = DataLoader(Remote(), batch_size=16, num_workers=1, persistent_workers=True)
for features, labels in loader:
    loss = nn.functional.cross_entropy(model(features), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
