"""Large batches from pageable memory."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Batches(Dataset):
    def __init__(self):
        self.batch = torch.randn(512, 3 * 224 * 224)

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return self.batch


model = nn.Sequential(nn.Linear(3 * 224 * 224, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
for batch in DataLoader(Batches(), batch_size=None):
    features = batch.to("cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(features).float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
