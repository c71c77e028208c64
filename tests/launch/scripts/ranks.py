"""DistributedDataParallel on the CPU; the second rank is slower where asked to."""

import gc
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
slow = float(sys.argv[1]) if dist.get_rank() == 1 else 0.0
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(500):
    time.sleep(slow)
    optimizer.zero_grad()
    model(torch.randn(8, 4)).mean().backward()
    optimizer.step()
dist.destroy_process_group()
del model, optimizer  # they hold the group, whose threads abort a process that ends before they do
gc.collect()
