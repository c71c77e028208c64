"""Forward, loss, backward and the optimizers' step, under given settings."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fulltilt.errors import InputError, UnavailableError, first_line
from fulltilt.nested import map_tensors
from fulltilt.train.step.choose import Settings
from fulltilt.train.step.ema import Ema
from fulltilt.train.step.layout import turned_back
from fulltilt.train.step.optim import Fusing, fill_momentum, like_weights
from fulltilt.train.step.precision import autocast_for, make_scaler, set_fp32_maths
from fulltilt.train.step.roles import Objective

_OUT_OF_MEMORY = (
    "alloc_failed",  # CUDNN_STATUS_ALLOC_FAILED, CUBLAS_STATUS_ALLOC_FAILED
    "unable to find an engine to execute this computation",  # cuDNN, when no algorithm's workspace fits
    "unable to find a valid cudnn algorithm",  # the same, in older words
    "cuda error: out of memory",  # the driver
    "can't allocate memory", "not enough memory",  # torch on the CPU
)  # fmt: skip

Signature = tuple[tuple[torch.Size, torch.dtype] | None, ...]


class Engine:
    """The maths of a step. Where batches come from and how they are cut is others' work."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        objective: Objective,
        device: torch.device,
        *,
        clip_norm: float | None,
        ema: Ema | None,
        keeps_fp32: bool = False,
    ) -> None:
        """
        Args:
            keeps_fp32: some parts of the model compute in fp32 whatever the precision is, and not as TF32.
        """
        self.model, self.optimizers, self.objective, self.device = model, list(optimizers), objective, device
        self.forward_model: Callable[..., Any] = model
        """What is called: the model, or a wrapper that reduces its gradients."""
        self.clip_norm, self.ema, self._keeps_fp32 = clip_norm, ema, keeps_fp32
        self.layout_asked_for = False
        """channels_last is the user's wish: outputs may have it."""
        self.settings = Settings()
        self.scaler: torch.amp.GradScaler | None = None
        self._made_scaler: torch.amp.GradScaler | None = None
        self.parameters = list(model.parameters())
        self._fusings = [Fusing(optimizer) for optimizer in self.optimizers]
        self._autocast: AbstractContextManager[Any] = nullcontext()
        self._compiled: Callable[..., tuple[Tensor, Any]] | None = None
        self._compiled_for: Signature | None = None
        self._taken: Signature | None = None
        """The first inputs that the model has taken."""

    def use(self, settings: Settings) -> None:
        """Change over to these settings; weights and optimizer state keep their values."""
        set_fp32_maths(settings.precision, self.device, keeps_fp32=self._keeps_fp32)
        self._autocast = autocast_for(settings.precision, self.device)
        if settings.precision == "fp16" and self._made_scaler is None:
            self._made_scaler = make_scaler(self.device)
        self.scaler = self._made_scaler if settings.precision == "fp16" else None
        if settings.channels_last != self.settings.channels_last:
            layout = torch.channels_last if settings.channels_last else torch.contiguous_format
            self.model.to(memory_format=layout)  # type: ignore[call-overload]
        if self.device.type == "cuda":
            torch.backends.cudnn.benchmark = settings.cudnn_benchmark
        self.settings = settings
        self.fit_optimizers()

    def fit_optimizers(self) -> None:
        """Bring the optimizers' state to the settings; also after it was loaded."""
        for optimizer, fusing in zip(self.optimizers, self._fusings, strict=True):
            like_weights(optimizer)
            fusing.set(self.settings.fused)
        if self.ema is not None:
            self.ema.follow_layout()

    @property
    def wrapped(self) -> bool:
        """Whether a wrapper reduces gradients over several processes."""
        return hasattr(self.forward_model, "no_sync")

    @property
    def sharded(self) -> bool:
        """Whether this process has only a part of the weights (FSDP2)."""
        return hasattr(self.forward_model, "set_requires_gradient_sync")

    @property
    def fused_already(self) -> bool:
        return all(fusing.always for fusing in self._fusings)

    def place(self, part: Any) -> Any:
        """A part of a batch on the device, images in the memory format of the model. Never waits."""
        if isinstance(part, Tensor):
            part = part.to(self.device, non_blocking=True)
            if self.settings.channels_last and part.dim() == 4:
                part = part.contiguous(memory_format=torch.channels_last)
            return part
        return map_tensors(self.place, part)

    def placed(self, inputs: tuple[Any, ...], target: Any) -> tuple[tuple[Any, ...], Any]:
        """A batch, or a part of it, on the device."""
        return tuple(map(self.place, inputs)), self.place(target)

    def forward(self, inputs: tuple[Any, ...], target: Any, *, alone: bool = False) -> tuple[Tensor, Any]:
        """Loss and outputs; `alone` passes by the wrapper that speaks to other ranks."""
        model = self.model if alone else self.forward_model
        with self._autocast:
            if not self.objective.examined:
                return self._first_forward(model, inputs, target)
            if self.settings.compile and not alone and torch.is_grad_enabled():
                fits = signature((*inputs, target)) == self._compiled_for
                # Another shape, such as the epoch's last batch, would be compiled anew; it is not worth a minute.
                if fits and self._compiled is not None:
                    return self._compiled(inputs, target)
            try:
                outputs = model(*inputs)
            except (RuntimeError, TypeError, ValueError) as error:
                if signature(inputs) == self._taken or is_out_of_memory(error):
                    raise  # not for the batch's shape
                raise _unfit(inputs, error) from error
            try:
                return self.objective.loss(outputs, target), outputs
            except IndexError:  # how the CPU says that a label is out of range
                self.objective.check_labels(target)
                raise

    def compile_for(self, inputs: tuple[Any, ...], target: Any) -> None:
        """Have batches of this shape compiled at their next forward."""
        if self._compiled is None:
            model, loss = self.forward_model, self.objective.loss

            def whole(inputs: tuple[Any, ...], target: Any) -> tuple[Tensor, Any]:
                outputs = model(*inputs)
                # Detached in here: no gradients of the outputs are prepared for in the compiled backward.
                return loss(outputs, target), detached(outputs)

            # The compiler counts recompilations by code object: each engine has its own, however many there are.
            whole.__code__ = whole.__code__.replace()
            self._compiled = cast("Callable[..., tuple[Tensor, Any]]", torch.compile(whole, dynamic=False))
        self._compiled_for = signature((*inputs, target))

    def backward(self, loss: Tensor, divide: float = 1.0) -> None:
        """Gradients of the loss, divided as a part of a larger batch."""
        if divide != 1.0:
            loss = loss / divide
        if self.scaler is not None:
            loss = self.scaler.scale(loss)
        loss.backward()  # type: ignore[no-untyped-call]

    def update(self) -> None:
        """`apply`, where it is not tried but meant: there is no going back from one that was broken off."""
        try:
            self.apply()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise UnavailableError(
                f"out of memory in the optimizer's step: {first_line(error)}. Weights may be half changed, so it is "
                "not taken again: go on from the last checkpoint, with smaller batches or another optimizer"
            ) from error

    def apply(self) -> None:
        """Clip, step, and forget the gradients."""
        scaler = self.scaler
        if self.clip_norm is not None:
            if scaler is not None:
                for optimizer in self.optimizers:
                    scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)
        for optimizer in self.optimizers:
            if self.settings.fused:
                fill_momentum(optimizer)
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
        if scaler is not None:
            scaler.update()
        self.zero_grad()
        if self.ema is not None:
            self.ema.update()

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def whole(self, inputs: tuple[Any, ...], target: Any) -> tuple[Tensor, Any]:
        """One whole step on one batch."""
        loss, outputs = self.forward(inputs, target)
        self.backward(loss)
        self.apply()
        return loss.detach(), detached(outputs)

    def handed_out(self, outputs: Any) -> Any:
        """What the model returned, detached, in the layout that it has without us."""
        if not self.settings.channels_last or self.layout_asked_for:
            return detached(outputs)
        return map_tensors(turned_back, detached(outputs))

    @property
    def weights(self) -> list[Tensor]:
        """All that a step may leave gradients at: the model's weights, the loss's, and others that optimizers have."""
        loss = self.objective.given
        own = list(loss.parameters()) if isinstance(loss, nn.Module) else []
        held = [parameter for each in self.optimizers for group in each.param_groups for parameter in group["params"]]
        return list(dict.fromkeys([*self.parameters, *own, *held]))

    def extra_state(self) -> list[Tensor]:
        """Tensors beside the model's and the optimizers' that a step changes."""
        loss, models = self.objective.given, set(self.parameters)
        buffers = list(loss.buffers()) if isinstance(loss, nn.Module) else []
        averages = [] if self.ema is None else self.ema.averages
        return [*averages, *buffers, *[weight for weight in self.weights if weight not in models]]

    def _first_forward(self, model: Callable[..., Any], inputs: tuple[Any, ...], target: Any) -> tuple[Tensor, Any]:
        """Plain, and explained where it fails: nothing has been compiled or captured yet."""
        try:
            outputs = model(*inputs)
        except (RuntimeError, TypeError, ValueError) as error:
            if is_out_of_memory(error):
                raise
            raise _unfit(inputs, error, first=True) from error
        self._taken = signature(inputs)
        self.objective.examine(outputs, target)
        loss = self.objective.loss(outputs, target)
        self.objective.check_result(loss)
        return loss, outputs


def compiling() -> AbstractContextManager[Any]:
    """While something is compiled: torch's own warnings are no failures, also where a program raises warnings."""
    return warnings.catch_warnings(action="ignore")


def signature(batch: tuple[Any, ...]) -> Signature:
    """Shapes and types of a batch."""
    return tuple((part.shape, part.dtype) if isinstance(part, Tensor) else None for part in batch)


def detached(outputs: Any) -> Any:
    return outputs.detach() if isinstance(outputs, Tensor) else map_tensors(Tensor.detach, outputs)


def is_out_of_memory(error: BaseException) -> bool:
    """torch's own error, or what others say when they can't allocate."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    said = str(error).lower() if isinstance(error, RuntimeError) else ""
    return any(saying in said for saying in _OUT_OF_MEMORY)


def _unfit(inputs: tuple[Any, ...], error: Exception, *, first: bool = False) -> InputError:
    """What the model said to a batch, with the batch's shapes, and what may help."""
    hint = ""
    if any(map(_bytes, inputs)):
        hint = "; bytes are no inputs: images / 255, or a GPUAugmentation, which does that"
    elif any(map(_double, inputs)) and "double" in str(error).lower():
        hint = "; NumPy's numbers are float64, weights are float32: inputs.float()"
    elif "more than 1 value per channel" in str(error):
        hint = "; batch norm needs several samples: drop_last=True, or a batch size that leaves no single one over"
    elif first and len(inputs) > 1:
        hint = "; if one of these is the target, say which of the batch's values it is with target="
    elif not first:
        hint = "; batches before it had another shape"
    shapes = ", ".join(_described(part) for part in inputs)
    return InputError(f"the model can't take this batch's inputs ({shapes}): {first_line(error)}{hint}")


def _bytes(part: Any) -> bool:
    return isinstance(part, Tensor) and part.dtype == torch.uint8


def _double(part: Any) -> bool:
    return isinstance(part, Tensor) and part.dtype == torch.float64


def _described(part: Any) -> str:
    if not isinstance(part, Tensor):
        return type(part).__name__
    return f"{str(part.dtype).removeprefix('torch.')} {tuple(part.shape)}"
