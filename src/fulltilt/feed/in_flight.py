"""Steps that the loop has launched and the device has not done yet: bounded, so that their batches don't pile up."""

from __future__ import annotations

from collections import deque

import torch

from fulltilt.feed.step_clock import timed_event

FEWEST, MOST = 4, 64
_BYTES = 256 << 20
"""Steps beyond the fewest may hold so much of the device's memory: small ones are launched further ahead."""


class InFlight:
    """What is under way on one device; nothing on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._steps: deque[torch.cuda.Event] = deque()

    def launched(self, batch_bytes: int) -> torch.cuda.Event | None:
        """All of a step has been launched. Waits for the device when the loop is far ahead of it."""
        if self._device.type != "cuda":
            return None
        event = timed_event(torch.cuda.current_stream(self._device))
        self._steps.append(event)
        while len(self._steps) > steps_allowed(batch_bytes):
            self._steps.popleft().synchronize()
        return event

    @property
    def is_idle(self) -> bool:
        """The device has done all that was launched before the last batch was asked for."""
        return not self._steps or self._steps[-1].query()  # type: ignore[no-untyped-call]


def steps_allowed(batch_bytes: int) -> int:
    """How far ahead a loop may run, going by what a batch takes of the device's memory."""
    return min(max(FEWEST, _BYTES // max(batch_bytes, 1)), MOST)
