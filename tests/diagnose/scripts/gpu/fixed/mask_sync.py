"""The loss is weighted by the mask: nothing has to be asked for."""

import time

import torch
from torch import nn


def on_host():
    until = time.perf_counter() + 0.006
    while time.perf_counter() < until:
        pass


model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(4096, 4096), nn.ReLU()))).cuda().bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
features = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
mask = torch.rand(4096, device="cuda") < 0.5
for _ in range(100_000):
    output = model(features)
    loss = (output.square() * mask[:, None]).mean() / mask.float().mean()
    on_host()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
