"""A model's forward and backward as CUDA graphs: each is launched at once, not kernel by kernel. No compiler is needed.

    first call     a few trials of forward and backward ─► forward graph ─► backward graph, on the same memory
    later calls    inputs ─► their places ─► forward graph ─► copies of the outputs
    backward       gradients of the outputs ─► their places ─► backward graph ─► copies of the weights' gradients

A graph repeats what was launched while it was captured, with the same addresses and the same numbers. So before each
replay all that Python could have changed is looked at: weights that were exchanged or frozen, modes, options, hooks. A
model whose own code counts, draws or waits for the device is left as it is; so is a call whose forerunner still has
its backward before it. What the script is given are copies: it may keep them, and add up gradients.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.modules.module import _has_any_global_hook
from torch.utils import _pytree as pytree

from fulltilt.launch.apply.behind import weights_behind
from fulltilt.launch.apply.looks import PLAIN, Looks
from fulltilt.launch.apply.tried import Refused, try_out, unchanged

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class CudaTape:
    """What a function launches, to be launched again."""

    def __init__(self, stream: Any, pool: Any = None) -> None:
        self._stream, self._pool = stream, pool
        self._graph = torch.cuda.CUDAGraph()

    def record(self, function: Callable[[], list[Tensor]]) -> list[Tensor]:
        """Call it; from then on `replay` leaves its results in the tensors that it has returned now."""
        # Other threads go on pinning and copying batches meanwhile: only what this one does belongs to the capture.
        with torch.cuda.graph(self._graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            return function()

    @property
    def pool(self) -> Any:
        return self._graph.pool()

    def replay(self) -> None:
        self._graph.replay()


class Graphed:
    """One module's calls with tensors of the same shapes. Making one raises Refused, with the module as it was."""

    def __init__(
        self,
        module: Any,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        device: Any,
        tape: Callable[..., Any] = CudaTape,
    ) -> None:
        """
        Args:
            call: the module's, with precision and all; in grad mode. It is not kept.
            args: as those of the calls to come; kwargs likewise.
        """
        why = _why_not(module) or _why_not_with((args, kwargs), device)
        if why is not None:
            raise Refused(why)
        leaves, self._given = pytree.tree_flatten((args, kwargs))
        self._leaves = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._weights = [weight for weight in module.parameters() if weight.requires_grad]
        self._looks = Looks(module)
        self._last: weakref.ref[_Turn] | None = None
        there_and_back = _ThereAndBack(call, self._leaves, self._given, self._weights, device)
        cuda: Any = torch.cuda
        # One stream for all: a backward runs where its forward did, and gradients end where weights were first used.
        stream = cuda.Stream(device) if device.type == "cuda" else None
        with unchanged(module, device):
            try_out(there_and_back, lambda: self._looks.hold(module), stream)
            self._forward = tape(stream)
            self._outputs = self._forward.record(there_and_back.there)
            self._returned = there_and_back.returned
            self._needs = [output.requires_grad for output in self._outputs]
            self._backward = tape(stream, self._forward.pool)
            self._pieces = self._backward.record(there_and_back.back)
        self._ends_grads, self._views = there_and_back.ends_grads, there_and_back.views
        self._behind = there_and_back.behind
        self._outputs = [output.detach() for output in self._outputs]

    def fits(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a replay does what the module would do with these, whose shapes are known to be the same."""
        turn = None if self._last is None else self._last()
        if turn is not None and not turn.done:
            return False  # what its backward needs would be overwritten
        if _has_any_global_hook():  # type: ignore[no-untyped-call]
            return False
        leaves, given = pytree.tree_flatten((args, kwargs))
        if given != self._given or any(map(_differs, leaves, self._leaves)):
            return False
        return self._looks.hold(module)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for place, leaf in zip(self._leaves, pytree.tree_leaves((args, kwargs)), strict=True):
            if isinstance(leaf, Tensor):
                place.copy_(leaf, non_blocking=True)
        turn = _Turn()
        self._last = weakref.ref(turn)
        outputs = _Replayed.apply(self, turn, *self._weights)  # type: ignore[no-untyped-call]
        return self._returned(outputs)

    def replay(self) -> tuple[tuple[Tensor, ...], list[bool]]:
        """Copies of the outputs, and which of them can be gone back from."""
        self._forward.replay()
        return tuple(output.clone() for output in self._outputs), self._needs

    def replay_backward(self, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        given = [grad for grad, needs in zip(grads, self._needs, strict=True) if needs]
        for place, grad in zip(self._ends_grads, given, strict=True):
            if grad is None:
                place.zero_()
            else:
                place.copy_(grad, non_blocking=True)
        self._backward.replay()
        return cut([piece.clone() for piece in self._pieces], self._wanted(given))

    def _wanted(self, given: Sequence[Tensor | None]) -> Sequence[View | None]:
        """A weight behind outputs that nobody goes back from has no gradient, which is another thing than zeros: an
        optimizer passes it by."""
        if all(grad is not None for grad in given):
            return self._views
        wanted = frozenset[int]().union(
            *(behind for grad, behind in zip(given, self._behind, strict=True) if grad is not None)
        )
        return [view if place in wanted else None for place, view in enumerate(self._views)]


View = tuple[int, tuple[int, ...], tuple[int, ...], int]
"""Which piece, its shape, its stride, and where in the piece it begins."""


def cut(pieces: Sequence[Tensor], views: Sequence[View | None]) -> list[Tensor | None]:
    return [None if view is None else pieces[view[0]].as_strided(*view[1:]) for view in views]


class _ThereAndBack:
    """A module's forward and backward as they are tried and recorded."""

    def __init__(self, call: Any, leaves: list[Any], given: Any, weights: list[Any], device: Any) -> None:
        self._call, self._leaves, self._given, self._weights, self._device = call, leaves, given, weights, device
        self._ends: list[Tensor] = []
        self.ends_grads: list[Tensor] = []
        """Where gradients of the outputs are put before going back."""
        self.behind: list[frozenset[int]] = []
        """Which of the weights stand behind each of those outputs."""
        self.views: list[View | None] = []
        """Where each weight's gradient lies afterwards; None where it has none."""

    def there(self) -> list[Tensor]:
        args, kwargs = pytree.tree_unflatten(self._leaves, self._given)
        written = [leaf._version for leaf in self._leaves if isinstance(leaf, Tensor)]
        kept, structure = pytree.tree_flatten(self._call(*args, **kwargs))
        if written != [leaf._version for leaf in self._leaves if isinstance(leaf, Tensor)]:
            raise Refused("it writes in its inputs, which the script may use afterwards")
        if any(not isinstance(leaf, Tensor | type(None)) for leaf in kept):
            raise Refused("it returns something else than tensors")
        outputs = [leaf for leaf in kept if leaf is not None]
        absent = [leaf is None for leaf in kept]
        self._ends = [output for output in outputs if output.requires_grad]
        if not self._ends:
            raise Refused("it returns nothing to go back from")
        if len(self.ends_grads) != len(self._ends):
            self.ends_grads = [torch.zeros_like(output) for output in self._ends]
            self.behind = [weights_behind(output, self._weights) for output in self._ends]

        def returned(found: Iterable[Tensor]) -> Any:
            rest = iter(found)
            return pytree.tree_unflatten([None if gone else next(rest) for gone in absent], structure)

        self.returned: Callable[[Iterable[Tensor]], Any] = returned
        return outputs

    def forget(self) -> None:
        """Of the last forward, what would hold on to the weights' places in it."""
        self._ends = []

    def back(self) -> list[Tensor]:
        """Gradients of all weights of a type in one piece, each in its weight's layout: one copy serves them all."""
        # Kept, so that a script may go back twice.
        grads: tuple[Tensor | None, ...] = torch.autograd.grad(
            self._ends, self._weights, self.ends_grads, retain_graph=True, allow_unused=True
        )
        dtypes = list(dict.fromkeys(grad.dtype for grad in grads if grad is not None))
        at = [0] * len(dtypes)
        self.views = []
        for weight, grad in zip(self._weights, grads, strict=True):
            if grad is None:
                self.views.append(None)
                continue
            piece = dtypes.index(grad.dtype)
            self.views.append((piece, tuple(weight.shape), tuple(weight.stride()), at[piece]))
            at[piece] += weight.numel()
        pieces = [torch.empty(size, dtype=dtype, device=self._device) for size, dtype in zip(at, dtypes, strict=True)]
        places = [view for view in cut(pieces, self.views) if view is not None]
        torch._foreach_copy_(places, [grad for grad in grads if grad is not None])
        return pieces


class _Turn:
    """One forward, for as long as something could go back through it."""

    __slots__ = ("__weakref__", "done")

    def __init__(self) -> None:
        self.done = False


class _Replayed(torch.autograd.Function):
    """The weights are its inputs, so that their gradients arrive where the script looks for them."""

    @staticmethod
    def forward(ctx: Any, graphed: Graphed, turn: _Turn, *weights: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG004
        ctx.graphed, ctx.turn = graphed, turn
        outputs, needs = graphed.replay()
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(output for output, needed in zip(outputs, needs, strict=True) if not needed))
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # Whoever keeps the graph may go back once more, also after another forward.
        ctx.turn.done = not torch._C._autograd._get_current_graph_task_keep_graph()
        return None, None, *ctx.graphed.replay_backward(grads)


def _differs(leaf: Any, known: Any) -> bool:
    if isinstance(leaf, Tensor) and isinstance(known, Tensor):
        return leaf.requires_grad or leaf.device != known.device
    return type(leaf) is not type(known) or leaf != known


def _why_not(module: Any) -> str | None:
    """What is known to stand against a graph before one is captured."""
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    if _has_any_global_hook():  # type: ignore[no-untyped-call]
        return "all modules have hooks, which a graph would leave out"
    for child in module.modules():
        if isinstance(child, DistributedDataParallel | DataParallel):
            return "its gradients are shared with other processes or GPUs on the way"
        if any(vars(child).get(name) for name in _HOOKS):
            return f"{type(child).__name__} has hooks, which a graph would leave out"
    return _why_not_weights(module.parameters())


def _why_not_weights(weights: Iterable[Any]) -> str | None:
    for weight in weights:
        if type(weight) is not torch.nn.Parameter or weight.layout != torch.strided:
            return "its weights are no plain parameters"
        if not _is_dense(weight):
            return "a weight has gaps in memory"
        if weight._backward_hooks:
            return "a weight has hooks, which its gradient would go through twice"
    return None


def _why_not_with(given: Any, device: Any) -> str | None:
    for leaf in pytree.tree_leaves(given):
        if isinstance(leaf, Tensor):
            if type(leaf) is not Tensor or leaf.device != device:
                return f"it is given a {type(leaf).__name__} on {leaf.device}"
            if leaf.requires_grad:
                return "its inputs want gradients"
        elif type(leaf) not in PLAIN:
            return f"it is given a {type(leaf).__name__}"
    return None


def _is_dense(weight: Any) -> bool:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    last = formats.get(weight.dim())
    return bool(weight.is_contiguous() or (last is not None and weight.is_contiguous(memory_format=last)))
