"""Convolutions in float32 (TF32) where bfloat16 would do."""

import torch
from torch import nn

torch.set_float32_matmul_precision("high")
torch.backends.cudnn.benchmark = True
layers = [nn.Conv2d(3, 256, 3, padding=1), nn.ReLU()]
for _ in range(8):
    layers += [nn.Conv2d(256, 256, 3, padding=1), nn.ReLU()]
model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)).cuda()
model = model.to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
images = torch.randn(128, 3, 56, 56, device="cuda").to(memory_format=torch.channels_last)
for _ in range(100_000):
    loss = model(images).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
