"""Bytes of images that pass for the floats that a data set's last transforms would have made of them.

Such transforms (ToTensor, Normalize) change each byte by itself: all that they do is a table of 256 numbers for each
channel. An Unfinished tensor has the bytes, the table, and the shape and dtype of the result. Sent to a GPU, it sends
the bytes and looks the numbers up there, in two kernels; anything else that is done with it is done with the numbers,
looked up on the spot. Either way they are those of the transforms, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fulltilt.nested import map_parts

LEVELS = 256
"""Of a byte."""
_FACTS = frozenset({
    "shape", "size", "dim", "ndim", "ndimension", "numel", "nelement", "__len__", "stride", "is_contiguous",
    "storage_offset", "dtype", "element_size", "itemsize", "nbytes", "is_floating_point", "is_complex", "is_signed",
    "device", "is_cuda", "is_cpu", "is_meta", "layout", "is_sparse", "is_quantized", "is_nested", "is_mkldnn",
    "requires_grad", "is_leaf", "grad_fn", "names", "is_inference", "_version",
})  # fmt: skip
"""What is known of the tensor without its numbers."""


@dataclass(frozen=True, slots=True)
class Table:
    """What becomes of each byte, by channel."""

    numbers: bytes
    """As they lie in memory, 256 for each channel: tables are the same if these are."""
    dtype: torch.dtype
    channels: int

    @classmethod
    def of(cls, values: Tensor) -> Table:
        """Of channels × 256 values."""
        flat = values.contiguous().view(torch.uint8)
        return cls(flat.numpy().tobytes(), values.dtype, len(values))

    def look_up(self, pixels: Tensor, *, last: bool) -> Tensor:
        """The numbers, channels before rows and contiguous; `last` says that the pixels' channels are behind them."""
        values, starts = _placed(self, pixels.device)
        first = pixels.movedim(-1, -3) if last else pixels
        index = torch.empty(first.shape, dtype=starts.dtype, device=first.device)
        torch.add(first, starts, out=index)
        return values.index_select(0, index.view(-1)).view(first.shape)


_tables: dict[tuple[Table, torch.device], tuple[Tensor, Tensor]] = {}
"""A script has few: one for each chain of transforms."""


def _placed(table: Table, device: torch.device) -> tuple[Tensor, Tensor]:
    """A table's values one behind the other, and where those of each channel start."""
    found = _tables.get((table, device))
    if found is None:
        # Memory that is not pinned is copied before `to` returns: whatever stream asks for it later finds it there.
        values = torch.frombuffer(bytearray(table.numbers), dtype=table.dtype).to(device)
        starts = torch.arange(0, table.channels * LEVELS, LEVELS, dtype=torch.int32).view(-1, 1, 1).to(device)
        found = _tables[table, device] = values, starts
    return found


@dataclass(slots=True)
class Uses:
    """What became of a loader's batches in the training process."""

    sent: int = 0
    """To a GPU, as bytes."""
    finished: int = 0
    """On the host, in the loop's own time."""


class Unfinished(Tensor):
    """A tensor on the CPU of which only bytes are there: of an image, or of a batch of them."""

    _pixels: Tensor
    _table: Table
    _last: bool
    _spread: bool
    _uses: Uses | None
    _done: Tensor | None

    @staticmethod
    def __new__(cls, pixels: Tensor, table: Table, *, last: bool, spread: bool = False) -> Unfinished:
        """`last`: the pixels' channels are behind rows and columns. `spread`: the numbers' lie so in memory, too, as
        the transforms would have left them; sums over them are rounded in the order of memory."""
        first = pixels.movedim(-1, -3) if last else pixels
        strides = _spread_out(torch.empty(first.shape, device="meta")).stride() if spread else None
        made: Any = Tensor._make_wrapper_subclass
        self: Unfinished = made(cls, first.shape, strides=strides, dtype=table.dtype, device=pixels.device)
        self._pixels, self._table, self._last, self._spread = pixels, table, last, spread
        self._uses = self._done = None
        return self

    def __init__(self, *_: Any, **__: Any) -> None:
        """Made by `__new__`."""

    def done(self) -> Tensor:
        """The numbers. From now on they are this tensor: they may be changed in place."""
        if self._done is None:
            if self._uses is not None:
                self._uses.finished += 1
            numbers = self._table.look_up(self._pixels, last=self._last)
            self._done = _spread_out(numbers) if self._spread else numbers
        return self._done

    def sent(self, pixels: Tensor) -> Tensor:
        """The numbers of its pixels that are on a GPU already. A dtype, a layout are for the caller to see to."""
        if self._uses is not None:
            self._uses.sent += 1
        return self._table.look_up(pixels, last=self._last)

    def parts(self) -> tuple[Tensor, Table, bool] | None:
        """What it is made of; None where somebody has asked for the numbers."""
        return None if self._done is not None else (self._pixels, self._table, self._last)

    def __hash__(self) -> int:
        return id(self)

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # fmt: skip
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if name == "__get__":  # a property's; those written in Python have no name
            name = getattr(getattr(function, "__self__", None), "__name__", "")
        if args and isinstance(args[0], Unfinished) and args[0].parts() is not None:
            self: Unfinished = args[0]
            if name in _FACTS:
                with torch._C.DisableTorchFunctionSubclass():
                    return function(*args, **kwargs)
            if name in _OWN:
                found = _OWN[name](self, function, args[1:], kwargs)
                if found is not None:
                    return found
        return function(*_finished(args), **_finished(kwargs))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's stub has it as a plain method
        cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # fmt: skip
        """What comes past the functions of Python: `torch.tensor(images)`, an extension's code."""
        return function(*_finished(args), **_finished(kwargs or {}))


def _spread_out(numbers: Tensor) -> Tensor:
    """The same, with channels last in memory."""
    return numbers.movedim(-3, -1).contiguous().movedim(-1, -3)


def _finished(value: Any) -> Any:
    return map_parts(Unfinished, Unfinished.done, value)


# What can be done without the numbers. None: it can't, as it was asked for.


def _send(self: Unfinished, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    try:
        device, _, free, _ = torch._C._nn._parse_to(*args, **kwargs)
    except (TypeError, RuntimeError):  # `copy=True`, which it does not know, or what `to` itself is to complain about
        return None
    if device is None or device.type != "cuda" or self._spread:
        return None
    return function(self.sent(self._pixels.to(device, non_blocking=free)), *args, **kwargs)


def _send_to_cuda(self: Unfinished, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    names = ("device", "non_blocking", "memory_format")
    wanted = {**dict(zip(names, args, strict=False)), **kwargs}
    device = wanted.get("device")
    odd = len(args) > len(names) or not wanted.keys() <= set(names) or isinstance(device, bool)
    if odd or self._spread:
        return None
    pixels = self._pixels.cuda(device, non_blocking=bool(wanted.get("non_blocking")))
    return function(self.sent(pixels), *args, **kwargs)


def _pin(self: Unfinished, _: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    pixels = self._pixels.pin_memory(*args, **kwargs)
    pinned = Unfinished(pixels, self._table, last=self._last, spread=self._spread)
    pinned._uses = self._uses
    return pinned


def _is_pinned(self: Unfinished, _: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return self._pixels.is_pinned(*args, **kwargs)


def _as_it_is(dtype: torch.dtype | None) -> Callable[..., Any]:
    def asked(self: Unfinished, _: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        plain = not args and not kwargs and not self._spread
        return self if plain and dtype in (None, self._table.dtype) else None

    return asked


_OWN: dict[str, Callable[[Unfinished, Callable[..., Any], Any, Any], Any]] = {
    "to": _send,
    "cuda": _send_to_cuda,
    "pin_memory": _pin,
    "is_pinned": _is_pinned,
    "contiguous": _as_it_is(None),
    "float": _as_it_is(torch.float32),
}


# between processes


def join(batch: Sequence[Tensor], *, collate_fn_map: Any = None) -> Tensor:
    """As torch's default_collate joins tensors, in memory that the training process sees, but their bytes.

    What is not of one size or of one table is joined as the transforms' own result, or refused as that would be.
    """
    from torch.utils.data._utils.collate import collate_tensor_fn

    parts = [one.parts() if isinstance(one, Unfinished) else None for one in batch]
    known = [part for part in parts if part is not None]
    alike = {(pixels.shape, table, last) for pixels, table, last in known}
    if len(known) < len(parts) or len(alike) != 1:
        return _joined(collate_tensor_fn, _finished(list(batch)), collate_fn_map)
    ((_, table, last),) = alike
    return Unfinished(_joined(collate_tensor_fn, [pixels for pixels, _, _ in known], collate_fn_map), table, last=last)


def _joined(collate: Any, tensors: list[Tensor], collate_fn_map: Any) -> Tensor:
    joined: Tensor = collate(tensors, collate_fn_map=collate_fn_map)
    return joined


_uses: dict[str, Uses] = {}


def uses_of(loader: str) -> Uses:
    """In the training process, by the loader's number."""
    return _uses.setdefault(loader, Uses())


def hand_over(loader: str) -> None:
    """In a worker of the loader with that number: batches are sent as bytes from now on."""
    from multiprocessing.reduction import ForkingPickler

    def reduced(batch: Unfinished) -> tuple[Any, ...]:
        parts = batch.parts()
        return (_itself, (batch.done(),)) if parts is None else (_arrived, (*parts, loader))

    ForkingPickler.register(Unfinished, reduced)


def _arrived(pixels: Tensor, table: Table, last: bool, loader: str) -> Tensor:
    """In the training process. One that has not begun with CUDA would only carry the bytes around."""
    batch = Unfinished(pixels, table, last=last)
    batch._uses = uses_of(loader)
    cuda: Any = torch.cuda
    return batch if cuda.is_initialized() else batch.done()


def _itself(tensor: Tensor) -> Tensor:
    return tensor
