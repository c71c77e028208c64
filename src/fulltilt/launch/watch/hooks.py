"""Hooks in torch that mark the phases of a training loop: forward, backward, the optimizer's step, checkpoints.

Put in right after `import torch` and never taken out: compiled code guards on what it has seen. Whatever is traced by
the compiler passes through untouched, and so does every thread but the one that trains.
"""

from __future__ import annotations

import builtins
import functools
import logging
from collections.abc import Callable, Iterable
from threading import get_ident
from typing import Any

from fulltilt.launch.imports import after_import
from fulltilt.launch.patching import put, register
from fulltilt.launch.watch.draws import looked_at
from fulltilt.launch.watch.watch import Watch, is_compiled
from fulltilt.measure.timeline import (
    AFTER_BACKWARD,
    AFTER_FORWARD,
    BACKWARD,
    CHECKPOINT,
    COPY,
    DATA_WAIT,
    EVAL,
    FORWARD,
    LOGGING,
    OPTIMIZER,
    OTHER,
)

MOST_INPUTS = 12
"""Of the model, that are looked at where two runs are to be compared."""
MOST_GIVEN = 64
"""Of a list or a dict that a module is given, longer ones are not looked into."""


def install(watch: Watch, ended: Callable[[], None]) -> None:
    """`ended` is called at the end of each step, where the script can be left."""
    _modules(watch)
    _backward(watch)
    _optimizers(watch, ended)
    _scalers(watch, ended)
    _saving(watch)
    _logging(watch)
    _frameworks(watch)


def _modules(watch: Watch) -> None:
    import torch
    from torch import nn

    called = nn.Module.__call__
    make = looked_at(watch, called) if watch.job.tie_dropout else called
    compiling = torch.compiler.is_dynamo_compiling
    with_gradients = torch.is_grad_enabled
    tensor = torch.Tensor

    def outermost(self: Any, args: Any, kwargs: Any) -> Any:
        if compiling() or get_ident() != watch.thread:
            return called(self, *args, **kwargs)
        timeline = watch.timeline
        if watch.sources:
            watch.sources.forward(timeline)
        trains = with_gradients()
        if trains and self.training:
            phase = FORWARD
        else:
            phase = EVAL
            timeline.evaluated = True
        goes_on = timeline.current == phase == FORWARD  # in a framework's step
        watch.inside = True
        if not goes_on:
            timeline.enter(phase)
            if timeline.unsettled():  # a loss function's, after the model's, or a second forward with inputs of its own
                timeline.settle(FORWARD if _computed(tensor, (*args, *kwargs.values())) else OTHER)
        try:
            return make(self, *args, **kwargs)
        finally:
            watch.inside = False
            if not trains:
                timeline.leave()
            else:
                if not goes_on:
                    timeline.leave_for(AFTER_FORWARD)  # loss functions follow, up to the backward
                if id(self) not in watch.trained:
                    _note_model(watch, self, args, kwargs)
                if watch.inputs is not None and self is watch.model:
                    _note_input(watch.inputs, args, kwargs)

    # Nearly all calls are of inner modules. Where torch's own __call__ only hands on, theirs hands on in its place: one
    # call more for each of them would be most of what watching costs.
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if watch.inside:
            if self._compiled_call_impl is not None:
                return self._compiled_call_impl(*args, **kwargs)
            return self._call_impl(*args, **kwargs)
        return outermost(self, args, kwargs)

    def around(self: Any, *args: Any, **kwargs: Any) -> Any:
        return called(self, *args, **kwargs) if watch.inside else outermost(self, args, kwargs)

    put(nn.Module, "__call__", __call__ if _hands_on(called) else around)


def _computed(tensor: type[Any], given: Iterable[Any], *, deeper: bool = True) -> bool:
    """Whether any of what a module is given was computed from weights: then that lies between it and the one before,
    and not the making of its inputs."""
    for value in given:
        if isinstance(value, tensor):
            if value.grad_fn is not None:
                return True
        elif deeper and isinstance(value, list | tuple | dict) and len(value) <= MOST_GIVEN:
            inner = value.values() if isinstance(value, dict) else value
            if _computed(tensor, inner, deeper=False):
                return True
    return False


def _hands_on(called: Any) -> bool:
    """Whether it is torch's own `__call__`, as it is known: the compiled call where there is one, or the plain."""
    code = getattr(called, "__code__", None)
    return code is not None and code.co_names == ("_compiled_call_impl", "_call_impl") and not code.co_freevars


def _note_model(watch: Watch, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The first calls of an outermost module: which is the model, and what goes in."""
    import torch

    watch.trained.add(id(module))
    given = next((value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)), None)
    size = sum(parameter.numel() for parameter in module.parameters())
    known = 0 if watch.model is None else sum(parameter.numel() for parameter in watch.model.parameters())
    if watch.model is None or size > known:
        watch.model = module
        watch.compiled = is_compiled(module)
        if given is not None:
            watch.input_shape, watch.input_last = tuple(given.shape), _channels_last(given)
        device = "cuda" if given is not None and given.is_cuda else "cpu"
        if torch.is_autocast_enabled(device):
            watch.autocast = str(torch.get_autocast_dtype(device)).removeprefix("torch.")


def _note_input(inputs: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Stays on the device, and is read when watching is over."""
    import torch

    given = next((value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)), None)
    if given is not None and given.is_floating_point() and given.numel() > 1 and len(inputs) < MOST_INPUTS:
        with torch.no_grad():
            inputs.append((given.float().mean(), given.float().std()))


def _channels_last(tensor: Any) -> bool:
    import torch

    return bool(tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))


def _backward(watch: Watch) -> None:
    import torch

    compiling = torch.compiler.is_dynamo_compiling

    def within(function: Callable[..., Any], *, is_step: bool) -> Callable[..., Any]:
        @functools.wraps(function)
        def marked(*args: Any, **kwargs: Any) -> Any:
            if compiling() or get_ident() != watch.thread:
                return function(*args, **kwargs)
            timeline = watch.timeline
            if is_step:
                watch.backward(args[0] if args else kwargs.get("tensors"))
            else:
                watch.grads += 1
                timeline.trained = True
            timeline.enter(BACKWARD)
            if timeline.unsettled():
                timeline.settle(FORWARD)
            try:
                return function(*args, **kwargs)
            finally:
                if is_step:
                    timeline.leave_for(AFTER_BACKWARD)  # the script's own code may follow, up to the optimizer's step
                else:
                    timeline.leave()

        return marked

    put(torch.autograd, "backward", within(torch.autograd.backward, is_step=True))
    put(torch.autograd, "grad", within(torch.autograd.grad, is_step=False))


def _optimizers(watch: Watch, ended: Callable[[], None]) -> None:
    import torch
    from torch.optim import Optimizer
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    compiling = torch.compiler.is_dynamo_compiling

    entered = False

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001
        nonlocal entered
        if not compiling() and get_ident() == watch.thread:
            watch.hooked = True  # already now: a closure clears gradients within the step, as LBFGS does many times
            entered = watch.timeline.begin_step()

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001
        nonlocal entered
        if not compiling() and get_ident() == watch.thread:
            watch.step_of(optimizer)
            watch.timeline.end_step(entered=entered)
            entered = False
            if optimizer is watch.optimizer:
                ended()
                watch.dozing.step_ended(watch)
        elif watch.sleeper and get_ident() == watch.sleeper:
            watch.dozing.passes_by(watch, optimizer)
        elif watch.thread:
            watch.stepped_elsewhere = True

    register(lambda: register_optimizer_step_pre_hook(before))
    register(lambda: register_optimizer_step_post_hook(after))
    put(Optimizer, "zero_grad", _clearing(watch, Optimizer.zero_grad, ended))
    _phase_names(watch, ("clip_grad_norm_", "clip_grad_value_"), OPTIMIZER, torch.nn.utils)


def _clearing(watch: Watch, cleared: Callable[..., Any], ended: Callable[[], None]) -> Callable[..., Any]:
    import torch

    compiling = torch.compiler.is_dynamo_compiling

    @functools.wraps(cleared)
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling() or get_ident() != watch.thread:
            return cleared(self, *args, **kwargs)
        if watch.unstepped and watch.cleared_by(self):
            ended()
        began_ns = watch.timeline.clock()
        found = cleared(self, *args, **kwargs)
        watch.timeline.charge(OPTIMIZER, began_ns)
        return found

    return zero_grad


def _scalers(watch: Watch, ended: Callable[[], None]) -> None:
    """GradScaler: its loss is scaled, and it leaves out the optimizer's step where gradients are infinite."""
    import torch

    scaler = torch.amp.GradScaler
    scale, update = scaler.scale, phased(watch, scaler.update, OPTIMIZER)

    @functools.wraps(scale)
    def scaled(self: Any, outputs: Any) -> Any:
        found = scale(self, outputs)
        if isinstance(outputs, torch.Tensor) and get_ident() == watch.thread:
            watch.unscaled = (found, outputs)
        return found

    @functools.wraps(update)
    def updated(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = update(self, *args, **kwargs)
        if get_ident() == watch.thread:
            left_out, watch.stepped = not watch.stepped, False
            if left_out and watch.optimizer is not None and watch.timeline.trained:
                watch.step_ended()
                ended()
        return found

    put(scaler, "scale", scaled)
    put(scaler, "update", updated)
    _phase_names(watch, ("unscale_", "step"), OPTIMIZER, scaler)


def _saving(watch: Watch) -> None:
    import torch

    put(torch, "save", phased(watch, torch.save, CHECKPOINT))
    for module, names in (
        ("safetensors.torch", ("save_file", "save_model")),
        ("torch.distributed.checkpoint", ("save",)),
    ):
        after_import(module, functools.partial(_phase_names, watch, names, CHECKPOINT))


def _logging(watch: Watch) -> None:
    """Printing, Python's logging, progress bars, and the writers that keep figures."""
    put(builtins, "print", phased(watch, builtins.print, LOGGING))
    put(logging.StreamHandler, "emit", phased(watch, logging.StreamHandler.emit, LOGGING))

    def writer(module: Any) -> None:
        methods = tuple(name for name in vars(module.SummaryWriter) if name.startswith("add_"))
        _phase_names(watch, methods, LOGGING, module.SummaryWriter)

    after_import("torch.utils.tensorboard.writer", writer)
    after_import("tqdm.std", lambda module: _phase_names(watch, ("display",), LOGGING, module.tqdm))
    for module in ("wandb", "mlflow"):
        after_import(module, functools.partial(_phase_names, watch, ("log", "log_metric", "log_metrics"), LOGGING))


_LIGHTNING = (
    ("loops.fetchers", "_PrefetchDataFetcher", ("__next__",), DATA_WAIT),
    ("core.module", "LightningModule", ("_apply_batch_transfer_handler",), COPY),
    ("strategies.strategy", "Strategy", ("training_step",), FORWARD),
    ("loops.optimization.automatic", "_AutomaticOptimization", ("run",), OPTIMIZER),
    ("core.module", "LightningModule", ("log", "log_dict"), LOGGING),
    ("trainer.call", None, ("_call_callback_hooks",), LOGGING),
    ("loops.training_epoch_loop", "_TrainingEpochLoop", ("on_advance_end",), LOGGING),
    (
        "trainer.connectors.logger_connector.logger_connector", "_LoggerConnector",
        ("on_batch_start", "on_batch_end", "update_train_step_metrics"), LOGGING,
    ),
)  # fmt: skip
"""What Lightning does around each step, in Python, which takes as long as a small model's step itself: where, whose,
what, and its phase. Callbacks are its progress bars and monitors; what they save or evaluate has phases of its own."""
_HUGGING_FACE = (
    ("trainer", "Trainer", ("get_batch_samples",), DATA_WAIT),
    ("trainer", "Trainer", ("_prepare_inputs",), COPY),
    ("trainer", "Trainer", ("training_step",), FORWARD),
    ("trainer", "Trainer", ("_clip_grad_norm", "_get_grad_norm"), OPTIMIZER),
    ("trainer", "Trainer", ("log", "_track_num_input_tokens"), LOGGING),
    ("trainer_callback", "CallbackHandler", ("call_event",), LOGGING),
)
"""The same of the Trainer of transformers."""
_FRAMEWORKS = {"lightning.pytorch": _LIGHTNING, "pytorch_lightning": _LIGHTNING, "transformers": _HUGGING_FACE}


def _frameworks(watch: Watch) -> None:
    def then(owner: str | None, names: tuple[str, ...], phase: int) -> Callable[[Any], None]:
        def put_in(module: Any) -> None:
            _phase_names(watch, names, phase, module if owner is None else getattr(module, owner, None))

        return put_in

    for package, table in _FRAMEWORKS.items():
        for module, owner, names, phase in table:
            after_import(f"{package}.{module}", then(owner, names, phase))


def _phase_names(watch: Watch, names: tuple[str, ...], phase: int, module: Any) -> None:
    for name in names:
        if hasattr(module, name):
            put(module, name, phased(watch, getattr(module, name), phase))


def phased(watch: Watch, function: Callable[..., Any], phase: int) -> Callable[..., Any]:
    """The function, its time counted for `phase`."""
    import torch

    compiling = torch.compiler.is_dynamo_compiling

    @functools.wraps(function)
    def marked(*args: Any, **kwargs: Any) -> Any:
        if compiling() or get_ident() != watch.thread or watch.timeline.current == CHECKPOINT:
            return function(*args, **kwargs)
        timeline = watch.timeline
        timeline.enter(phase)
        try:
            return function(*args, **kwargs)
        finally:
            timeline.leave()

    return marked
