"""Between bursts: the hooks of a script whose steps are short pass through, and only the ends of its steps are counted.

What happens meanwhile is no part of the timeline: neither the steps nor what lies between them, in the same measure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fulltilt.launch.watch.traced import compiles
from fulltilt.measure.bursts import BURST, FIRST, Bursts

if TYPE_CHECKING:
    from fulltilt.launch.watch.watch import Watch


class Dozing:
    """One process's."""

    def __init__(self) -> None:
        self.first_burst: int | None = None
        """How many steps were watched one after the other from the first on; None as long as all were."""
        self.passed_by = 0
        self._bursts = Bursts()
        self._left = FIRST
        self._away = 0
        self._was_inside = False

    def step_ended(self, watch: Watch) -> None:
        """Of a watched step. No burst ends where each step counts: in runs that are compared, watched in full because
        somebody wants to see them, replayed or counted, or that stop together with other ranks."""
        self._left -= 1
        job = watch.job
        if self._left > 0 or (job.full and not job.lets_go) or job.tie_draws or job.mode != "as is":
            return
        self._left = BURST
        if watch.place != (0, 1) or not watch.hooked or watch.closed is not None or len(watch.records) < BURST:
            return
        # Functions, which were traced outside of all modules: `inside` is guarded.
        if not watch.compiled and compiles():
            return
        spent_ns = watch.timeline.clock() - watch.records[-BURST].began_ns
        self._away = self._bursts.away(spent_ns / BURST)
        if not self._away:
            return
        if self.first_burst is None:
            self.first_burst = len(watch.records)
        watch.sources.clear()
        watch.sleeper, watch.thread = watch.thread, 0
        self._was_inside, watch.inside = watch.inside, True  # modules pass through, too
        if watch.gpu is not None:
            watch.gpu.pause()

    def begin_anew(self) -> None:
        """The next steps are watched one after the other again, as at first."""
        self._left = FIRST

    def stay(self, steps: int) -> None:
        """So many more are passed by."""
        self._away += steps

    def passes_by(self, watch: Watch, optimizer: Any) -> None:
        """A step that nobody watches has ended. Watching goes on at the end of one that counts, if any still does."""
        self.passed_by += optimizer is watch.optimizer
        self._away -= 1
        if self._away <= 0 and (optimizer is watch.optimizer or self._away < -BURST):
            self.wake(watch)

    def wake(self, watch: Watch) -> None:
        watch.thread, watch.sleeper = watch.sleeper, 0
        watch.inside = self._was_inside
        watch.stepped, watch.unstepped = True, False
        watch.losses, watch.step_samples, watch.span_samples = [], 0, 0
        watch.timeline.resume()
        if watch.gpu is not None:
            watch.gpu.resume()
