"""More threads than cores."""

import torch
from torch import nn

torch.set_num_threads(16)
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(10_000):
    features = torch.rand(128, 512)
    loss = (model(features) - features).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
