"""All that can be set is set, and the batch is on the device."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Batches(Dataset):
    def __init__(self):
        self.batch = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return self.batch


model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(4096, 4096), nn.ReLU()))).cuda().bfloat16()
model.compile()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
for features in DataLoader(Batches(), batch_size=None):
    loss = model(features).float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
