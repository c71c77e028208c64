"""Compiled by inductor, whose C++ compiler reads and writes in the temporary folder."""

import os
import tempfile

import torch
from torch import nn

torch.set_num_threads(1)
model = nn.Linear(4, 1)
compiled = torch.compile(model, backend="inductor")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(6):
    optimizer.zero_grad()
    compiled(torch.randn(8, 4)).relu().mean().backward()
    optimizer.step()
assert any(name.startswith("torchinductor_") for name in os.listdir(tempfile.gettempdir()))
