"""A training loop that is watched in every other block of its steps. Run by `fulltilt bench observe` in a process of
its own: `python -m fulltilt.bench.observed DEVICE PAIRS`."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from fulltilt.launch import patching
from fulltilt.launch.inside import Process
from fulltilt.launch.job import Job

STEPS_MS = (1.0, 10.0, 100.0)
BATCH = 16
WIDTH = 64
BLOCK_SECONDS = 0.5
"""A block has as many steps as fit, and at least four."""
SHORT_BLOCK_SECONDS = 1.5
"""Of short steps: nearly a run by default, from its first steps, all of which are watched, to the 200th of these."""
SHORT_SECONDS = 3e-3
WARM_UP_SECONDS = 0.2
"""Before each block: the interpreter adapts its code to functions that were put in or taken out."""
MOST_STEPS = 2000
SIZINGS = 6


class Loop:
    """A small real model with a loader, copies and a loss that is read; heavier work inside makes its steps longer."""

    def __init__(self, device: str, step_ms: float) -> None:
        import torch
        from torch import nn
        from torch.utils.data import DataLoader, TensorDataset

        self._torch, self._device = torch, device
        # On the CPU a thread's own time is the cost, whoever else uses the cores; beside a GPU the wall's is.
        self._clock = time.perf_counter if device == "cuda" else time.thread_time
        data = TensorDataset(torch.randn(BATCH * MOST_STEPS, WIDTH), torch.randint(0, 10, (BATCH * MOST_STEPS,)))
        self._loader = DataLoader(data, batch_size=BATCH, pin_memory=device == "cuda")
        side = 4096 if device == "cuda" else 256
        weight = torch.randn(side, side, device=device)

        class Model(nn.Module):
            def __init__(self, layers: int) -> None:
                super().__init__()
                parts = [part for _ in range(layers) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
                self.layers = nn.Sequential(*parts, nn.Linear(WIDTH, 10))
                self.extra = 0

            def forward(self, batch: Any) -> Any:
                with torch.no_grad():
                    for _ in range(self.extra):
                        weight @ weight
                return self.layers(batch)

        self._make = Model
        self._size(step_ms)

    def _size(self, step_ms: float) -> None:
        """As many layers as a step of one millisecond needs, then as much work beside them as is asked for. A host that
        launches slowly takes longer with none."""
        self._take(0)
        for layers in range(40):
            self._take(layers)
            if min(self.run(20) for _ in range(3)) >= 0.9e-3:  # a busy machine makes no step longer
                break
        base = self.run(20) * 1e3
        wanted = step_ms - base
        for _ in range(SIZINGS if wanted > 0.1 * step_ms else 0):
            self.model.extra = max(1, self.model.extra)
            self.run(1)
            spent = max(self.run(3) * 1e3 - base, 1e-2)
            if abs(spent - wanted) < 0.1 * step_ms:
                break
            self.model.extra = max(1, round(self.model.extra * min(wanted / spent, 30)))

    def _take(self, layers: int) -> None:
        self.model = self._make(layers).to(self._device)
        self._optimizer = self._torch.optim.SGD(self.model.parameters(), lr=0.01)
        self._criterion = self._torch.nn.CrossEntropyLoss()
        self.run(3)

    def run(self, steps: int) -> float:
        """Seconds per step, over whole steps; the loss of each is read, so that nothing hides behind the GPU."""
        batches = iter(self._loader)
        next(batches)
        began = self._clock()
        for _ in range(steps):
            images, labels = next(batches)
            images = images.to(self._device, non_blocking=True)
            labels = labels.to(self._device, non_blocking=True)
            self._optimizer.zero_grad()
            loss = self._criterion(self.model(images), labels)
            loss.backward()
            self._optimizer.step()
            loss.item()
        return (self._clock() - began) / steps


def compare(loop: Loop, watching: Callable[[bool], None], pairs: int) -> dict[str, list[float]]:
    """Seconds per step of blocks without and with watching, each pair in the other order than the one before."""
    step_seconds = loop.run(3)
    block_seconds = SHORT_BLOCK_SECONDS if step_seconds < SHORT_SECONDS else BLOCK_SECONDS
    steps = max(4, min(MOST_STEPS - 2, int(block_seconds / step_seconds)))
    warm_up = max(2, min(MOST_STEPS - 2, int(WARM_UP_SECONDS / step_seconds)))
    found: dict[str, list[float]] = {"plain": [], "watched": []}
    for pair in range(pairs):
        for watched in (bool(pair % 2), not pair % 2):
            watching(watched)
            loop.run(warm_up)
            watching(watched)  # a block begins as a run does
            found["watched" if watched else "plain"].append(loop.run(steps))
    watching(False)
    return found


def main(device: str, pairs: int) -> None:
    import torch

    torch.set_num_threads(1)  # other threads come and go with the machine's load; the hooks are in this one
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as out:
        process = Process(Job(out=out, max_steps=10**9, max_seconds=1e9))

        watch = process.watch

        def ended() -> None:  # what decides about the end is part of the cost; the end itself is not
            if watch.seeks_gpu:
                process.clock_gpu()
            watch.wants_to_stop()

        process.hook(torch, ended=ended)
        patching.take_all_out()
        on = False

        def watching(wanted: bool) -> None:
            nonlocal on
            if watch.sleeper:
                watch.dozing.wake(watch)
            watch.records.clear()
            watch.look_at = 0
            watch.dozing.begin_anew()
            if wanted != on:
                (patching.put_all_in if wanted else patching.take_all_out)()
                on = wanted

        found = {step_ms: compare(Loop(device, step_ms), watching, pairs) for step_ms in STEPS_MS}
    print(json.dumps({"steps": found}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
