"""The training process loads its own data, as much work as the step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Sums(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        work = sum(number * number for number in range(8_000))
        return torch.full((512,), float(index + work % 7) / 100_000), index % 4


model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = DataLoader(Sums(), batch_size=16)
for features, labels in loader:
    loss = nn.functional.cross_entropy(model(features.repeat(4, 1)), labels.repeat(4))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
