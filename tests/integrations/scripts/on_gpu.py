"""A loop on the GPU that waits for its loader most of the time; what was seen goes into the file that is named."""

import json
import sys
from pathlib import Path

import torch
from task import BATCH, Slow
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy

from fulltilt.integrations import watching


def main(out: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 4)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Slow(), batch_size=BATCH, pin_memory=True)
    lines = []
    metrics = {"accuracy": MulticlassAccuracy(4, average="micro")}
    with watching(metrics=metrics, interval=0.2, show=lines.append) as run:
        for _ in range(12):
            for values, labels in loader:
                outputs = model(values.cuda(non_blocking=True))
                targets = labels.cuda(non_blocking=True)
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(outputs, targets).backward()
                optimizer.step()
                run.add(outputs, targets)
    out.write_text(json.dumps({"summary": run.summary.to_json(), "lines": lines}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
