"""Two ranks that load alike."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
dist.init_process_group("gloo")


class Rows(Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        return torch.rand(64), index % 4


model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for features, labels in DataLoader(Rows(), batch_size=16):
    loss = nn.functional.cross_entropy(model(features), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
