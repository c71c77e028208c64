"""A training loop that is watched in every other block of its steps. Run by `fulltilt bench observe` in a process of
its own: `python -m fulltilt.bench.observed DEVICE RUNS`."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from fulltilt.launch import patching
from fulltilt.launch.job import Job
from fulltilt.launch.watch.inside import Process
from fulltilt.measure.bursts import FIRST, one_of

STEPS_MS = (1.0, 10.0, 100.0)
BATCH = 16
WIDTH = 64
RUN_STEPS = 200
"""That are watched: a run by default, from its first steps, all of which are watched, on."""
RUN_SECONDS = 2.5
"""And of long steps as many as fit."""
SHORT_SECONDS = 3e-3
"""Steps up to here are watched in twice as many runs: their cost is the smaller part of what they differ by."""
BLOCK_SECONDS = 0.15
"""A block lasts at least as long, and at least four steps. A machine's moods last longer, and are in both of a pair."""
WARM_UP_STEPS = 64
WARM_UP_SECONDS = 0.1
"""Before each block, whichever is sooner: the interpreter adapts its code to what was put in or taken out."""
MOST_STEPS = 2000
MOST_MORE = 400
"""Steps until a block's last burst is over: two of the longest ways to the next."""
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
        """Seconds per step."""
        return self.block(steps, lambda: True)[1]

    def block(self, steps: int, over: Callable[[], bool]) -> tuple[int, float]:
        """As many steps, and more until it is `over`: their number, and seconds for each. The loss of each is read, so
        that nothing hides behind the GPU."""
        batches = iter(self._loader)
        next(batches)
        done, began = 0, self._clock()
        while done < steps or not (over() or done >= 2 * steps + MOST_MORE):
            images, labels = next(batches)
            images = images.to(self._device, non_blocking=True)
            labels = labels.to(self._device, non_blocking=True)
            self._optimizer.zero_grad()
            loss = self._criterion(self.model(images), labels)
            loss.backward()
            self._optimizer.step()
            loss.item()
            done += 1
        return done, (self._clock() - began) / done


class Watching:
    """The hooks of a process, put in and taken out, as if what is between were not there."""

    def __init__(self, process: Process) -> None:
        self._watch, self._on = process.watch, False

    def begin(self) -> None:
        """A run from its first step on."""
        if self._watch.sleeper:
            self._watch.dozing.wake(self._watch)
        self._watch.records.clear()
        self._watch.look_at = 0
        self._watch.dozing.begin_anew()

    def put(self, wanted: bool, *, idle: int = 0) -> None:
        """In or out; steps that are passed by don't count while `idle` ones go on."""
        if wanted and self._watch.sleeper:
            self._watch.dozing.stay(idle)
        if wanted != self._on:
            (patching.put_all_in if wanted else patching.take_all_out)()
            self._on = wanted

    def rests(self) -> bool:
        """Between bursts: one that had steps without hooks in it would seem to last for long."""
        return bool(self._watch.sleeper)

    @property
    def steps(self) -> int:
        return self._watch.steps


def compare(loop: Loop, watching: Watching, runs: int) -> dict[str, list[Any]]:
    """Runs by default, cut in blocks with a neighbour each that is not watched, before or after it in turn: of each
    pair how many steps, the seconds of one, and whether it is a run's first, all of which is watched."""
    step_seconds = loop.run(3)
    warm_up = max(2, min(WARM_UP_STEPS, int(WARM_UP_SECONDS / step_seconds)))
    least = max(4, int(BLOCK_SECONDS / step_seconds))
    wanted_steps = min(RUN_STEPS, max(4 * least, int(RUN_SECONDS / step_seconds)))
    dozes = one_of(step_seconds * 1e9) > 1
    over = watching.rests if dozes else lambda: True
    found: dict[str, list[Any]] = {"steps": [], "first": [], "plain": [], "watched": []}

    def plain(steps: int) -> float:
        watching.put(False)
        loop.run(warm_up)
        return loop.run(steps)

    for _ in range(2 * runs if step_seconds < SHORT_SECONDS else runs):
        watching.put(True)
        loop.run(warm_up)
        watching.begin()
        steps, first = FIRST if dozes else least, True
        while watching.steps < wanted_steps:
            before = plain(steps) if not first and len(found["steps"]) % 2 else None
            if not first:
                watching.put(True, idle=warm_up)
                loop.run(warm_up)
            steps, seconds = loop.block(steps if first else least, over)
            found["steps"].append(steps)
            found["first"].append(first)
            found["watched"].append(seconds)
            found["plain"].append(plain(steps) if before is None else before)
            first = False
    watching.put(False)
    return found


def main(device: str, runs: int) -> None:
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
        watching = Watching(process)
        found = {step_ms: compare(Loop(device, step_ms), watching, runs) for step_ms in STEPS_MS}
    print(json.dumps({"steps": found}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
