"""float32 matrix products, as torch does them when it is told nothing."""

import torch
from torch import nn

model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(4096, 4096), nn.ReLU()))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
features = torch.randn(8192, 4096, device="cuda")
for _ in range(100_000):
    loss = model(features).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
