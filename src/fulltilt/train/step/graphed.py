"""A step as one CUDA graph: for models whose kernels are over sooner than they are launched.

    batch ──copied──► [ forward ─► loss ─► backward ─► optimizers' update ] ──► copies of loss and outputs
                      [ forward ─► loss ─► backward ] ─► update, launched ──►   … where the update can't be captured

A graph repeats what was launched while it was captured, with the same addresses and the same numbers. So the batch is
copied to where the graph reads it, learning rates lie on the device, and whatever else Python could change from step to
step is looked at before each replay; a step that differs runs without the graph, on the same weights and state.
Optimizers that have no fused form, or options that move (momentum, in a one-cycle schedule), update outside of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import Optimizer

from fulltilt.errors import FulltiltError
from fulltilt.measure.heard import heard, tell_of_waiting
from fulltilt.nested import map_tensors
from fulltilt.train.step.engine import Engine, signature
from fulltilt.train.step.optim import fixed_options, rates, why_not_fused
from fulltilt.train.step.roles import split

_WARM_STEPS = 3
_ALIGNED_BYTES = 16
_TOGETHER_BYTES = 4096
_PLACES, _BLOCK_BYTES = 64, 1 << 16
"""Copies that are cut together: whoever keeps one keeps their memory."""
_STEP_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
MOVING = "the optimizer's options change from step to step"


def why_not_graphed(engine: Engine) -> str | None:
    """What is known to stand against a graph before one is captured."""
    if engine.device.type != "cuda":
        return "CUDA graphs need an NVIDIA GPU"
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooked = [name or "itself" for name, module in engine.model.named_modules() if _has_hooks(module, hooks)]
    of_weights = ("_backward_hooks", "_post_accumulate_grad_hooks")
    hooked += [name for name, weight in engine.model.named_parameters() if _has_hooks(weight, of_weights)]
    return f"the model has hooks (on {hooked[0]}), which a graph would leave out" if hooked else None


def why_update_outside(engine: Engine) -> str | None:
    """Why the optimizers' update can't be in the graph; without it, forward and backward can."""
    if any(isinstance(rate, Tensor) for rate in rates(engine.optimizers)):
        return "a learning rate is a tensor already"
    for optimizer in engine.optimizers:
        if (why := why_not_fused(optimizer)) is not None:
            return why
        if _has_hooks(optimizer, _STEP_HOOKS):
            return "the optimizer has step hooks"
        # Whatever the settings say: one that can't skip its first step is not, with fp16.
        if not all(group.get("fused") for group in optimizer.param_groups):
            return "the optimizer is not fused"
    return None


def _has_hooks(owner: Any, names: Sequence[str]) -> bool:
    return any(getattr(owner, name, None) for name in names)


class GraphedStep:
    """A captured step. Making one trains on the batch a few times: take a snapshot before, and restore it after."""

    def __init__(self, engine: Engine, batch: tuple[Tensor, ...], place: int, *, moving_options: bool = False) -> None:
        """
        Args:
            moving_options: options of the optimizers change from step to step, so their update is not captured.
        """
        self._engine, self.target_place = engine, place
        self.outside = why_update_outside(engine) or (MOVING if moving_options else None)
        """Why the update is not in the graph, where it isn't."""
        self.replays = 0
        self._states = [(optimizer, optimizer.state) for optimizer in engine.optimizers]
        self._updates = self.outside is None
        self._weights = engine.weights
        self._grads: list[tuple[Tensor, Tensor]] = []
        """Weights and what the graph leaves as their gradients, where it does not use them up itself."""
        self._standing: list[tuple[Tensor, Tensor]] = []
        """Weights whose gradients no optimizer takes away, and the memory in which the graph adds to them."""
        self._static: tuple[Tensor, ...] = tuple(part.clone() for part in batch)
        self._shapes = signature(batch)
        self._rates = rates(engine.optimizers) if self._updates else []
        self._device_rates = [torch.tensor(rate, dtype=torch.float32, device=engine.device) for rate in self._rates]
        self._modules = list(engine.model.modules())
        self._state, self._options = self._model_state(), self._update_state()
        self.graph = torch.cuda.CUDAGraph()
        inputs, target = split(self._static, place)
        side = torch.cuda.Stream(engine.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(engine.device))
        with self._with_device_rates():
            with torch.cuda.stream(side):
                for _ in range(_WARM_STEPS):
                    engine.whole(inputs, target)
                # Found out before: a capture that fails leaves torch's random numbers unusable.
                if all(self._waits(inputs, target) for _ in range(_WARM_STEPS)):
                    raise FulltiltError("the step waits for the device (.item(), nonzero(), …), which a graph can't")
            torch.cuda.current_stream(engine.device).wait_stream(side)
            self._standing = [(each, each.grad) for each in self._weights if each.grad is not None]
            self._bare = [each for each in self._weights if each.grad is None]
            # Threads of a feed go on allocating meanwhile: only what this one does belongs to the capture.
            stream = torch.cuda.Stream(engine.device)  # type: ignore[no-untyped-call]  # not the current device's
            with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
                self._capture(inputs, target, side)

    def fits(self, batch: tuple[Any, ...]) -> bool:
        """Whether this batch is of the captured shape and nothing that was baked in has changed."""
        if signature(batch) != self._shapes or self.state_replaced or self.options_moved:
            return False
        if self.model_changed:
            return False
        # A backward of the user's own before the step: what it has left is to be added to.
        return not any(weight.grad is not None for weight in self._bare)

    @property
    def options_moved(self) -> bool:
        """Whether the update that was captured is no longer the optimizers'."""
        return self._updates and self._update_state() != self._options

    @property
    def model_changed(self) -> bool:
        """Whether other weights are frozen now, or parts of the model in another mode."""
        return self._model_state() != self._state

    @property
    def state_replaced(self) -> bool:
        """Whether an optimizer's state was loaded since: what the captured update goes on with is no longer it."""
        return self._updates and any(optimizer.state is not state for optimizer, state in self._states)

    def __call__(self, batch: tuple[Any, ...]) -> tuple[Tensor, Any]:
        for static, part in zip(self._static, batch, strict=True):
            static.copy_(part, non_blocking=True)
        if self._updates:
            now = rates(self._engine.optimizers)
            if now != self._rates:
                for rate, static in zip(now, self._device_rates, strict=True):
                    static.fill_(rate)
                self._rates = now
        for weight, grad in self._standing:
            if weight.grad is not grad:  # put back from a snapshot, or set to None
                grad.zero_() if weight.grad is None else grad.copy_(weight.grad)
                weight.grad = grad
        self.graph.replay()
        self.replays += 1
        if not self._updates:
            for parameter, grad in self._grads:
                parameter.grad = grad
            self._engine.update()
        return self._results.taken()

    def _capture(self, inputs: tuple[Any, ...], target: Any, side: torch.cuda.Stream) -> None:
        loss, outputs = self._engine.forward(inputs, target)
        current = torch.cuda.current_stream(self._engine.device)
        side.wait_stream(current)
        with torch.cuda.stream(side):  # a branch of the graph: what is handed out is put together beside the backward
            self._results = _Results(loss.detach(), self._engine.handed_out(outputs))
        self._engine.backward(loss)
        if self._updates:
            self._engine.apply()
        else:
            self._grads = [(each, each.grad) for each in self._bare if each.grad is not None]
            for each in self._bare:  # not zero_grad: an optimizer's own may be one that is captured
                each.grad = None
        current.wait_stream(side)

    def _waits(self, inputs: tuple[Any, ...], target: Any) -> bool:
        """Whether something of what is captured waits for the device."""
        with heard() as said:
            self._engine.backward(self._engine.forward(inputs, target)[0])
            if self._updates:
                self._engine.apply()
        if not self._updates:
            self._apply_and_look()
        return tell_of_waiting(said)

    def _apply_and_look(self) -> None:
        """The update; refused where something of it, or a hook, holds on to gradients that a replay would overwrite."""
        held: Any = StorageWeakRef
        dense = [each for each in self._weights if each.grad is not None and not each.grad.is_sparse]
        memory = [(each, held(each.grad.untyped_storage())) for each in dense if each.grad is not None]
        self._engine.apply()
        if any(each.grad is None and not kept.expired() for each, kept in memory):
            raise FulltiltError("the optimizer, or a hook, keeps gradients, which replays would overwrite")

    def _model_state(self) -> list[Any]:
        """What a graph bakes in and Python may change in the model: frozen weights, modes."""
        return [
            *[weight.requires_grad for weight in self._weights],
            *[module.training for module in self._modules],
        ]

    def _update_state(self) -> list[Any]:
        """What the update bakes in, likewise: options."""
        optimizers = self._engine.optimizers
        return [*fixed_options(optimizers), *[_has_hooks(optimizer, _STEP_HOOKS) for optimizer in optimizers]]

    @contextmanager
    def _with_device_rates(self) -> Iterator[None]:
        """Learning rates as tensors while the optimizers are captured; numbers again for schedulers and users."""
        if not self._updates:
            yield
            return
        groups = [group for optimizer in self._engine.optimizers for group in optimizer.param_groups]
        capturable = [group.get("capturable") for group in groups]
        for group, rate in zip(groups, self._device_rates, strict=True):
            group["lr"] = rate
            if "capturable" in group:
                group["capturable"] = True
        warned = [_silence(optimizer) for optimizer in self._engine.optimizers]
        try:
            yield
        finally:
            for group, rate, before in zip(groups, self._rates, capturable, strict=True):
                group["lr"] = rate
                if "capturable" in group:
                    group["capturable"] = before
            for optimizer, had in zip(self._engine.optimizers, warned, strict=True):
                optimizer._warned_capturable_if_run_uncaptured = had


class _Results:
    """Loss and outputs as the graph leaves them; handed out as copies, because the next replay overwrites them.

    Small ones lie together and take one copy for all. Large ones don't: whoever keeps losses would keep outputs, too.
    """

    def __init__(self, loss: Tensor, outputs: Any) -> None:
        leaves = [loss]

        def note(tensor: Tensor) -> Tensor:
            leaves.append(tensor.detach())
            return tensor

        map_tensors(note, outputs)
        self._outputs = map_tensors(lambda _: torch.empty(0), outputs)  # its structure alone
        self.leaves: Sequence[Tensor] = leaves
        self._small: _Small | None = None
        if sum(leaf.nbytes for leaf in leaves) <= _TOGETHER_BYTES:
            self._small = _Small(leaves)
            self.leaves = self._small.leaves

    def taken(self) -> tuple[Tensor, Any]:
        loss, *rest = [leaf.clone() for leaf in self.leaves] if self._small is None else self._small.copies()
        if isinstance(self._outputs, Tensor):
            return loss, rest[0]
        views = iter(rest)
        return loss, map_tensors(lambda _: next(views), self._outputs)


class _Small:
    """Tensors of any types in one piece of memory, and places for the copies of many steps.

    Cutting a copy into tensors takes the host longer than launching the copy does, so it is done for all places at
    once: a tenth of the time for each.
    """

    def __init__(self, leaves: Sequence[Tensor]) -> None:
        self._kinds = [(leaf.dtype, leaf.shape) for leaf in leaves]
        widths = [leaf.nbytes for leaf in leaves]
        self._starts = list(accumulate((_aligned(width) for width in widths[:-1]), initial=0))
        self._bytes = self._starts[-1] + _aligned(widths[-1])
        (self._memory,), (self.leaves,) = self._places(1, leaves[0].device)
        for leaf, view in zip(leaves, self.leaves, strict=True):
            view.copy_(leaf)
        self._free: list[tuple[Tensor, tuple[Tensor, ...]]] = []

    def copies(self) -> tuple[Tensor, ...]:
        if not self._free:
            count = max(1, min(_PLACES, _BLOCK_BYTES // self._bytes))
            self._free = list(zip(*self._places(count, self._memory.device), strict=True))
        memory, leaves = self._free.pop()
        memory.copy_(self._memory)
        return leaves

    def _places(self, count: int, device: torch.device) -> tuple[tuple[Tensor, ...], list[tuple[Tensor, ...]]]:
        """Memory for each, and its tensors."""
        memory = torch.empty((count, self._bytes // 8), dtype=torch.int64, device=device)
        cut = []
        for start, (dtype, shape) in zip(self._starts, self._kinds, strict=True):
            part = memory.view(dtype).narrow(1, start // dtype.itemsize, math.prod(shape))
            cut.append(part.view(count, *shape).unbind())
        # `data` counts changes apart from the tensors that are cut: a copy into one place must not look like a change
        # of results handed out before, which somebody may be about to go backward through.
        return memory.data.unbind(), list(zip(*cut, strict=True))


def _aligned(size: int) -> int:
    return math.ceil(size / _ALIGNED_BYTES) * _ALIGNED_BYTES


def _silence(optimizer: Optimizer) -> bool:
    """Warming up runs a capturable optimizer uncaptured on purpose; no need to be warned of it."""
    before = bool(getattr(optimizer, "_warned_capturable_if_run_uncaptured", False))
    optimizer._warned_capturable_if_run_uncaptured = True
    return before
