"""Convolutions in half precision, in the layout that tensor cores do not want."""

import torch
from torch import nn

torch.backends.cudnn.benchmark = True
layers = [nn.Conv2d(3, 256, 3, padding=1), nn.ReLU()]
for _ in range(8):
    layers += [nn.Conv2d(256, 256, 3, padding=1), nn.ReLU()]
model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
images = torch.randn(128, 3, 56, 56, device="cuda")
for _ in range(100_000):
    with torch.autocast("cuda", torch.bfloat16):
        output = model(images)
    loss = output.float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
