"""Put settings upon a script, in its own process, as soon as torch is there.

    install(settings, notes)
      ├─ flags: threads, TF32, cuDNN's autotuning
      ├─ optimizers as they are made: fused                         (here)
      ├─ copies as they are called: non_blocking                    (here)
      ├─ loaders as they are made and iterated                      (loader, batches)
      ├─ models as they are called: layout, precision, compile      (model)
      ├─ JPEGs as Pillow loads them                                 (decode)
      ├─ a data set's transforms, on the GPU                        (augment)
      └─ the last of them alone, of bytes that workers hand over    (as_bytes)

What does not fit is left as the script has it, and a note says so: a setting may be useless, never harmful.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from fulltilt.launch.apply import as_bytes, augment, decode, loader, model


def install(settings: Mapping[str, Any], notes: list[str]) -> None:
    """Put `settings` (names of settings.py) upon whatever the script makes from now on; `notes` grow as it runs."""
    note = _noter(notes)
    _set_flags(settings, note)
    if settings.get("fused"):
        _fuse_optimizers(note)
    if settings.get("copy.non_blocking"):
        _copy_without_waiting()
    loader.install(settings, note)
    model.install(settings, note)
    if settings.get("decode"):
        decode.install(note)
    if settings.get("augment"):
        augment.install(note)
    if settings.get("loader.bytes"):
        moved = augment.moved_by if settings.get("augment") else None
        as_bytes.install(note, leave=lambda loader: moved is not None and moved(loader) is not None)


def _noter(notes: list[str]) -> Callable[[str], None]:
    def note(text: str) -> None:
        if text not in notes:
            notes.append(text)

    return note


def _set_flags(settings: Mapping[str, Any], note: Callable[[str], None]) -> None:
    import torch

    if "threads" in settings:
        torch.set_num_threads(int(settings["threads"]))
    for name in ("tf32", "cudnn_benchmark"):
        if settings.get(name) and not torch.cuda.is_available():
            note(f"{name}: left out, torch has no GPU here")
        elif settings.get(name) and name == "tf32":
            torch.set_float32_matmul_precision("high")  # convolutions have it unless they are told otherwise
        elif settings.get(name):
            torch.backends.cudnn.benchmark = True


def _fuse_optimizers(note: Callable[[str], None]) -> None:
    from torch import optim

    for kind in (optim.Adam, optim.AdamW, optim.SGD, optim.Adagrad):
        if "fused" in inspect.signature(kind.__init__).parameters:
            kind.__init__ = _fusing(kind.__init__, kind.step, note)  # type: ignore[method-assign]


def _fusing(
    original: Callable[..., None], step: Callable[..., Any], note: Callable[[str], None]
) -> Callable[..., None]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        wanted = dict(given.arguments)
        del wanted["self"]
        if wanted.get("fused") or wanted.get("differentiable"):
            original(self, *args, **kwargs)
            return
        wanted["params"] = _listed(wanted["params"])
        # A fused optimizer is told to unscale gradients itself: a step of the script's own would not.
        own = inspect.unwrap(type(self).step) is not inspect.unwrap(step)
        odd = "its step is of its own kind" if own else _not_to_fuse(wanted["params"])
        groups = [group for group in wanted["params"] if isinstance(group, dict)]
        if odd is None and any(options.get("dampening") for options in (wanted, *groups)):
            odd = "its momentum is dampened"
        if odd is not None:
            note(f"fused: {type(self).__name__} is left as it is ({odd})")
            original(self, **wanted)
            return
        try:
            original(self, **{**wanted, "fused": True, "foreach": None})
            self.register_load_state_dict_pre_hook(_staying_fused)
            if "momentum" in wanted:
                self.register_step_pre_hook(_with_momentum)
        except (RuntimeError, ValueError, TypeError) as error:
            note(f"fused: {type(self).__name__} is left as it is ({error})")
            original(self, **wanted)

    return init


def _staying_fused(_: Any, state: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint has the options that it was made with: half of an optimizer that is fused no more would still be."""
    return {**state, "param_groups": [{**group, "fused": True, "foreach": None} for group in state["param_groups"]]}


def _with_momentum(optimizer: Any, *_: Any) -> None:
    from fulltilt.train.step.optim import fill_momentum

    fill_momentum(optimizer)


def _listed(params: Any) -> list[Any]:
    """Generators can be gone through once only, those within groups, too."""
    groups = list(params)
    return [
        {**group, "params": list(group["params"])} if isinstance(group, dict) and not hasattr(group["params"], "dim")
        else group
        for group in groups
    ]  # fmt: skip


def _not_to_fuse(params: list[Any]) -> str | None:
    """Why an optimizer's fused kernel can't have these; torch would say so no earlier than at the first step."""
    for group in params:
        # Groups, tensors, or pairs of a name and a tensor.
        found = group["params"] if isinstance(group, dict) else group
        for one in found if isinstance(found, list | tuple) else [found]:
            weight = one[1] if isinstance(one, tuple) else one
            if not hasattr(weight, "is_floating_point"):
                continue
            if not weight.is_floating_point() or weight.device.type not in ("cpu", "cuda"):
                return f"a weight is {weight.dtype} on {weight.device.type}"
    return None


def _copy_without_waiting() -> None:
    from torch import Tensor

    Tensor.to = _without_waiting(Tensor.to)  # type: ignore[method-assign]
    Tensor.cuda = _without_waiting(Tensor.cuda)  # type: ignore[method-assign]


def _without_waiting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Only a pinned tensor's way to a GPU: from the GPU, the script would read what has not arrived."""
    from torch import Tensor, device

    is_cuda_call = original.__name__ == "cuda"

    @functools.wraps(original)
    def move(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.is_cuda or len(args) > 1 or "non_blocking" in kwargs:
            return original(self, *args, **kwargs)
        target = args[0] if args else kwargs.get("device")
        if isinstance(target, str):
            target = device(target)
        to_gpu = is_cuda_call or isinstance(target, int) or (isinstance(target, device) and target.type == "cuda")
        if to_gpu and not isinstance(target, bool) and not _is_written(self) and self.is_pinned():
            return original(self, *args, **kwargs, non_blocking=True)
        return original(self, *args, **kwargs)

    return move


def _is_written(tensor: Any) -> bool:
    """One that was filled after it was made will be filled again, perhaps before the copy is done: a buffer of the
    script's own. Batches of a loader are new."""
    return bool(tensor.is_inference() or tensor._version)
