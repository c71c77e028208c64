"""Much element-wise work, each operation by itself."""

import torch
from torch import nn


class Waves(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4096))

    def forward(self, features):
        return features + torch.tanh(features * self.scale) * torch.sigmoid(features) - torch.sin(features) / 3


model = nn.Sequential(*(Waves() for _ in range(12))).cuda().bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
features = torch.randn(16384, 4096, device="cuda", dtype=torch.bfloat16)
for _ in range(100_000):
    loss = model(features).float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
