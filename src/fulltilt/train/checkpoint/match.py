"""Is a checkpoint this model's? And the weights that it was validated with."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from fulltilt.errors import CheckpointError
from fulltilt.words import some

_SHOWN: Final = 10
_PREFIXES: Final = {
    "module.": "DistributedDataParallel or DataParallel",
    "_orig_mod.": "torch.compile",
}


def check_matches(model: nn.Module, state: Mapping[str, Any]) -> None:
    """CheckpointError names missing and unexpected keys and other shapes; `state` is a checkpoint's, or its "model"."""
    inner = state.get("model")
    saved: Mapping[str, Any] = inner if isinstance(inner, Mapping) else state
    # What a module keeps beside its tensors (get_extra_state) is its own to judge.
    own = {key: value for key, value in model.state_dict().items() if isinstance(value, Tensor)}
    found = {key: value for key, value in saved.items() if isinstance(value, Tensor)}
    missing = [key for key in own if key not in saved]
    unexpected = [key for key in found if key not in own]
    shapes = [
        f"{key} ({_shape(found[key])} in the checkpoint, {_shape(own[key])} in the model)"
        for key in own
        if key in found and found[key].shape != own[key].shape
    ]
    if not (missing or unexpected or shapes):
        return
    problems = [
        f"{len(items)} {what}: {some(items, _SHOWN)}"
        for what, items in (("missing", missing), ("unexpected", unexpected), ("of another shape", shapes))
        if items
    ]
    raise CheckpointError(f"the checkpoint is of another model; {'; '.join(problems)}; {_remedy(set(own), set(found))}")


def load_trained(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Put the weights of a Trainer's checkpoint into a model to use it: averaged ones, where training kept them.

    With those it was validated, while `state["model"]` is what training goes on with.
    """
    check_matches(model, state)
    model.load_state_dict(state["model"])
    averages: Mapping[str, Tensor] = state.get("trainer", {}).get("ema", {})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in averages:
                parameter.copy_(averages[name])


def _remedy(own: Collection[str], found: Collection[str]) -> str:
    for prefix, wrapper in _PREFIXES.items():
        if {prefix + key for key in own} == found:
            return f"it was saved from a model wrapped by {wrapper}: its keys begin with {prefix!r}; remove that"
        if {prefix + key for key in found} == own:
            return f"this model is wrapped by {wrapper}: its keys begin with {prefix!r}; load into the one inside"
    return "build the model as it was, or name another checkpoint"


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "a scalar"
