"""The losses are summed up with their graphs."""

import torch
from torch import nn

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
total = 0
for _ in range(10_000):
    features, labels = torch.rand(2048, 64), torch.randint(4, (2048,))
    loss = nn.functional.cross_entropy(model(features), labels)
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
    total = total + loss
