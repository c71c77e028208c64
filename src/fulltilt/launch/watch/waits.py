"""Waits for the GPU that no method says: `x[mask]`, `torch.unique`, `torch.nonzero`, whatever needs a size or a value.

torch itself tells of each of them when it is asked to (`torch.cuda.set_sync_debug_mode`), by a warning; a mode on all
calls of torch tells which call it was, in which line, and for how long. Both cost microseconds per call, so they are
on for two steps only, after the steps that count.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from re import compile as pattern
from typing import Any

from fulltilt.launch.watch import transfers
from fulltilt.launch.watch.places import Spot, is_torchs, spot
from fulltilt.measure.heard import works_for

STEPS = 2
_SAYS = "called a synchronizing CUDA operation"
_PROTOTYPE = "Synchronization debug mode is a prototype"
"""What torch says of the mode itself."""
_HOOKS = transfers.__file__
"""Methods that are hooked there are counted there, in all steps."""
_MUCH_ELSE = frozenset({"backward"})
"""Somewhere in it something waits; how long, its own time does not tell."""
_NAMES = {"__getitem__": "a mask as index", "__setitem__": "a mask as index"}


class Waits:
    """On from `begin` to `end`; then `found` has (count, nanoseconds) by place and kind."""

    def __init__(self, *, listen: Callable[[bool], None]) -> None:
        """
        Args:
            listen: asks torch to warn of waits, or not to.
        """
        self.found: dict[tuple[Spot | None, str], list[int]] = {}
        self._listen = listen
        self._warned = 0
        self._thread = 0
        self._mode: Any = None
        self._shown: Any = None
        self._filters = [
            ("always", pattern(_SAYS), UserWarning, None, 0),
            ("ignore", pattern(_PROTOTYPE), UserWarning, None, 0),
        ]

    def begin(self) -> None:
        # Not by filterwarnings(), which would make Python forget what it has warned of already.
        module: Any = warnings
        self._thread = threading.get_ident()
        module.filters[:0] = self._filters
        self._shown = module._showwarnmsg
        module._showwarnmsg = self._show
        self._mode = _mode(self)
        self._mode.__enter__()
        self._listen(True)

    def end(self) -> None:
        from torch import overrides

        current: Any = overrides._get_current_function_mode
        self._listen(False)
        if current() is self._mode:  # else the script has left a mode of its own that was below
            self._mode.__exit__(None, None, None)
        module: Any = warnings
        module._showwarnmsg = self._shown
        module.filters[:] = [one for one in module.filters if one not in self._filters]

    def _show(self, message: Any) -> None:
        if not str(message.message).startswith(_SAYS):
            self._shown(message)
            return
        if not works_for(self._thread):  # a loader's thread may wait
            return
        self._warned += 1
        if not self._mode.depth and not _from_ours(sys._getframe(1)):  # a library's own code, outside of torch's calls
            self._note(spot(2), "sync", 0)

    def called(self, function: Any, args: Any, kwargs: Any, clock: Callable[[], int]) -> Any:
        """One call of torch."""
        before, began = self._warned, clock()
        found = function(*args, **kwargs)
        if self._warned > before and not _from_ours(sys._getframe(2)):
            name = getattr(function, "__name__", "sync")
            spent_ns = 0 if name in _MUCH_ELSE else clock() - began
            self._note(spot(3), _NAMES.get(name, name), spent_ns)
        return found

    def _note(self, at: Spot | None, kind: str, spent_ns: int) -> None:
        tally = self.found.setdefault((at, kind), [0, 0])
        tally[0] += 1
        tally[1] += spent_ns


def _from_ours(frame: Any) -> bool:
    """Whether a call comes straight, or through torch's own code, from a hook that counts it."""
    while frame is not None and is_torchs(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename == _HOOKS


def _mode(waits: Waits) -> Any:
    from time import perf_counter_ns

    from torch.overrides import TorchFunctionMode

    class Calls(TorchFunctionMode):
        depth = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.depth += 1
            try:
                return waits.called(func, args, kwargs or {}, perf_counter_ns)
            finally:
                self.depth -= 1

    return Calls()


def listening(on: bool) -> None:
    """Ask torch to warn."""
    import torch

    torch.cuda.set_sync_debug_mode("warn" if on else "default")
