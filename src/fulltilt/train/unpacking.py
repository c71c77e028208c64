"""Batches that are mappings, `{"image": …, "label": …}`, as the tuples that a step takes: (input, target, *inputs).

The target is under one of the usual names, the inputs under those of the parameters of the model's `forward`; one that
is left over goes to the one parameter that has none. The first batch settles it, for training and validation alike.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from fulltilt.errors import InputError
from fulltilt.train.augmenting import LoopAugmentation
from fulltilt.train.sources import check_batch

log = logging.getLogger("fulltilt.train")

TARGETS = ("label", "labels", "target", "targets", "mask", "masks", "y")
TARGET_PLACE = 1
"""Beside the images: there an augmentation finds masks."""
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Unpacking:
    """What is done to a loader's batches before they are stepped with."""

    def __init__(self, model: nn.Module, target: int | str = "auto") -> None:
        """
        Args:
            target: the key of the target, where none of the usual names is; a number or "auto" is for tuples.
        """
        self._model = model
        self._key = target if isinstance(target, str) and target != "auto" else None
        self.place: int | Literal["auto"] = target if isinstance(target, int) else "auto"
        """Which of a tuple's values is the target."""
        self._slots: list[Slot] = []
        self._mappings: bool | None = None

    def prepared(
        self, first: Any, augment: LoopAugmentation | None, *, name: str
    ) -> Callable[[Any], tuple[Any, ...]] | None:
        """What makes of a batch what is stepped with; None where nothing has to be done. `first` is looked at."""
        mapping = isinstance(first, Mapping)
        if self._mappings is not None and mapping is not self._mappings:
            raise InputError(
                f"{name} gives {type(first).__name__}, the other loader does not: give batches of one kind"
            )
        if not mapping:
            check_batch(first, name=name)
            if self._key is not None:
                raise InputError(f"target={self._key!r} is a key, but {name} gives {type(first).__name__}")
            self._mappings = False
            return augment
        if self._mappings is None:
            if self.place != "auto":
                raise InputError(
                    f"target={self.place} is a number, but {name} gives {type(first).__name__}: give a key"
                )
            self._slots = arranged(first, self._model, self._key, name=name)
            self._mappings, self.place = True, TARGET_PLACE
        check_batch(self._tuple(first), name=name)
        if augment is None:
            return self._tuple
        if augment.takes_tuples:
            return lambda batch: augment(self._tuple(batch))
        return lambda batch: self._tuple(augment(batch))

    @property
    def target_key(self) -> str | None:
        """Where a mapping has its target; None for tuples."""
        return self._slots[TARGET_PLACE].key if self._slots else None

    def _tuple(self, batch: Mapping[str, Any]) -> tuple[Any, ...]:
        try:
            return tuple(default if key is None else batch[key] for key, default in self._slots)
        except KeyError as error:
            raise InputError(
                f"a batch has no {error.args[0]!r}, which the first one had; it has {_listed(batch)}"
            ) from None


class Slot(NamedTuple):
    """What goes to one place of the tuple."""

    key: str | None
    """None: there is none, and the parameter's default goes there."""
    default: Any = None


def arranged(batch: Mapping[str, Any], model: nn.Module, target: str | None, *, name: str) -> list[Slot]:
    """What goes where, in the order (input, target, *more inputs)."""
    parameters = [p for p in inspect.signature(model.forward).parameters.values() if p.kind in _POSITIONAL]
    taken = {parameter.name for parameter in parameters}
    target = _target_of(batch, taken, target, name=name)
    given = [key for key in batch if key != target]
    missing = [p.name for p in parameters if p.default is p.empty and p.name not in given]
    others = [key for key in given if key not in taken and isinstance(batch[key], Tensor)]
    if len(others) > 1:  # a sample's number beside its image
        others = [key for key in others if batch[key].dim() > 1] or others
    named = [key for key in given if key in taken]
    if not named and not missing:
        missing = [parameter.name for parameter in parameters[:1]] or ["*"]
    keys = {key: key for key in named}
    if len(missing) == len(others) == 1:
        keys[missing[0]] = others.pop()
    elif missing:
        signature = ", ".join(p.name for p in parameters)
        raise InputError(
            f"{name} gives a mapping with {_listed(batch)}, of which {target!r} is the target; the model takes "
            f"({signature}): name the inputs as its parameters, or give a tuple (*inputs, target)"
        )
    unused = [key for key in given if isinstance(batch[key], Tensor) and key not in keys.values()]
    if unused:
        log.info("of a batch, %s is not used: the model takes no such parameter", ", ".join(unused))
    last = max((place for place, p in enumerate(parameters) if p.name in keys), default=-1)
    slots = [Slot(keys.get(p.name), p.default) for p in parameters[: last + 1]] or [Slot(keys["*"])]
    slots.insert(TARGET_PLACE, Slot(target))
    return slots


def _target_of(batch: Mapping[str, Any], taken: set[str], target: str | None, *, name: str) -> str:
    if target is not None:
        if target not in batch:
            raise InputError(f"target={target!r} is not in the batches of {name}, which have {_listed(batch)}")
        return target
    found = [key for key in TARGETS if key in batch]
    if len(found) > 1:  # a mask may be an input
        found = [key for key in found if key not in taken] or found
    if len(found) == 1:
        return found[0]
    which = "none" if not found else "several"
    raise InputError(
        f"{name} gives a mapping with {_listed(batch)}: {which} of {', '.join(TARGETS)}; say which is the target with "
        "target='key'"
    )


def _listed(keys: Mapping[str, Any] | Sequence[str]) -> str:
    return ", ".join(map(str, keys))
