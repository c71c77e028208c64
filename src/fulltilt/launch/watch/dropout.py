"""Dropout that is a matter of the seed alone, for runs that are compared within a band.

torch's own takes its random numbers in the order of memory, as many at a time as the type has bits for, and code that
is compiled takes them from another place. So the same seed drops other elements once a model is compiled, computes in
half precision or is laid out channels last, and a loss moves by more than rounding ever makes. Here a number is drawn
for each element, in the order of the shape, always in float32. What a setting does to everything else is seen as
before: a CUDA graph that dropped the same elements at each replay, say.

What is left to torch: dropout of whole channels (one number each, whatever the layout), alpha dropout, that of scripted
modules and of cuDNN's recurrent ones, and tensors that are made of others (nested, distributed) or know themselves what
is done with them, as the masks of `torch.nn.attention.bias` do.

Compiled code draws in the order of the script as long as one draw needs what the one before gave. Of parts that are
checkpointed and independent of each other (two towers side by side) the compiler may draw the later one's first; with
torch 2.11 also within one checkpoint, where it makes a `rand` of `rand_like`, which needs nothing.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.jit import _builtins as scripted
from torch.jit import is_scripting  # type: ignore[attr-defined]
from torch.nn import Parameter, functional
from torch.overrides import has_torch_function_unary

from fulltilt.launch.imports import after_import
from fulltilt.launch.patching import put

_dropout = functional.dropout
_attention = functional.scaled_dot_product_attention


def install() -> None:
    put(functional, "dropout", dropout, by_its_name=False)
    put(functional, "scaled_dot_product_attention", scaled_dot_product_attention)
    scripted._register_builtin(scaled_dot_product_attention, "aten::scaled_dot_product_attention")
    after_import("torch._inductor.config", _draw_as_in_eager)


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if not is_scripting():  # noqa: SIM102 - alone, TorchScript passes over what is below it
        if _is_plain(input) and training and 0.0 < p < 1.0:  # what fx traces first: nothing else of it can be asked
            return _dropped(input, p, inplace=inplace)
    return _dropout(input, p, training, inplace)


class _Attention:
    """Attention in torch's place, which is no function of Python: as an attribute of a class it is no method, so ours
    can't be a function either. No `patching.Unbound`: that calls itself a builtin, and compiled code has to see what it
    does. TorchScript takes it for torch's own."""

    __name__ = __qualname__ = "scaled_dot_product_attention"

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        if 0.0 < dropout_p < 1.0 and _is_plain(query, key, value) and (attn_mask is None or _is_plain(attn_mask)):
            return _attended(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        return _attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)

    def __reduce__(self) -> str:
        return "scaled_dot_product_attention"  # pickle looks it up, and copies are itself


scaled_dot_product_attention = _Attention()


def _attended(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float, is_causal: bool, scale: float | None,
    enable_gqa: bool,
) -> Tensor:  # fmt: skip
    """With its dropout it is done in steps: within a fused kernel nobody can say which elements are dropped. That takes
    the memory of the scores, which fused kernels don't."""
    if enable_gqa:  # several queries share a key, and as many or others a value
        key, value = (one.repeat_interleave(query.size(-3) // one.size(-3), -3) for one in (key, value))
    return _dropped(_weights(query, key, mask, is_causal=is_causal, scale=scale), p) @ value


def _dropped(input: Tensor, p: float, *, inplace: bool = False) -> Tensor:
    # As `rand` of the shape gives. That takes no tensor: where a checkpoint has the compiler keep the generator's state
    # for it, nothing holds it in its place among the others.
    drawn = torch.rand_like(input, dtype=torch.float32, memory_format=torch.contiguous_format)
    kept, scale = drawn >= p, 1.0 / (1.0 - p)
    return input.mul_(kept).mul_(scale) if inplace else input * kept * scale


def _weights(query: Tensor, key: Tensor, mask: Tensor | None, *, is_causal: bool, scale: float | None) -> Tensor:
    whole = torch.promote_types(query.dtype, torch.float32)  # as fused kernels do: half precision's range may not do
    with torch.autocast(query.device.type, enabled=False):
        scores = query.to(whole) @ key.to(whole).transpose(-2, -1)
        scores = scores * (1.0 / math.sqrt(query.size(-1)) if scale is None else scale)
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    weights: Tensor = torch.ops.aten._safe_softmax(scores, -1)  # a row that is masked altogether gives zeros
    return weights.to(query.dtype)


def _draw_as_in_eager(config: Any) -> None:
    """Compiled code takes its random numbers from where torch does without it."""
    config.fallback_random = True


def _is_plain(*given: Any) -> bool:
    """Tensors and nothing else. A mode (`torch.set_default_device`) has every one of them go another way, and says
    nothing of what it is: its type does."""
    return all(
        isinstance(one, Tensor)
        and (type(one) in (Tensor, Parameter) or not has_torch_function_unary(one))
        and not one.is_nested
        and not hasattr(one, "device_mesh")
        for one in given
    )
