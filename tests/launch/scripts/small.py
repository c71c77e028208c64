"""A loop without a DataLoader that does what it is told to, at a step or in its place."""

import os
import signal
import sys

import torch
from torch import nn

torch.set_num_threads(1)
what = sys.argv[1]
steps = int(sys.argv[2])
if what == "reads":
    print("read", input())


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.calls = 0

    def forward(self, batch):
        self.calls += 1
        if what == "fails" and self.calls == 5:
            raise ValueError("the fifth call")
        return self.layer(batch)


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if what == "forks":
    child = os.fork()
    if child == 0:
        model(torch.randn(8, 4))
        os._exit(0)
    os.waitpid(child, 0)
for step in range(steps):
    try:
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
    except BaseException:
        if what != "swallows":
            raise
    if step == 5:
        if what == "leaves":
            os._exit(7)
        if what == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "exits":
            sys.exit("said at the end")
