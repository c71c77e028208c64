"""Models, as the script calls them: channels_last, autocast, graphs and compile around the outermost call.

`Module.__call__` is replaced once, before torch's compiler is imported: the compiler then takes the replacement for the
original and looks through it. Nothing is hung on the script's modules except what `Module.compile` itself keeps there
(and leaves out of copies and checkpoints).
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field, fields, is_dataclass
from threading import get_ident
from typing import TYPE_CHECKING, Any

from fulltilt.errors import first_line
from fulltilt.nested import refilled

if TYPE_CHECKING:
    from fulltilt.launch.apply.graphed import Graphed

_SEEN_BEFORE_COMPILING = 8
"""Beside its first training call, a model is compiled for shapes that come back so often: an epoch's short last batch
is not worth a minute of compiling."""
_COMPILED_SHAPES = 4
_MOST_SHAPES = 64
_GRAPHS = 3
"""Graphs of one model: each keeps the memory of a whole step."""
_MISSES = 8
"""Calls in a row that a graph did not fit, before another is made: something of the model was changed for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    channels_last: bool
    autocast: str | None
    compile: str | None
    """The compiler's mode."""
    graphs: bool
    nudge: float
    """Not for plans: weights are changed by so much, relatively, before the first step. See verify.py."""


@dataclass(slots=True)
class _Known:
    """What is known of one outermost module."""

    device: Any
    compiles: bool
    makes_graphs: bool = False
    nudged: bool = False
    calls: dict[Any, int] = field(default_factory=dict)
    compiled: set[Any] = field(default_factory=set)
    graphs: dict[Any, Graphed | None] = field(default_factory=dict)
    """For shapes and precision; None where there can be none."""
    recorded: int = 0
    misses: int = 0

    def comes_back(self, shapes: Any) -> bool:
        """Whether these, which are seen once more, are seen often."""
        if len(self.calls) > _MOST_SHAPES:
            self.calls.clear()  # every batch of another length: none of them comes back
        count = self.calls[shapes] = self.calls.get(shapes, 0) + 1
        return count > _SEEN_BEFORE_COMPILING


def install(settings: Mapping[str, Any], note: Callable[[str], None]) -> None:
    chosen, graphs = settings.get("compile"), bool(settings.get("graphs"))
    wanted = _Wanted(
        channels_last=bool(settings.get("channels_last")),
        autocast=settings.get("autocast") or None,
        compile=("reduce-overhead" if graphs else "default") if chosen is True else chosen or None,
        graphs=graphs and not chosen,  # the compiler makes its own
        nudge=float(settings.get("verify.nudge", 0.0)),
    )
    if not (wanted.channels_last or wanted.autocast or wanted.compile or wanted.graphs or wanted.nudge):
        return
    from torch.nn import Module

    caller = _Caller(wanted, note, Module.__call__)

    @functools.wraps(Module.__call__)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return caller(self, args, kwargs)

    Module.__call__ = call  # type: ignore[method-assign]
    if wanted.channels_last:
        _lay_out_before_sharing()
        _lay_out_states()


class _Caller:
    def __init__(self, wanted: _Wanted, note: Callable[[str], None], original: Callable[..., Any]) -> None:
        self._wanted, self._note, self._original = wanted, note, original
        self._inside: set[int] = set()
        """Threads that are within a call."""
        self._known: weakref.WeakKeyDictionary[Any, _Known | None] = weakref.WeakKeyDictionary()

    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        thread = get_ident()
        if thread in self._inside or _goes_back():
            return self._original(module, *args, **kwargs)
        beside = bool(self._inside)
        self._inside.add(thread)
        try:
            if beside:  # replicas of a model, or one that is called by another thread: as they are, to their end
                return self._original(module, *args, **kwargs)
            known = self._known.get(module, _UNKNOWN)
            if known is _UNKNOWN:
                known = self._known[module] = self._prepared(module)
            if known is None:
                return self._original(module, *args, **kwargs)
            return self._called(module, known, args, kwargs)
        finally:
            self._inside.discard(thread)

    def _prepared(self, module: Any) -> _Known | None:
        """At a module's first outermost call. None for what has no weights to train: a loss, a teacher."""
        import torch

        first = next((weight for weight in module.parameters() if weight.requires_grad), None)
        if first is None or isinstance(module, torch.jit.ScriptModule):
            return None
        if self._wanted.channels_last and not _is_shared(module):
            _lay_out(module)
        own = _compiler_is_there() and isinstance(module, torch._dynamo.OptimizedModule)
        own = own or module._compiled_call_impl is not None
        for name in ("compile", "graphs"):
            if own and getattr(self._wanted, name):
                self._note(f"{name}: {type(module).__name__} is compiled already")
        graphs = self._wanted.graphs and not own and first.device.type == "cuda"
        return _Known(device=first.device, compiles=bool(self._wanted.compile) and not own, makes_graphs=graphs)

    def _called(self, module: Any, known: _Known, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        import torch

        from fulltilt.train.step.layout import turned_back

        trains = module.training and torch.is_grad_enabled()
        if trains and self._wanted.nudge and not known.nudged:
            known.nudged = True
            _nudge(module, self._wanted.nudge)
        call = self._call_of(module, known, trains, args, kwargs)
        kind = known.device.type
        if self._wanted.autocast is None or torch.is_autocast_enabled(kind):
            output = call(*args, **kwargs)
        else:
            precision = getattr(torch, self._wanted.autocast)
            with torch.autocast(kind, precision):
                output = call(*args, **kwargs)
            output = _widened(output, precision)
        return _each(output, turned_back) if self._wanted.channels_last else output

    def _call_of(
        self, module: Any, known: _Known, trains: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[..., Any]:
        """The compiled or recorded call for shapes that are worth it, the plain one for others."""
        if known.makes_graphs and trains:
            return functools.partial(self._graphed, module, known)
        if not known.compiles:
            return functools.partial(self._original, module)
        shapes = (trains, _shapes(args), _shapes(tuple(kwargs.items())))
        if shapes not in known.compiled:
            back, first = known.comes_back(shapes), trains and not known.compiled
            if len(known.compiled) >= _COMPILED_SHAPES or not (first or back):
                return module._call_impl  # type: ignore[no-any-return]
            known.compiled.add(shapes)
            if module._compiled_call_impl is None:
                module.compile(dynamic=False, mode=self._wanted.compile)
            return functools.partial(self._compiling, module, known)
        return functools.partial(self._compiled, module, known)

    def _graphed(self, module: Any, known: _Known, *args: Any, **kwargs: Any) -> Any:
        import torch

        kind = known.device.type
        precision = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        key = _shapes(args), _shapes(tuple(kwargs.items())), precision
        if key not in known.graphs and known.recorded < _GRAPHS and (not known.graphs or known.comes_back(key)):
            known.graphs[key] = self._recorded(module, known, precision, args, kwargs)
        graphed = known.graphs.get(key)
        if graphed is not None and graphed.fits(module, args, kwargs):
            known.misses = 0
            return graphed(args, kwargs)
        known.misses += 1
        if known.misses > _MISSES and key in known.graphs:
            known.graphs.clear()
            known.misses = 0
        return self._original(module, *args, **kwargs)

    def _recorded(
        self, module: Any, known: _Known, precision: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Graphed | None:
        import torch

        from fulltilt.launch.apply.graphed import Graphed
        from fulltilt.launch.apply.tried import Refused

        def call(*args: Any, **kwargs: Any) -> Any:
            # What autocast keeps of the weights would be the first step's for ever.
            with torch.autocast(known.device.type, precision, enabled=precision is not None, cache_enabled=False):
                return self._original(module, *args, **kwargs)

        known.recorded += 1
        try:
            return Graphed(module, call, args, kwargs, device=known.device)
        except (Refused, RuntimeError) as error:
            why = str(error) if isinstance(error, Refused) else first_line(error, kind=True)
            self._note(f"graphs: {type(module).__name__} is left as it is ({why})")
            return None

    def _compiling(self, module: Any, known: _Known, *args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's own, which a script may have made errors
            return self._compiled(module, known, *args, **kwargs)

    def _compiled(self, module: Any, known: _Known, *args: Any, **kwargs: Any) -> Any:
        import torch

        try:
            output = self._original(module, *args, **kwargs)
        except torch._dynamo.exc.TorchDynamoException as error:
            known.compiles, module._compiled_call_impl = False, None
            self._note(f"compile: {type(module).__name__} is left as it is ({first_line(error, kind=True)})")
            return module._call_impl(*args, **kwargs)
        # The next call of a recorded graph overwrites what this one has returned; the script may keep it.
        graphs = self._wanted.compile == "reduce-overhead" and known.device.type == "cuda"
        return _each(output, lambda tensor: tensor.clone()) if graphs else output


_UNKNOWN: Any = object()


def _goes_back() -> bool:
    """Whether a backward calls: parts of a checkpointed model are computed again, just as they were the first time."""
    import torch

    return torch._C._current_graph_task_id() != -1


def _compiler_is_there() -> bool:
    import sys

    return "torch._dynamo" in sys.modules


def _lay_out(module: Any) -> None:
    """Weights of two-dimensional convolutions in channels_last; in place, so the optimizer keeps its own."""
    import torch

    for weight in module.parameters():
        if weight.dim() == 4:
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)


def _lay_out_states() -> None:
    """The state that an optimizer was given with a checkpoint, in the old layout, follows its weights."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    followed: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def follow(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001
        if followed.get(optimizer) is optimizer.state:  # a checkpoint that is loaded brings another
            return
        followed[optimizer] = optimizer.state
        for weight, state in optimizer.state.items():
            for name, value in state.items():
                same = isinstance(value, torch.Tensor) and value.shape == weight.shape and weight.dim() == 4
                if same and value.stride() != weight.stride():
                    state[name] = value.contiguous(memory_format=torch.channels_last)

    register_optimizer_step_pre_hook(follow)


def _lay_out_before_sharing() -> None:
    """DistributedDataParallel cuts its buckets by the weights' layout: they are laid out before it sees them."""
    from torch.nn.parallel import DistributedDataParallel

    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def init(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        _lay_out(module)
        original(self, module, *args, **kwargs)

    DistributedDataParallel.__init__ = init  # type: ignore[method-assign]


def _is_shared(module: Any) -> bool:
    from torch.nn.parallel import DistributedDataParallel

    return isinstance(module, DistributedDataParallel)


def _nudge(module: Any, by: float) -> None:
    """Every weight off by a random part of itself; from a generator of its own, so that no draw of the script moves."""
    import torch

    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            if weight.requires_grad and weight.is_floating_point():
                noise = torch.randn(weight.shape, generator=random).to(weight.device, weight.dtype)
                weight.mul_(1.0 + by * noise)


def _shapes(parts: Any) -> Any:
    from torch import Tensor

    if isinstance(parts, Tensor):
        return tuple(parts.shape), parts.dtype
    if isinstance(parts, tuple | list):
        return tuple(_shapes(part) for part in parts)
    if isinstance(parts, Mapping):
        return tuple((key, _shapes(part)) for key, part in parts.items())
    return type(parts)


def _widened(output: Any, precision: Any) -> Any:
    """Half-precision outputs as float32: what the script does with them, it does as before."""
    return _each(output, lambda tensor: tensor.float() if tensor.dtype == precision else tensor)


def _each(output: Any, change: Callable[[Any], Any]) -> Any:
    """Every tensor of a model's output changed; what holds them stays what it is."""
    from torch import Tensor

    if isinstance(output, Tensor):
        return change(output)
    if isinstance(output, tuple | list):
        return refilled(output, [_each(part, change) for part in output])
    if isinstance(output, MutableMapping):
        for key in list(output):  # in place: output classes of model libraries refuse to be made anew
            output[key] = _each(output[key], change)
    elif is_dataclass(output) and not isinstance(output, type):
        for part in fields(output):
            object.__setattr__(output, part.name, _each(getattr(output, part.name), change))  # frozen ones, too
    return output
