"""Tensors in memory, fetched one by one and put together again."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
data = TensorDataset(torch.rand(50_000, 64), torch.randint(4, (50_000,)))
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(50):
    for features, labels in DataLoader(data, batch_size=512, shuffle=True):
        loss = nn.functional.cross_entropy(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
