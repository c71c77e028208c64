"""Many small layers, eight samples: the host can't launch as fast as the GPU is done."""

import torch
from torch import nn

model = nn.Sequential(*(layer for _ in range(150) for layer in (nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU())))
model = model.cuda().bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
features = torch.randn(8, 256, device="cuda", dtype=torch.bfloat16)
for _ in range(100_000):
    loss = model(features).float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
