"""What torch warns of while a piece of work runs: above all, that it waits for the device."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

_WAITS = "synchronizing CUDA operation"


@contextmanager
def heard() -> Iterator[list[str]]:
    """Warnings of the work within, waits for the device among them; none is shown.

    Other threads of the program may warn and wait meanwhile, as those of loaders and feeds do: theirs are left out.
    Autograd's threads do this one's work, and are none that Python has started: theirs count.
    """
    cuda: Any = torch.cuda
    on = _asks_torch()
    mode = cuda.get_sync_debug_mode() if on else None
    here = threading.get_ident()
    said: list[str] = []

    def note(message: Any, *_: Any, **__: Any) -> None:
        if works_for(here):
            said.append(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        try:
            if on:
                cuda.set_sync_debug_mode("warn")
            yield said
        finally:
            if on:
                cuda.set_sync_debug_mode(mode)


def _asks_torch() -> bool:
    """Without a GPU in use there is nothing to wait for."""
    cuda: Any = torch.cuda
    return bool(cuda.is_available() and cuda.is_initialized())


def tell_of_waiting(said: Sequence[str]) -> bool:
    """Whether something among it waited for the device."""
    return any(_WAITS in one for one in said)


def works_for(thread: int) -> bool:
    """Whether this is that thread, or one of autograd's: any that Python has not started itself."""
    here = threading.get_ident()
    # `current_thread` would make one up for those.
    mine = next((one for one in threading.enumerate() if one.ident == here), None)
    return here == thread or mine is None or isinstance(mine, threading._DummyThread)
