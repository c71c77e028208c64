"""An optimizer that goes through the parameters one by one."""

import torch
from torch import nn

model = nn.Sequential(*(layer for _ in range(100) for layer in (nn.Linear(512, 512), nn.ReLU()))).cuda().bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
features = torch.randn(256, 512, device="cuda", dtype=torch.bfloat16)
for _ in range(100_000):
    loss = model(features).float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
