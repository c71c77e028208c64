"""Saved is every 1000th step."""

import torch
from torch import nn

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
for step in range(10_000):
    features = torch.rand(4, 1024)
    loss = (model(features) - features).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 1000 == 999:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"checkpoint-{step % 3}.pt")
