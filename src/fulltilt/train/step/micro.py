"""Batches cut into micro-batches: gradients accumulated, and training that survives running out of memory.

    batch, batch, …  (a window: what one optimizer step is made of)
      └─ micro-batch, micro-batch, …  forward, loss, backward; gradients add up
    at the window's end: one optimizer step

Out of memory, the micro-batch is halved and the whole window is run again from where it began: no gradients, and the
buffers and random numbers of then. The optimizers step only after all of it went well, so never twice. Now and then a
larger micro-batch is tried again, where there is room.

Ranks that reduce gradients can't be called back in the middle of it. So the first steps at each size are run without
reducing, the ranks tell each other whether all went well, and only then are the gradients reduced.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import SyncBatchNorm
from torch.nn.modules.batchnorm import _BatchNorm

from fulltilt.errors import UnavailableError, first_line
from fulltilt.nested import map_tensors, refilled
from fulltilt.train.ranks.ranks import Ranks
from fulltilt.train.step.engine import Engine, compiling, detached, is_out_of_memory
from fulltilt.train.step.snapshot import DeviceRng

log = logging.getLogger("fulltilt.train")

PATIENCE_STEPS = 100
"""Steps that must go well before a larger micro-batch is tried; doubled each time that fails."""
_MOST_PATIENCE = 10_000
_PROVING_STEPS = 3
_ROOM = 0.9
"""Share of the device's memory that a larger micro-batch may be expected to need."""

_AS_EVER = nullcontext()

Batch = tuple[tuple[Any, ...], Any]


class MicroSize:
    """How many samples a micro-batch has: pure policy. None is the whole batch."""

    def __init__(self, patience: int = PATIENCE_STEPS) -> None:
        self.size: int | None = None
        self._patience, self._calm, self._trying = patience, 0, False

    def halve(self, samples: int) -> bool:
        """After running out of memory with batches of `samples`. False when there is nothing left to halve."""
        now = samples if self.size is None else min(self.size, samples)
        if now <= 1:
            return False
        self.size = (now + 1) // 2
        if self._trying:
            self._patience = min(2 * self._patience, _MOST_PATIENCE)
        self._calm, self._trying = 0, False
        return True

    def went_well(self) -> bool:
        """After an optimizer step. True when it is time to try a larger one."""
        if self.size is None:
            return False
        self._calm += 1
        if self._calm < self._patience:
            return False
        self._calm = 0
        return True

    def grow(self, samples: int) -> None:
        if self.size is not None:
            self.size = None if 2 * self.size >= samples else 2 * self.size
            self._trying = True


class MicroBatches:
    """Runs batches through the engine, cut as small as memory asks for."""

    def __init__(
        self,
        engine: Engine,
        *,
        accumulate: int = 1,
        copied: Callable[[], None] | None = None,
    ) -> None:
        """
        Args:
            copied: called when a whole batch has been sent to the device.
        """
        self._engine, self.accumulate, self._copied = engine, accumulate, copied
        self.micro = MicroSize()
        self.ranks = Ranks(engine.device)
        self.phase = 0
        """Batches of the window that have been run."""
        self._window: list[Batch] = []
        self._start: _Start | None = None
        self._inherited: dict[Tensor, Tensor] = {}
        """Gradients of the window's batches that were run before its state was saved and loaded."""
        self._proving = _PROVING_STEPS
        self._weighs = False
        """This window's own peak of memory is to say whether a larger micro-batch has room."""
        self._compiles = False
        """What is compiled will be compiled for a new size."""
        self._talks = any(isinstance(module, SyncBatchNorm) for module in engine.model.modules())
        """Ranks meet in every forward already: none can try alone."""

    def run(self, inputs: tuple[Any, ...], target: Any) -> tuple[Tensor, Any, bool]:
        """Loss and outputs of the batch, and whether the optimizers stepped. It may still be on the host."""
        if self.phase == 0:
            self._window.clear()
            self._inherited.clear()
        if self._start is None:
            self._start = _Start(self._engine)
        elif not self._window:
            self._start.take()
        batch: Batch = (inputs, target)
        self._window.append(batch)
        loss, outputs = self._until_it_fits()
        self.phase += 1
        if self.phase < self.accumulate:
            return loss, outputs, False
        if self._proves:
            self.ranks.reduce(self._engine.parameters)
            self._proving -= 1
        self._engine.update()
        self.phase = 0
        self._window.clear()
        if self._weighs:
            self._weighs = False
            self._grow(batch)
        elif self.micro.went_well():
            self._weighs = True
            if self._engine.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(self._engine.device)
        return loss, outputs, True

    def resume(self, *, size: int | None, phase: int, grads: Mapping[Tensor, Tensor]) -> None:
        """Go on in a window of which `phase` batches have left these gradients, by weight."""
        self.micro.size, self.phase = size, phase
        self._window.clear()
        self._engine.zero_grad()
        self._inherited = {parameter: grad.detach().clone() for parameter, grad in grads.items()}
        self._put_inherited()

    def share_gradients(self) -> bool:
        """In the middle of a window: what each rank has added up, averaged over all, so that one may save for all.

        The window's sum stays the same. False where it can't be had: sharded weights keep it to themselves.
        """
        if self.ranks.several and self._engine.wrapped:
            self.ranks.reduce(self._engine.parameters)
        return not self._engine.sharded

    def forget_start(self) -> None:
        """Between windows, after buffers may have been replaced."""
        self._start = None

    def _put_inherited(self) -> None:
        for parameter, grad in self._inherited.items():
            parameter.grad = torch.empty_like(parameter).copy_(grad)

    def why_not_whole(self) -> str | None:
        """Why a step is more than one batch through one forward and backward."""
        if self.accumulate > 1:
            return "gradients are accumulated over several batches"
        if self.ranks.several:
            return "gradients are reduced over several processes"
        return None if self.micro.size is None else "batches are cut to fit the memory"

    def first_piece(self, batch: tuple[Any, ...]) -> tuple[Any, ...]:
        """The part of a batch that is run at once."""
        if self.micro.size is None:
            return batch
        samples = _samples((batch, None))
        return _cut((batch, None), 0, self.micro.size, samples)[0]

    @property
    def _proves(self) -> bool:
        return self._proving > 0 and self.ranks.several and self._engine.wrapped and not self._talks

    def _until_it_fits(self) -> tuple[Tensor, Any]:
        todo = self._window[-1:]
        while True:
            found, problem = self._tried(todo)
            if self._proves:
                problem = self.ranks.any_problem(problem)
            if found is not None and problem is None:
                return found
            # Here and not where it was caught: the exception holds the tensors that filled the memory.
            del found
            self._shrink(problem or "")
            todo = list(self._window)

    def _tried(self, batches: list[Batch]) -> tuple[tuple[Tensor, Any] | None, str | None]:
        try:
            last = batches[-1]
            with compiling() if self._compiles else _AS_EVER:
                for batch in batches[:-1]:
                    self._batch(batch, last=False)
                found = self._batch(last, last=self.phase + 1 == self.accumulate)
            self._compiles = False
            return found, None
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return None, first_line(error)

    def _batch(self, batch: Batch, *, last: bool) -> tuple[Tensor, Any]:
        """Losses of micro-batches are weighed by their samples.

        One that is a mean over something else, such as labels that are not ignored, comes out close to that.
        """
        size = self.micro.size
        samples = 0 if size is None else _samples(batch)
        if size is None or size >= samples:
            inputs, target = self._engine.placed(*batch)
            if self._copied is not None:
                self._copied()
            return self._piece(inputs, target, float(self.accumulate), reduce=last)
        losses, outputs = [], []
        sums = self._engine.objective.sums
        for start in range(0, samples, size):
            piece = self._engine.placed(*_cut(batch, start, size, samples))
            count = min(size, samples - start)
            divide = self.accumulate * (1.0 if sums else samples / count)
            loss, output = self._piece(*piece, divide, reduce=last and start + size >= samples)
            losses.append(loss if sums else loss * (count / samples))
            outputs.append(output)
        return torch.stack(losses).sum(), _joined(outputs)

    def _piece(self, inputs: tuple[Any, ...], target: Any, divide: float, *, reduce: bool) -> tuple[Tensor, Any]:
        engine = self._engine
        alone = self._proves
        with self.ranks.quiet(engine.forward_model, not reduce and not alone):
            loss, outputs = engine.forward(inputs, target, alone=alone)
            engine.backward(loss, divide)
        return loss.detach(), detached(outputs)

    def _shrink(self, problem: str) -> None:
        if self.ranks.several and not self._proves:
            raise UnavailableError(
                f"out of memory on rank {self.ranks.rank}: {problem}. The other ranks are reducing gradients and can't "
                "be called back: start again from the last checkpoint with smaller batches"
            )
        samples = max(_samples(batch) for batch in self._window)
        before = self.micro.size or samples
        if not self.micro.halve(samples):
            hint = "; cuDNN says the same of a layer that it can't run at all" * ("unable to find" in problem.lower())
            raise UnavailableError(f"out of memory with one sample at a time: {problem}{hint}")
        norms = any(isinstance(module, _BatchNorm) for module in self._engine.model.modules())
        log.warning(
            "out of memory (%s): micro-batches of %d instead of %d from here on; the effective batch stays %d%s",
            problem, self.micro.size, before, samples * self.accumulate,
            ", batch statistics are a micro-batch's" if norms else "",
        )  # fmt: skip
        self._weighs = False
        self._engine.zero_grad()
        self._put_inherited()
        if self._start is not None:
            self._start.restore()
        gc.collect()
        if self._engine.device.type == "cuda":
            torch.cuda.empty_cache()
        self._sized(self._window[-1])

    def _grow(self, batch: Batch) -> None:
        if not self._room():
            return
        before, samples = self.micro.size, _samples(batch)
        self.micro.grow(samples)
        log.info("trying micro-batches of %d instead of %s again", self.micro.size or samples, before)
        self._sized(batch)

    def _sized(self, batch: Batch) -> None:
        """At a new size: ranks prove it anew, and what is compiled is compiled for it."""
        self._proving = _PROVING_STEPS
        if self._engine.settings.compile:
            samples = _samples(batch)
            inputs, target = _cut(batch, 0, self.micro.size or samples, samples)
            self._engine.compile_for(inputs, target)
            self._compiles = True

    def _room(self) -> bool:
        """Whether twice the last window's activations can be expected to fit. Ranks answer as one."""
        device = self._engine.device
        fits = True
        if device.type == "cuda":
            peak, held = torch.cuda.max_memory_allocated(device), torch.cuda.memory_allocated(device)
            free, _ = torch.cuda.mem_get_info(device)
            ours = free + torch.cuda.memory_reserved(device)
            fits = held + 2 * (peak - held) <= _ROOM * ours
        return self.ranks.all_agree(fits)


class _Start:
    """Where a window began: buffers (batch statistics) and random numbers. Weights have not moved since."""

    def __init__(self, engine: Engine) -> None:
        by_dtype: dict[torch.dtype, list[Tensor]] = {}  # lists of one type are copied in a kernel or two
        for buffer in engine.model.buffers():
            if buffer.numel():
                # Detached: so no_grad, which takes longer than all the rest on the host, is not needed.
                by_dtype.setdefault(buffer.dtype, []).append(buffer.detach())
        self._kept = [(buffers, [buffer.clone() for buffer in buffers]) for buffers in by_dtype.values()]
        self._rng = DeviceRng(engine.device)

    def take(self) -> None:
        for buffers, kept in self._kept:
            torch._foreach_copy_(kept, buffers)
        self._rng.take()

    def restore(self) -> None:
        for buffers, kept in self._kept:
            torch._foreach_copy_(buffers, kept)
        self._rng.restore()


def _samples(batch: Batch) -> int:
    inputs, target = batch
    for part in (target, *inputs):
        if isinstance(part, Tensor) and part.dim():
            return part.shape[0]
    return 1


def _cut(batch: Batch, start: int, size: int, samples: int) -> Batch:
    """Part of a batch; what has no sample dimension goes along whole."""

    def cut(tensor: Tensor) -> Tensor:
        return tensor[start : start + size] if tensor.dim() and len(tensor) == samples else tensor

    inputs, target = batch
    return tuple(map_tensors(cut, part) for part in inputs), map_tensors(cut, target)


def _joined(outputs: list[Any]) -> Any:
    """Outputs of micro-batches as those of their batch."""
    first = outputs[0]
    if isinstance(first, Tensor):
        return torch.cat(outputs) if first.dim() else torch.stack(outputs).mean()
    if isinstance(first, Mapping):
        return refilled(first, {key: _joined([output[key] for output in outputs]) for key in first})
    if isinstance(first, tuple | list):
        parts = [_joined([output[index] for output in outputs]) for index in range(len(first))]
        return refilled(first, parts)
    return first
