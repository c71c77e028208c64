"""A model's forward and backward tried a few times, without a trace, before graphs are captured of them."""

from __future__ import annotations

import functools
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from fulltilt.measure.heard import heard, tell_of_waiting

_TRIES = 3


class Refused(Exception):  # noqa: N818
    """Why a model is left as it is: a clause."""


class ThereAndBack(Protocol):
    def there(self) -> Any: ...
    def back(self) -> Any: ...
    def forget(self) -> None: ...


def try_out(there_and_back: ThereAndBack, is_as_before: Callable[[], bool], stream: Any) -> None:
    """What is done once only is done now, and what no graph can repeat is found out before one is captured: a capture
    that fails leaves torch's random numbers unusable."""
    drawn = _draws()
    waits = True
    with _beside(stream), _hooks_on_tensors() as hung:
        for _ in range(_TRIES):
            with heard() as said:
                there_and_back.there()
                there_and_back.back()
            there_and_back.forget()
            if any("AccumulateGrad node's stream" in one for one in said):
                raise Refused("an earlier call of it has not been let go of")
            waits = waits and tell_of_waiting(said)  # the first may set things up
    if hung:
        raise Refused("it hangs hooks on tensors of its own, which would be called no more")
    if waits:
        raise Refused("it waits for the device")
    if _draws() != drawn:
        raise Refused("it draws random numbers on the CPU")
    if not is_as_before():
        raise Refused("its own code changes it with each call")


@contextmanager
def _hooks_on_tensors() -> Iterator[list[Any]]:
    """Those that are registered within."""
    hung: list[Any] = []
    register: Any = torch.Tensor.register_hook

    @functools.wraps(register)
    def registered(self: Any, hook: Any) -> Any:
        hung.append(hook)
        return register(self, hook)

    torch.Tensor.register_hook = registered  # type: ignore[method-assign]
    try:
        yield hung
    finally:
        torch.Tensor.register_hook = register  # type: ignore[method-assign]


def _draws() -> list[Any]:
    """Where the generators on the CPU stand."""
    numpy = sys.modules.get("numpy")
    found: list[Any] = [random.getstate(), torch.get_rng_state().numpy().tobytes()]
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        found.append((name, keys.tobytes(), *rest))
    return found


@contextmanager
def unchanged(module: Any, device: Any) -> Iterator[None]:
    """Trials leave no trace: all tensors of the module and random numbers are as before, and no warning is shown."""
    numpy = sys.modules.get("numpy")
    drawn = None if numpy is None else numpy.random.get_state()
    held = (value for child in module.modules() for value in vars(child).values() if isinstance(value, torch.Tensor))
    # Weights, too: some are written by the forward itself, as a codebook's are.
    tensors = [(one, one.detach().clone()) for one in (*module.parameters(), *module.buffers(), *held)]
    python = random.getstate()
    devices = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a script may have made errors of them
            yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(drawn)
        for one, before in tensors:
            one.data.copy_(before)  # not as a change of it: an earlier call may have its backward before it


@contextmanager
def _beside(stream: Any) -> Iterator[None]:
    """On a stream of its own, as captures need their trials to be."""
    if stream is None:
        yield
        return
    cuda: Any = torch.cuda
    current = cuda.current_stream(stream.device)
    stream.wait_stream(current)
    with cuda.stream(stream):
        yield
    current.wait_stream(stream)
