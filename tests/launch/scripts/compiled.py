"""A compiled model, a compiled step, and one compiled in place: watched, none may break or be compiled again."""

import sys

import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

torch.set_num_threads(1)
STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 6


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, batch):
        return self.layers(batch.to(torch.float32))


for how in ("wrapped", "in place", "function"):
    counter = CompileCounter()
    model = Model()
    called = model
    if how == "wrapped":
        called = torch.compile(model, backend=counter, fullgraph=True)
    elif how == "in place":
        model.compile(backend=counter, fullgraph=True)
    else:
        called = torch.compile(lambda batch, model=model: model(batch).square().mean(), backend=counter, fullgraph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        called(torch.randn(8, 4)).mean().backward()
        optimizer.step()
    print(how, counter.frame_count)
    torch._dynamo.reset()
