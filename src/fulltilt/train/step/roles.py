"""Which of a batch's values is the target, which loss fits it, and whether the two go together.

A label that is out of range ends the process on a GPU (a device-side assert can't be recovered from), and shapes that
broadcast by accident train on nonsense. Both are looked for at the first batch, where it costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fulltilt.errors import InputError

Loss = Callable[[Any, Any], Tensor]

_CLASS_LOSSES = (nn.CrossEntropyLoss, nn.NLLLoss, functional.cross_entropy, functional.nll_loss)
_ELEMENT_LOSSES = (
    nn.BCEWithLogitsLoss, nn.BCELoss, nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss,
    functional.binary_cross_entropy_with_logits, functional.binary_cross_entropy, functional.mse_loss,
    functional.l1_loss, functional.smooth_l1_loss, functional.huber_loss,
)  # fmt: skip
_OF_SHARES = (
    nn.BCEWithLogitsLoss, nn.BCELoss, functional.binary_cross_entropy_with_logits, functional.binary_cross_entropy,
)  # fmt: skip
"""With logits they take any target, and with masks of 0 and 255 they fall for ever."""
_HOST_LABELS = 1 << 14
"""Labels still on the host are looked at in every batch up to this many; more would cost the step time."""
_GIVE_ONE = "pass loss= (criterion= of a Trainer, training.loss in a file)"
"""The step can't know who called it."""


def split(batch: tuple[Any, ...], target: int | Literal["auto"]) -> tuple[tuple[Any, ...], Any]:
    """Inputs and target."""
    place = target_place(batch, target)
    return batch[:place] + batch[place + 1 :], batch[place]


def target_place(batch: tuple[Any, ...], target: int | Literal["auto"] = "auto") -> int:
    """Where the target is.

    Said by nobody, it is the last; but of (images, masks, features) it is the second, when that one has the images'
    height and width and the third has not.
    """
    if len(batch) < 2:
        raise InputError(f"a batch is (*inputs, target): expected at least 2 values, found {len(batch)}")
    if target != "auto":
        if not -len(batch) <= target < len(batch):
            raise InputError(f"target={target} is not one of the batch's {len(batch)} values")
        return target % len(batch)
    if len(batch) == 3 and all(isinstance(part, Tensor) for part in batch):
        images, masks, features = batch
        sides = images.shape[-2:]
        are_masks = images.dim() >= 4 and masks.dim() >= 3 and masks.shape[-2:] == sides
        if are_masks and (features.dim() < 3 or features.shape[-2:] != sides):
            return 1
    return len(batch) - 1


class Objective:
    """The loss; chosen, where none was given, and checked at the first batch."""

    def __init__(self, loss: Loss | None) -> None:
        if isinstance(loss, type):
            raise InputError(f"loss is the class {loss.__name__}; give one made of it: {loss.__name__}()")
        if loss is not None and not callable(loss):
            raise InputError(f"loss must be callable as loss(outputs, target), found {type(loss).__name__}")
        self.given = loss
        self.loss: Loss = loss if loss is not None else bce_of_masks
        self.examined = False
        self._classes: int | None = None

    @property
    def sums(self) -> bool:
        """Whether it adds up over the batch instead of averaging."""
        return getattr(self.given, "reduction", "mean") == "sum"

    def examine(self, outputs: Any, target: Any) -> None:
        """Choose the loss by the first batch, and see that it can take it. Waits for the device, once."""
        if self.given is None:
            self.loss = default_loss(outputs, target)
        if isinstance(outputs, Tensor) and isinstance(target, Tensor):
            if _is_one_of(self.loss, _CLASS_LOSSES) or self.loss is classes_of_masks:
                self._examine_classes(outputs, target)
            elif _is_one_of(self.loss, _ELEMENT_LOSSES) and outputs.shape != target.shape:
                raise InputError(
                    f"the model gives {_shape(outputs)} and the target is {_shape(target)}: {_name(self.loss)} would "
                    "broadcast one against the other; give both the same shape"
                )
            # Not a class made from one of them: that may leave out what is marked to be ignored.
            if self.loss is bce_of_masks or self.loss in _OF_SHARES or type(self.loss) in _OF_SHARES:
                _examine_shares(target, given=self.given)
        self.examined = True

    def check_result(self, loss: Any) -> None:
        if not isinstance(loss, Tensor) or loss.dim() != 0:
            found = f"a tensor of shape {_shape(loss)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise InputError(f"the loss must be one number (a 0-d tensor), found {found}; take its mean()")
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise InputError(
                "the loss depends on no weight that is trained: is the model frozen, or its output detached?"
            )

    def check_host_labels(self, target: Tensor) -> None:
        """Labels that have not left the host are still cheap to look at, and an assert on the GPU is fatal."""
        if target.device.type == "cpu" and target.numel() <= _HOST_LABELS:
            self.check_labels(target)

    def check_labels(self, target: Any) -> None:
        """Waits for the device where the labels are on one."""
        if self._classes is not None and isinstance(target, Tensor) and not target.is_floating_point():
            self._check_range(target, self._classes)

    def _examine_classes(self, outputs: Tensor, target: Tensor) -> None:
        if target.is_floating_point():  # probabilities
            if outputs.shape != target.shape:
                raise InputError(
                    f"the model gives {_shape(outputs)} and the target is {_shape(target)} of {_dtype(target)}: class "
                    "probabilities have the outputs' shape, class numbers are integers (target.long())"
                )
            return
        place = 1 if outputs.dim() > 1 else 0
        wanted = outputs.shape[:place] + outputs.shape[place + 1 :]
        found = target.shape
        if self.loss is classes_of_masks and target.dim() == outputs.dim():
            found = target.squeeze(1).shape
        if found != wanted:
            raise InputError(
                f"the model gives {_shape(outputs)}, so class numbers are {tuple(wanted)}; found {_shape(target)}"
            )
        self._check_range(target, outputs.shape[place])
        self._classes = outputs.shape[place]

    def _check_range(self, target: Tensor, classes: int) -> None:
        if target.dtype != torch.bool and target.numel():
            low, high = target.aminmax()
            if int(low) >= 0 and int(high) < classes:
                return
        ignored = getattr(self.loss, "ignore_index", -100)
        wrong = ((target < 0) | (target >= classes)) & (target != ignored)
        if bool(wrong.any()):
            found = sorted(set(target[wrong].tolist()))[:5]
            raise InputError(
                f"labels out of range: found {', '.join(map(str, found))}; the model has {classes} outputs, so 0 "
                f"to {classes - 1} are allowed, and {ignored} to ignore. Do labels start at 1? Is the last layer small?"
            )


def default_loss(outputs: Any, target: Any) -> Loss:
    """Cross entropy for class numbers, BCE with logits for masks: values from 0 to 1 of the outputs' shape."""
    if not isinstance(outputs, Tensor) or not isinstance(target, Tensor):
        raise InputError(
            f"no loss was given, and none is known for outputs of type {type(outputs).__name__} and a target of type "
            f"{type(target).__name__}: {_GIVE_ONE}"
        )
    numbers = not target.is_floating_point() and target.dtype != torch.bool
    several = outputs.dim() > 1 and outputs.shape[1] > 1
    if numbers and several and outputs.shape != target.shape:
        same = target.dtype == torch.int64 and target.dim() < outputs.dim()
        return functional.cross_entropy if same else classes_of_masks
    if outputs.numel() != target.numel():
        raise InputError(
            f"the model gives {_shape(outputs)} and the target is {_shape(target)}; BCE with logits, the loss where "
            f"none is given, needs as many of one as of the other: {_GIVE_ONE}"
            + "; or are they class numbers? These are integers: target.long()"
            * (several and target.shape == outputs.shape[:1] + outputs.shape[2:])
        )
    return bce_of_masks


def bce_of_masks(outputs: Tensor, target: Tensor) -> Tensor:
    """BCE with logits, for masks of any number type, with or without a channel of their own."""
    if target.shape != outputs.shape:
        target = target.reshape(outputs.shape)
    if not target.is_floating_point():
        target = target.to(outputs.dtype)
    return functional.binary_cross_entropy_with_logits(outputs, target)


def classes_of_masks(outputs: Tensor, target: Tensor) -> Tensor:
    """Cross entropy, for class numbers of any integer type, with or without a channel of their own."""
    if target.dim() == outputs.dim():
        target = target.squeeze(1)
    return functional.cross_entropy(outputs, target.long())


def _examine_shares(target: Tensor, *, given: Loss | None) -> None:
    low, high = target.amin(), target.amax()
    if bool((low < 0) | (high > 1)):
        which = "BCE with logits, the loss where none is given," if given is None else _name(given)
        otherwise = "" if given is not None else f"; for regression {_GIVE_ONE}, such as torch.nn.functional.mse_loss"
        raise InputError(
            f"the target runs from {float(low):g} to {float(high):g}, but {which} needs 0 to 1: scale masks{otherwise}"
        )


def _is_one_of(loss: Any, known: tuple[Any, ...]) -> bool:
    return any(isinstance(loss, one) if isinstance(one, type) else loss is one for one in known)


def _name(loss: Any) -> str:
    return getattr(loss, "__name__", type(loss).__name__)


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
