"""The timeline of a training loop: every moment of the host in one phase, steps between the optimizer's steps.

    loader's next   copy   forward   backward   optimizer's step │ logging …   loader's next
    ├── cut ────────────────────── a span ───────────────────────┼───────────── cut

A *span* lies between two calls of a loader or ends with the optimizer's step. What it was is known when it is over:
with a forward that nobody took a gradient of, all of it was evaluation. Spans of training make up the steps; those of
evaluation stand outside of them, as checkpoints and the starts of epochs do.

The hooks of a script call this hundreds of times per step, so it is two clock readings and a few list operations.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, get_args

from fulltilt.measure.observation import Phase

PHASES: tuple[Phase, ...] = get_args(Phase)
(DATA_WAIT, COPY, FORWARD, BACKWARD, OPTIMIZER, SYNC, EVAL, CHECKPOINT, LOGGING, EPOCH_START, OTHER) = range(
    len(PHASES)
)
OUTSIDE = (EVAL, CHECKPOINT, EPOCH_START)
"""What is no part of a step."""


class Record:
    """One step while it is being watched; the figures that come late (the GPU's, the loss) are filled in later."""

    __slots__ = ("began_ns", "gpu_seconds", "losses", "outside_ns", "phases_ns", "samples", "starved_seconds")

    def __init__(self, *, began_ns: int, phases_ns: list[int], outside_ns: list[int]) -> None:
        self.began_ns = began_ns
        self.phases_ns = phases_ns
        self.outside_ns = outside_ns
        self.samples: int | None = None
        self.losses: list[Any] = []
        self.gpu_seconds: float | None = None
        self.starved_seconds: float | None = None

    @property
    def step_ns(self) -> int:
        return sum(self.phases_ns)


class Timeline:
    """A stack of phases; time is counted for the innermost alone."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.clock = clock
        self.began_ns = clock()
        self.base = OTHER
        """What time outside of all phases counts as: loss functions between forward and backward are forward."""
        self.current = OTHER
        self.trained = False
        """There was a backward in this span."""
        self.evaluated = False
        """There was a forward without gradients in this span."""
        self.ended = False
        """This span began with the end of a loader's epoch."""
        self.evaluating = False
        """The last span was evaluation."""
        self._since = self.began_ns
        self._step_began_ns = self.began_ns
        self._stack: list[int] = []
        self._span = [0] * len(PHASES)
        self._step = [0] * len(PHASES)
        self._outside = [0] * len(PHASES)

    def enter(self, phase: int) -> None:
        now = self.clock()
        self._span[self.current] += now - self._since
        self._since = now
        self._stack.append(self.current)
        self.current = phase

    def leave(self) -> None:
        now = self.clock()
        self._span[self.current] += now - self._since
        self._since = now
        before = self._stack.pop() if self._stack else OTHER
        self.current = before if self._stack else self.base

    def charge(self, phase: int, began_ns: int) -> int:
        """Count the time since `began_ns` for `phase`; nothing was entered or left in between. Gives its length."""
        now = self.clock()
        self._span[self.current] += began_ns - self._since
        self._span[phase] += now - began_ns
        self._since = now
        return now - began_ns

    def rebase(self, base: int) -> None:
        """Time outside of all phases counts as `base` from now on."""
        if not self._stack:
            now = self.clock()
            self._span[self.current] += now - self._since
            self._since = now
            self.current = base
        self.base = base

    def cut(self) -> None:
        """A loader is asked: the span ends."""
        if self._stack and self.current == OPTIMIZER:
            self.unwind()  # an optimizer's step that failed has left its phase on the stack
        self.rebase(OTHER)
        self._close_span()

    def unwind(self) -> None:
        """Forget phases that were entered and never left."""
        self.leave()
        self._stack.clear()
        self.current = self.base

    def step(self) -> Record:
        """The optimizer has made its step: it ends here."""
        self.rebase(OTHER)
        self.trained = True
        self._close_span()
        self.evaluating = False
        record = Record(began_ns=self._step_began_ns, phases_ns=self._step, outside_ns=self._outside)
        self._step_began_ns = self._since
        self._step = [0] * len(PHASES)
        self._outside = [0] * len(PHASES)
        return record

    def rest(self) -> Record:
        """What lies behind the last step: no step, but part of the time."""
        self.rebase(OTHER)
        self._close_span()
        return Record(began_ns=self._step_began_ns, phases_ns=self._step, outside_ns=self._outside)

    def _close_span(self) -> None:
        now = self.clock()
        span = self._span
        span[self.current] += now - self._since  # a phase may go on: an optimizer's, in whose hook we are
        self._since = now
        evaluation = not self.trained and (self.evaluated or (self.ended and self.evaluating))
        if evaluation:
            self._outside[CHECKPOINT] += span[CHECKPOINT]
            self._outside[EVAL] += sum(span) - span[CHECKPOINT]
        else:
            if self.trained:  # a teacher's forward, say
                span[FORWARD] += span[EVAL]
                span[EVAL] = 0
            for phase, spent in enumerate(span):
                (self._outside if phase in OUTSIDE else self._step)[phase] += spent
        self.evaluating = evaluation
        self.trained = self.evaluated = self.ended = False
        for phase in range(len(span)):
            span[phase] = 0
