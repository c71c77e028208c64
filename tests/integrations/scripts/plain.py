"""Loops of one's own; what was seen of them goes into the file that is named."""

import json
import os
import sys
from pathlib import Path

import torch
from task import BATCH, EPOCHS, Model, Slow
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy

from fulltilt.errors import InputError
from fulltilt.integrations import Watching, watching
from fulltilt.launch.job import VARIABLE, Job

torch.set_num_threads(1)


class Broken(MulticlassAccuracy):
    def compute(self):
        raise RuntimeError("nothing is right\nnor wrong")


def train(batches, *, after=None):
    """The trained weights, and how often the model was right in each epoch."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    right = []
    for _ in range(EPOCHS):
        right.append(0)
        for values, labels in batches():
            outputs = model(values)
            optimizer.zero_grad()
            nn.functional.cross_entropy(outputs, labels).backward()
            optimizer.step()
            right[-1] += int((outputs.argmax(1) == labels).sum())
            if after is not None:
                after(outputs, labels)
    return model.state_dict(), right


def main(out: Path) -> None:
    found = {"lines": []}
    show = found["lines"].append
    loader = DataLoader(Slow(), batch_size=BATCH, num_workers=1)
    alone, _ = train(lambda: loader)

    metrics = {"accuracy": MulticlassAccuracy(4, average="micro")}
    with watching(metrics=metrics, show=show) as run:
        watched, found["right"] = train(lambda: (run.compute(), loader)[1], after=run.add)
        try:
            with watching():
                pass
        except InputError as error:
            found["nested"] = str(error)
    found["plain"] = run.summary.to_json()
    found["same"] = all(torch.equal(alone[name], watched[name]) for name in alone)

    train(lambda: loader)
    found["after"] = run.summary.to_json() == found["plain"]

    module = sys.modules["fulltilt.integrations.loop"]
    module.KEPT_STEPS = 4
    own = [(torch.randn(BATCH, 16), torch.randint(4, (BATCH,))) for _ in range(8)]
    with watching(show=None) as run:
        train(lambda: run.batches(own))
        found["kept"] = len(module._process.watch.records)
    found["own"] = run.summary.to_json()

    try:
        with watching(show=show) as run:
            train(lambda: own, after=lambda *_: 1 / 0)
    except ZeroDivisionError:
        found["failed"] = run.summary.line()

    with watching(metrics={"broken": Broken(4)}, show=None) as run:
        train(lambda: own, after=run.add)
    found["broken"] = {"line": run.summary.line(), **run.summary.to_json()}

    forgotten, next_one = Watching(show=show), Watching(show=None)
    forgotten.start()  # as by a trainer's callback that is never told of the end
    train(lambda: own)
    next_one.start()
    train(lambda: own[:2])
    next_one.stop()
    found["steps"] = [forgotten.summary.steps, next_one.summary.steps]

    Job(out=str(out.parent)).write(out.with_name("job.json"))
    os.environ[VARIABLE] = str(out.with_name("job.json"))
    with watching(metrics=metrics, show=show) as run:
        train(lambda: run.batches(own), after=run.add)
        found["counted under diagnose"] = run.compute()
    found["under diagnose"] = run.summary.to_json()
    found["waited under diagnose"] = run.summary.data_wait  # as in the README
    found["folder"] = module._process.job.out
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
