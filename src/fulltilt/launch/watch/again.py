"""The step's limit, behind the steps that count: the same process goes on with batches that it had, as in replay.py.

A run of its own would start the script once more for it, which may take longer than all its steps.
"""

from __future__ import annotations

from fulltilt.launch.watch.replay import BATCHES, Replay
from fulltilt.launch.watch.watch import Watch

ENOUGH = ((30, 2.0), (100, 0.5))
"""Steps, and seconds that they have to have taken: of short ones more, in less time."""
MOST_STEPS, MOST_SECONDS = 1000, 8.0
"""With what lies between them."""
FEWEST_STEPS = 5
"""Of long ones. Where it does not come to them, a run of its own has more time for it."""
_PATIENCE = 20
"""Steps in which a batch has to be given again; else the loop is fed by something that is not a loader."""


class Again:
    """From the end of the last step that counts on."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._began_ns = watch.timeline.clock()
        self._begun_at = watch.steps
        self._first: int | None = None
        self._trained = 0.0
        """Seconds of the steps since."""
        watch.closed = watch.steps if watch.closed is None else watch.closed
        watch.replay = Replay()

    def step_ended(self) -> bool:
        """Whether that is enough."""
        watch = self._watch
        spent = (watch.timeline.clock() - self._began_ns) / 1e9
        if self._first is None:
            if watch.replay.begun:
                if watch.gpu is not None:
                    with watch.unseen():
                        watch.gpu.finish()  # what was launched before is not of these steps
                self._first = watch.steps + BATCHES  # those are moved to the device still
            return watch.steps - self._begun_at > _PATIENCE or spent > MOST_SECONDS
        steps = watch.steps - self._first
        if steps >= MOST_STEPS or spent > MOST_SECONDS:
            return True
        self._trained += watch.records[-1].step_ns / 1e9
        return any(steps >= least and self._trained > seconds for least, seconds in ENOUGH)

    def end(self) -> None:
        watch = self._watch
        watch.replay = None
        if self._first is not None and watch.steps - self._first >= FEWEST_STEPS:
            watch.again = self._first
