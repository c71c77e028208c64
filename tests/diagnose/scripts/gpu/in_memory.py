"""Small windows in memory, fetched one by one."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(200_000, 24 * 16), torch.randint(4, (200_000,)))
model = nn.Sequential(nn.Linear(24 * 16, 256), nn.ReLU(), nn.Linear(256, 4)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
for _ in range(50):
    for features, labels in DataLoader(data, batch_size=1024, shuffle=True):
        with torch.autocast("cuda", torch.bfloat16):
            output = model(features.cuda())
        loss = nn.functional.cross_entropy(output.float(), labels.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
