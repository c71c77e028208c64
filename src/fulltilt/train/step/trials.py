"""Settings tried on the real model with a real batch; afterwards everything is as it was, bit for bit."""

from __future__ import annotations

import gc
import logging
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from fulltilt.errors import FulltiltError, first_line
from fulltilt.train.ranks.ranks import Ranks
from fulltilt.train.step.choose import Facts, Measured, Plan, Settings, Wishes, search, settings_of
from fulltilt.train.step.engine import Engine, compiling
from fulltilt.train.step.graphed import GraphedStep
from fulltilt.train.step.roles import split
from fulltilt.train.step.snapshot import Snapshot, host_rng, plain_attributes, same_host_rng

log = logging.getLogger("fulltilt.train")

_WARM_STEPS = 3
_BURSTS = 3
_BURST_SECONDS = 0.15
_MOST_BURST_STEPS = 200
_COMPARED_STEPS = 3
_LOSS_TOLERANCE = 0.02
"""Relative: a replay's loss against the plain step's. Rounding stays far below; another computation does not."""


class Trials:
    """Runs what the policy asks for."""

    def __init__(self, engine: Engine, batch: tuple[Any, ...], place: int) -> None:
        """`batch` may still lie on the host; its target is at `place`."""
        self._engine, self._given, self._batch, self._place = engine, batch, batch, place
        self._inputs, self._target = split(batch, place)
        self._ranks = Ranks(engine.device)
        self._snapshot = Snapshot(
            engine.model, engine.optimizers, engine.device, more=engine.extra_state(), scaler=engine.scaler
        )

    def run(self, wishes: Wishes, facts: Facts) -> Plan:
        """The plan, with the engine changed over to it."""
        policy = search(wishes, facts)
        before = self._engine.settings
        try:
            settings = next(policy)
            while True:
                measured = self._measured(settings)
                log.debug("tried %s: %s", settings, measured)
                settings = policy.send(measured)
        except StopIteration as done:
            plan: Plan = done.value
        except BaseException:  # Ctrl-C in the middle of it: what was there before is there again
            self._engine.use(before)
            self._snapshot.restore()
            raise
        self._snapshot.restore()
        self._use(settings_of(plan))
        return plan

    def capture(self, *, moving_options: bool = False) -> tuple[GraphedStep | None, str]:
        """The step as a graph, under the engine's settings, or why there is none; everything is as before."""
        graph, problem = None, ""
        try:
            self._move()
            graph = GraphedStep(self._engine, self._batch, self._place, moving_options=moving_options)
        except Exception as error:  # in any way: memory that was free at the trial, what a loaded state has changed
            problem = _told(error)
        finally:
            self._snapshot.restore()
            self._engine.fit_optimizers()
        if graph is None:
            self._clean()
        return graph, problem

    def _measured(self, settings: Settings) -> Measured:
        """Ranks see the slowest one's figure, and a problem that any of them has."""
        with compiling() if settings.compile else nullcontext():
            found = self._tried(settings)
        gc.collect()  # what a failure or an old graph still holds
        if settings.cuda_graph:
            torch.cuda.empty_cache()
        self._snapshot.restore()
        if not self._ranks.several:
            return found
        worst = self._ranks.largest(math.inf if found.step_seconds is None else found.step_seconds)
        if math.isinf(worst):
            return Measured(problem=found.problem or "it failed on another rank")
        return Measured(step_seconds=worst, setup_seconds=self._ranks.largest(found.setup_seconds))

    def _tried(self, settings: Settings) -> Measured:
        began = time.perf_counter()
        try:
            self._use(settings)
            self._move()
            step = self._captured() if settings.cuda_graph else self._plain
            for _ in range(_WARM_STEPS):
                step()
            self._finish()
            setup_seconds = time.perf_counter() - began
            return Measured(step_seconds=self._seconds(step), setup_seconds=setup_seconds)
        except Exception as error:  # a compiler or a capture may fail in any way, and training goes on without it
            problem = _told(error)
        self._clean()
        return Measured(problem=problem)

    def _use(self, settings: Settings) -> None:
        self._engine.use(settings)
        if settings.compile:
            self._engine.compile_for(self._inputs, self._target)

    def _move(self) -> None:
        """The batch as it was given, to the device and in the memory format of the settings: as steps will have it.

        Not as the trial before had it: what was once laid out channels last would stay so where that is switched off.
        """
        self._batch = tuple(self._engine.place(part) for part in self._given)
        self._inputs, self._target = split(self._batch, self._place)

    def _plain(self) -> Any:
        return self._engine.whole(self._inputs, self._target)

    def _captured(self) -> Callable[[], Any]:
        """A graph that was seen to compute what the plain step computes."""
        expected = self._plain_losses()
        graph = GraphedStep(self._engine, self._batch, self._place)
        self._snapshot.restore()
        self._engine.fit_optimizers()
        found = torch.stack([graph(self._batch)[0] for _ in range(_COMPARED_STEPS)])
        difference = (found - expected).abs().max() / expected.abs().max().clamp_min(1e-6)
        if not bool(difference <= _LOSS_TOLERANCE) and not _is_random(self._engine.model):
            raise FulltiltError(f"replays give other losses: {found.tolist()} instead of {expected.tolist()}")
        return lambda: graph(self._batch)

    def _plain_losses(self) -> Tensor:
        """Losses of the first steps; refused where Python has a part in them that a graph would freeze."""
        model = self._engine.model
        attributes, drawn = plain_attributes(model), host_rng()
        losses = [self._plain()[0] for _ in range(_COMPARED_STEPS)]
        if not same_host_rng(drawn, host_rng()):
            raise FulltiltError("the step draws random numbers on the host, which a graph would freeze")
        changed = _changed(attributes, plain_attributes(model))
        if changed is not None:
            raise FulltiltError(f"the model changes {changed} at every step, which a graph would freeze")
        self._snapshot.restore()
        self._engine.fit_optimizers()
        return torch.stack(losses)

    def _seconds(self, step: Callable[[], Any]) -> float:
        """Per step: the median of a few bursts."""
        once = self._burst(step, 2) / 2
        count = min(_MOST_BURST_STEPS, max(3, math.ceil(_BURST_SECONDS / once)))
        if self._ranks.several:  # every rank takes as many steps: they meet in each
            count = int(self._ranks.largest(count))
        return median(self._burst(step, count) / count for _ in range(_BURSTS))

    def _burst(self, step: Callable[[], Any], count: int) -> float:
        self._finish()
        began = time.perf_counter()
        for _ in range(count):
            step()
        self._finish()
        return max(time.perf_counter() - began, 1e-9)

    def _finish(self) -> None:
        if self._engine.device.type == "cuda":
            torch.cuda.synchronize(self._engine.device)

    def _clean(self) -> None:
        """After a failure, and outside of its except block: the exception holds the tensors."""
        gc.collect()
        if self._engine.device.type == "cuda":
            torch.cuda.empty_cache()


def _told(error: Exception) -> str:
    return first_line(error, kind=True)[:200]


def _changed(before: dict[nn.Module, dict[str, Any]], after: dict[nn.Module, dict[str, Any]]) -> str | None:
    for module, names in after.items():
        for name, value in names.items():
            if before[module].get(name) != value:
                return f"{type(module).__name__}.{name}"
    return None


def _is_random(model: nn.Module) -> bool:
    """Dropout draws differently in a graph: its losses can't be compared one by one."""
    return any("dropout" in type(module).__name__.lower() for module in model.modules())
