"""One worker, and many cores that do nothing."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Sums(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        work = sum(number * number for number in range(40_000))
        return torch.full((1024,), float(work % 7)), index % 4


model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(1024, 1024), nn.ReLU()))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
loader = DataLoader(Sums(), batch_size=16, num_workers=1, persistent_workers=True, pin_memory=True)
for features, labels in loader:
    with torch.autocast("cuda", torch.bfloat16):
        output = model(features.to("cuda", non_blocking=True).repeat(512, 1))
    loss = nn.functional.cross_entropy(output.float(), labels.to("cuda", non_blocking=True).repeat(512))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
