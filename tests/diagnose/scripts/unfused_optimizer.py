"""Many small weights, a small batch: the optimizer has more to do than the rest."""

import torch
from torch import nn

torch.set_num_threads(1)
model = nn.Sequential(*(layer for _ in range(60) for layer in (nn.Linear(64, 64), nn.ReLU())))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(100_000):
    features = torch.rand(8, 64)
    loss = (model(features) - features).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
