"""Number formats of a step: which this hardware has, and how each is switched on."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from fulltilt.errors import InputError, UnavailableError

Precision = Literal["fp32", "tf32", "bf16", "fp16"]

_AMPERE = (8, 0)
"""The first compute capability with bf16 and TF32 in hardware."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """What may be tried, the one to begin with first, and why these."""

    allowed: tuple[Precision, ...]
    reason: str


def check_precision(precision: str) -> None:
    names = ("auto", *get_args(Precision))
    if precision not in names:
        raise InputError(f"precision={precision!r} is unknown; allowed: {', '.join(names)}")


def formats_for(
    precision: str, device: torch.device, dtypes: Iterable[torch.dtype], *, keeps_fp32: bool = False
) -> Formats:
    """The wish, checked against the device; or what "auto" may choose from for weights of these types.

    With parts that stay fp32 there is no TF32: torch has one switch for the whole process, backward passes included.
    """
    check_precision(precision)
    if precision == "tf32" and keeps_fp32:
        raise InputError(
            "precision='tf32' with keep_fp32: TF32 is switched for all parts of a model at once; "
            "use 'bf16', 'fp16', 'fp32' or 'auto', or leave keep_fp32 out"
        )
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    if precision != "auto":
        return _asked_for(precision, capability)
    found = {dtype for dtype in dtypes if dtype.is_floating_point}
    if found - {torch.float32}:
        others = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in found - {torch.float32}))
        return Formats(allowed=("fp32",), reason=f"the model has {others} weights: their types are left as they are")
    if capability is None:
        return Formats(allowed=("fp32",), reason="on the CPU: the plain loop's maths, bit for bit")
    shown = ".".join(map(str, capability))
    if capability >= _AMPERE:
        allowed: tuple[Precision, ...] = ("bf16", "fp32") if keeps_fp32 else ("bf16", "tf32")
        reason = f"compute capability {shown} has bf16" + (", parts stay fp32" if keeps_fp32 else " and TF32")
        return Formats(allowed=allowed, reason=reason)
    if capability >= (7, 0):
        return Formats(allowed=("fp16", "fp32"), reason=f"compute capability {shown} has fp16, not bf16")
    return Formats(allowed=("fp32",), reason=f"compute capability {shown} gains nothing from fewer bits")


def _asked_for(precision: Any, capability: tuple[int, int] | None) -> Formats:
    if precision == "tf32" and (capability is None or capability < _AMPERE):
        raise UnavailableError("precision='tf32' needs an NVIDIA GPU of compute capability 8.0 or later; use 'fp32'")
    if precision == "bf16" and capability is not None and capability < _AMPERE:
        shown = ".".join(map(str, capability))
        raise UnavailableError(
            f"precision='bf16' needs compute capability 8.0 or later, this GPU has {shown}; use 'fp16' or 'auto'"
        )
    return Formats(allowed=(precision,), reason="asked for")


def autocast_for(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """May be entered again and again, though not inside itself."""
    if precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return torch.autocast(device.type, torch.float16) if precision == "fp16" else nullcontext()


def set_fp32_maths(precision: Precision, device: torch.device, *, keeps_fp32: bool = False) -> None:
    """Whether what stays fp32 may be multiplied as TF32. Process-wide, as torch has it; the CPU is left alone."""
    if device.type != "cuda":
        return
    exact = precision == "fp32" or keeps_fp32
    with warnings.catch_warnings():  # newer names exist, but mixed with the older ones inside the compiler they fail
        warnings.simplefilter("ignore")
        torch.set_float32_matmul_precision("highest" if exact else "high")
        torch.backends.cudnn.allow_tf32 = not exact


def make_scaler(device: torch.device) -> torch.amp.GradScaler:
    """fp16's gradients vanish below 6e-8 unless the loss is scaled up; the other formats reach as far as fp32."""
    return torch.amp.GradScaler(device.type)


def widen(model: nn.Module, names: Iterable[str], device: torch.device) -> None:
    """Have these submodules compute in fp32 whatever the rest does; their floating inputs are widened."""
    modules = dict(model.named_modules())
    for name in names:
        if name not in modules or name == "":
            known = ", ".join(key for key in list(modules)[1:9])
            raise InputError(f"keep_fp32: the model has no part {name!r}; it has {known}, …")
        module = modules[name]
        module.forward = _in_fp32(module.forward, device.type)


def _in_fp32(forward: Any, device_type: str) -> Any:
    @functools.wraps(forward)
    def widened(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device_type, enabled=False):
            return forward(*map(_widened, args), **{key: _widened(value) for key, value in kwargs.items()})

    return widened


def _widened(value: Any) -> Any:
    half = isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if half else value
