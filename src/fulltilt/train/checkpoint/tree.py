"""Nested state ↔ a JSON tree of plain values and a list of the tensors in it.

Only data passes: what isn't one of the types below is refused with its place in the state, and reading a tree back can
make nothing but these types. JSON has lists, strings and numbers; everything else is an object with one tag:

    tuple, Size       {"tuple": […]}, {"size": […]}       tensor        {"tensor": name}
    dict, Counter     {"dict": [[key, value], …]} …       NumPy array   {"array": name}
    OrderedDict       {"ordered": […], "metadata": …}     NumPy scalar  {"scalar": name}
    large int         {"int": "0x…"}                      DTensor       {"sharded": name}

A model's state_dict() is an OrderedDict with a `_metadata` attribute (versions of its modules), which is kept.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import numpy as np
import torch
from torch import Tensor

from fulltilt.errors import CheckpointError, InputError

_DEEPEST: Final = 200
"""Deeper nesting is taken for a container that contains itself."""
_RESERVED: Final = "__metadata__"
"""The one name that the file format keeps for itself."""
_ALLOWED: Final = (
    "dict, OrderedDict, Counter, list, tuple, tensors, NumPy arrays, int, float, bool, str and None can be saved"
)


@dataclass(frozen=True, slots=True)
class Flat:
    """A state taken apart. The tensors are still the state's own, not copies."""

    tree: Any
    tensors: dict[str, Tensor] = field(default_factory=dict)
    sharded: dict[str, Tensor] = field(default_factory=dict)
    """Tensors of which this rank has a part (DTensors)."""


def flatten(state: Mapping[str, Any]) -> Flat:
    """Take a state apart; InputError names the place of what can't be saved."""
    taker = _Flattening()
    tree = taker.value(state, (), 0)
    return Flat(tree, taker.tensors, taker.sharded)


def unflatten(tree: Any, tensors: Mapping[str, Tensor], sharded: Mapping[str, Tensor] | None = None) -> Any:
    """Put a state together again; CheckpointError when the tree isn't one of ours."""
    try:
        return _Building(tensors, sharded or {}).value(tree)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"the state's structure can't be read ({type(error).__name__}: {error})") from None


class _Flattening:
    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.sharded: dict[str, Tensor] = {}
        self._names: set[str] = {_RESERVED}
        self._known: dict[tuple[Any, ...], str] = {}
        self._takers: dict[type, Callable[[Any, tuple[Any, ...], int], Any]] = {
            dict: self._dict,
            OrderedDict: self._ordered,
            Counter: lambda value, path, depth: {"counter": self._pairs(value, path, depth)},
            list: self._items,
            tuple: lambda value, path, depth: {"tuple": self._items(value, path, depth)},
            torch.Size: lambda value, _path, _depth: {"size": list(value)},
            torch.Tensor: self._tensor,
            torch.nn.Parameter: self._tensor,
            np.ndarray: self._array,
            int: lambda value, _path, _depth: value if value.bit_length() < 64 else {"int": hex(value)},
        }

    def value(self, value: Any, path: tuple[Any, ...], depth: int) -> Any:
        kind = type(value)
        if value is None or kind is str or kind is float or kind is bool:
            return value
        taker = self._takers.get(kind)
        if taker is not None:
            if depth > _DEEPEST:
                raise InputError(f"{_dotted(path[:6])}…: nested deeper than {_DEEPEST}, or it contains itself")
            return taker(value, path, depth)
        if isinstance(value, np.generic):
            return {"scalar": self._stored_array(np.asarray(value), path, value)}
        if isinstance(value, Tensor) and is_sharded(value):
            return {"sharded": self._enter(self.sharded, path, value.detach())}
        return _refuse(value, path)

    def _items(self, value: Any, path: tuple[Any, ...], depth: int) -> list[Any]:
        return [self.value(item, (*path, i), depth + 1) for i, item in enumerate(value)]

    def _dict(self, value: Any, path: tuple[Any, ...], depth: int) -> Any:
        return {"dict": self._pairs(value, path, depth)}

    def _ordered(self, value: Any, path: tuple[Any, ...], depth: int) -> Any:
        pairs = {"ordered": self._pairs(value, path, depth)}
        metadata = getattr(value, "_metadata", None)
        if metadata is not None:
            pairs["metadata"] = self.value(metadata, (*path, "_metadata"), depth + 1)
        return pairs

    def _pairs(self, value: Any, path: tuple[Any, ...], depth: int) -> list[Any]:
        return [[_key(k, path), self.value(v, (*path, k), depth + 1)] for k, v in value.items()]

    def _tensor(self, value: Tensor, path: tuple[Any, ...], _depth: int) -> Any:
        if value.layout != torch.strided or value.device.type == "meta" or value.is_quantized or value.is_nested:
            what = "on the meta device" if value.device.type == "meta" else "sparse, quantized or nested"
            raise InputError(f"{_dotted(path)}: a tensor that is {what} can't be saved; make a plain, dense one of it")
        # Tied weights appear under two names: stored once, and one tensor again when they are read.
        place = (
            value.data_ptr(),
            value.dtype,
            value.shape,
            value.stride(),
            value.device,
            value.is_conj(),
            value.is_neg(),
        )
        name = self._known.get(place) if value.numel() else None
        if name is None:
            name = self._known[place] = self._enter(
                self.tensors, path, value.detach() if value.requires_grad else value
            )
        return {"tensor": name}

    def _array(self, value: Any, path: tuple[Any, ...], _depth: int) -> Any:
        return {"array": self._stored_array(value, path, value)}

    def _stored_array(self, array: Any, path: tuple[Any, ...], original: Any) -> str:
        native = array.dtype.newbyteorder("=")
        if native.kind not in "biufc" or native in (np.longdouble, np.clongdouble):
            raise InputError(
                f"{_dotted(path)}: {type(original).__name__} of {array.dtype}; numbers and bools can be saved"
            )
        return self._enter(self.tensors, path, torch.from_numpy(np.array(array, dtype=native, order="C")))

    def _enter(self, where: dict[str, Tensor], path: tuple[Any, ...], tensor: Tensor) -> str:
        plain = name = _dotted(path)
        count = 1
        while name in self._names:  # {"a.b": …} beside {"a": {"b": …}}
            count += 1
            name = f"{plain}#{count}"
        self._names.add(name)
        where[name] = tensor
        return name


class _Building:
    def __init__(self, tensors: Mapping[str, Tensor], sharded: Mapping[str, Tensor]) -> None:
        self._makers: dict[str, Callable[[Any], Any]] = {
            "tensor": tensors.__getitem__,
            "sharded": sharded.__getitem__,
            "array": lambda name: tensors[name].numpy(),
            "scalar": lambda name: tensors[name].numpy()[()],
            "dict": lambda pairs: dict(self._pairs(pairs)),
            "counter": lambda pairs: Counter(dict(self._pairs(pairs))),
            "tuple": lambda items: tuple(self.value(items)),
            "size": torch.Size,
            "int": lambda digits: int(digits, 16),
        }

    def value(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self.value(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "ordered" in node:
            return self._ordered(**node)
        ((tag, content),) = node.items()
        return self._makers[tag](content)

    def _pairs(self, pairs: Any) -> list[tuple[Any, Any]]:
        return [(self.value(key), self.value(value)) for key, value in pairs]

    def _ordered(self, ordered: Any, metadata: Any = None) -> OrderedDict[Any, Any]:
        made = OrderedDict(self._pairs(ordered))
        if metadata is not None:
            made._metadata = self.value(metadata)  # type: ignore[attr-defined]
        return made


def is_sharded(tensor: Tensor) -> bool:
    """Whether this process has only a part of it. torch.distributed is imported by whoever made such a tensor."""
    import sys

    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _key(key: Any, path: tuple[Any, ...]) -> Any:
    kind = type(key)
    if key is None or kind in (str, float, bool):
        return key
    if kind is int:
        return key if key.bit_length() < 64 else {"int": hex(key)}
    if kind is tuple:
        return {"tuple": [_key(item, path) for item in key]}
    raise InputError(
        f"{_dotted(path)}: a key of type {kind.__name__} ({key!r}); keys are str, int, float, bool, None or tuple"
    )


def _refuse(value: Any, path: tuple[Any, ...]) -> NoReturn:
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    raise InputError(f"{_dotted(path)}: {name} can't be saved; {_ALLOWED}")


def _dotted(path: tuple[Any, ...]) -> str:
    return ".".join(str(part) for part in path) or "the state"
