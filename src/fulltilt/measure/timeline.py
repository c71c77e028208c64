"""The timeline of a training loop: every moment of the host in one phase, steps between the optimizer's steps.

    loader's next   copy   forward   backward   optimizer's step │ logging …   loader's next
    ├── cut ────────────────────── a span ───────────────────────┼───────────── cut

A *span* lies between two calls of a loader or ends with the optimizer's step. What it was is known when it is over:
with a forward that nobody took a gradient of, all of it was evaluation. Spans of training make up the steps; those of
evaluation stand outside of them, as checkpoints and the starts of epochs do.

What lies behind a forward or a backward is known by what comes next, too: before a backward it was the loss; before the
optimizer's step, or before another forward, it was whatever the script does between them.

The hooks of a script call this a dozen times per step, between calls of torch that crowd the caches: there, each call
of Python costs about a microsecond. So a mark is one of them, and what can be worked out later is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, get_args

from fulltilt.measure.observation import Phase

PHASES: tuple[Phase, ...] = get_args(Phase)
(DATA_WAIT, COPY, FORWARD, BACKWARD, OPTIMIZER, SYNC, EVAL, CHECKPOINT, LOGGING, EPOCH_START, OTHER) = range(
    len(PHASES)
)
AFTER_FORWARD, AFTER_BACKWARD = len(PHASES), len(PHASES) + 1
"""No phases: time behind a forward or a backward, until what comes next tells what it was."""
_NOTHING = [0] * (len(PHASES) + 2)
HARDLY = 0.25
"""Of the time between a forward and its backward: a thread that is on a core for less does not compute a loss."""
OUTSIDE = (EVAL, CHECKPOINT, EPOCH_START)
"""What is no part of a step."""

Span = tuple[list[int], bool, bool]
"""Time by phase, whether there was a backward in it, whether it was evaluation."""


def waited_ns(spent_ns: int, cpu_ns: int) -> int:
    """Of the time that a loss would take, what was waited instead: for a disk, an environment, another process.

    A machine that others keep busy has a loss wait for its core now and then; that is none of the script's doing.
    """
    return max(spent_ns - cpu_ns, 0) if cpu_ns < HARDLY * spent_ns else 0


class Record:
    """One step while it is being watched; the figures that come late (the GPU's, the loss) are filled in later."""

    samples: int | None = None
    losses: Sequence[Any] = ()
    gpu_seconds: float | None = None
    starved_seconds: float | None = None
    _step_ns: int | None = None

    def __init__(self, began_ns: int, spans: list[Span], beside: bool) -> None:
        self.began_ns = began_ns
        self.spans = spans
        self.beside = beside
        """Some of its time lies outside of the step."""

    @property
    def phases_ns(self) -> list[int]:
        """Of the step."""
        found = [0] * len(PHASES)
        for spent, trained, evaluation in self.spans:
            if evaluation:
                continue
            for phase, one in enumerate(spent):
                if phase not in OUTSIDE:
                    found[phase] += one
            if trained:  # a teacher's forward, say
                found[FORWARD] += spent[EVAL]
        return found

    @property
    def outside_ns(self) -> list[int]:
        """Of what stood beside it."""
        found = [0] * len(PHASES)
        for spent, trained, evaluation in self.spans:
            found[CHECKPOINT] += spent[CHECKPOINT]
            if evaluation:
                found[EVAL] += sum(spent) - spent[CHECKPOINT]
            else:
                found[EPOCH_START] += spent[EPOCH_START]
                found[EVAL] += 0 if trained else spent[EVAL]
        return found

    @property
    def step_ns(self) -> int:
        if self._step_ns is None:
            self._step_ns = sum(self.phases_ns)
        return self._step_ns


class Timeline:
    """A stack of phases; time is counted for the innermost alone."""

    def __init__(
        self, clock: Callable[[], int] = time.perf_counter_ns, cpu_clock: Callable[[], int] = time.thread_time_ns
    ) -> None:
        self.clock = clock
        self.cpu_clock = cpu_clock
        """Of the thread that trains: those that compute with it go on spinning when there is nothing to do."""
        self.began_ns = clock()
        self.base = OTHER
        """What time outside of all phases counts as, where it is not known only later."""
        self.alone = True
        """No other rank is waited for in a loss, or for gradients that the script itself shares."""
        self.sees_steps = False
        """An optimizer's step has begun; one that is compiled is never seen to."""
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
        self._closure = 0
        """How deep the stack is in the optimizer's step: a closure in it may hold the forward and the backward."""
        self._cpu_ns = 0
        """How long the thread had been on a core when the last forward ended."""
        self._span = _NOTHING.copy()
        self._spans: list[Span] = []
        self._beside = False

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

    def leave_for(self, base: int) -> None:
        """Leave a phase; what follows, outside of all phases but an optimizer's closure, counts as `base`."""
        now = self.clock()
        self._span[self.current] += now - self._since
        self._since = now
        self.base = base
        before = self._stack.pop() if self._stack else OTHER
        self.current = before if self._stack and len(self._stack) != self._closure else base
        if base == AFTER_FORWARD:
            self._cpu_ns = self.cpu_clock()

    def unsettled(self) -> bool:
        """There is time behind a forward or a backward of which it is not known yet what it was."""
        return bool(self._span[AFTER_FORWARD] or self._span[AFTER_BACKWARD])

    def settle(self, phase: int) -> None:
        """What comes now, in a phase that was just entered, tells that such time was `phase`.

        Within a closure an optimizer works between a backward and the next forward. And a loss is computed: time behind
        a forward in which the thread hardly is on a core is not `FORWARD`.
        """
        span = self._span
        if span[AFTER_BACKWARD]:
            span[OPTIMIZER if self._closure else phase] += span[AFTER_BACKWARD]
            span[AFTER_BACKWARD] = 0
        if span[AFTER_FORWARD]:
            spent, span[AFTER_FORWARD] = span[AFTER_FORWARD], 0
            if phase == FORWARD and self.alone:
                waited = waited_ns(spent, self.cpu_clock() - self._cpu_ns)
                span[OTHER] += waited
                spent -= waited
            span[phase] += spent

    def begin_step(self) -> bool:
        """The optimizer's step begins. Whether its phase was entered now: it may be on already, a GradScaler's say."""
        entered = self.current != OPTIMIZER
        if entered:
            self.enter(OPTIMIZER)
        self.sees_steps = True
        self._settle_backward()
        self._closure = len(self._stack)
        return entered

    def _settle_backward(self) -> None:
        """What lies behind a backward was the script's own code, or the step of an optimizer whose steps nobody sees.
        Ranks may wait there for each other, which is no rank's own."""
        own = self.sees_steps and self.alone and not self._closure
        self._span[OTHER if own else OPTIMIZER] += self._span[AFTER_BACKWARD]
        self._span[AFTER_BACKWARD] = 0

    def end_step(self, *, entered: bool) -> None:
        """Of an optimizer whose step may not count: what follows is none of it. `entered` as `begin_step` said."""
        if entered or (self.current == OPTIMIZER and not self._stack):
            self.leave_for(OTHER)
        self._closure = 0

    def charge(self, phase: int, began_ns: int) -> int:
        """Count the time since `began_ns` for `phase`; nothing was entered or left in between. Gives its length."""
        now = self.clock()
        self._span[self.current] += began_ns - self._since
        self._span[phase] += now - began_ns
        self._since = now
        return now - began_ns

    def cut(self) -> None:
        """A loader is asked: the span ends."""
        if self._stack and (self._closure or self.current == OPTIMIZER):
            self.unwind()  # an optimizer's step that failed has left its phase on the stack
        self._close_span()

    def cut_for(self, phase: int) -> None:
        """The span ends, and what follows is `phase`, up to `leave`."""
        if self._stack and (self._closure or self.current == OPTIMIZER):
            self.unwind()
        self._close_span()
        self._stack.append(self.current)
        self.current = phase

    def unwind(self) -> None:
        """Forget phases that were entered and never left."""
        self.leave()
        self._stack.clear()
        self.current = self.base

    def step(self) -> Record:
        """The optimizer has made its step: it ends here."""
        self.trained = True
        return self.rest()

    def rest(self) -> Record:
        """What lies behind the last step: no step, but part of the time."""
        self._close_span()
        record = Record(self._step_began_ns, self._spans, self._beside)
        self._step_began_ns = self._since
        self._spans = []
        self._beside = False
        return record

    def resume(self) -> None:
        """Nobody watched for a while: the step that begins now is the next to be seen."""
        self._since = self._step_began_ns = self.clock()
        self.base = OTHER
        if not self._stack:
            self.current = OTHER
        self.trained = self.evaluated = self.ended = self.evaluating = self._beside = False
        self._closure = 0
        self._span, self._spans = _NOTHING.copy(), []

    def _close_span(self) -> None:
        """Only what must be known now is worked out now: the rest is left to whoever reads the record."""
        now = self.clock()
        span = self._span
        span[self.current] += now - self._since  # a phase may go on: an optimizer's, in whose hook we are
        self._since = now
        self.base = OTHER
        if not self._stack:
            self.current = OTHER
        self._settle_backward()
        span[FORWARD] += span[AFTER_FORWARD]
        del span[AFTER_FORWARD:]
        trained = self.trained
        self.evaluating = evaluation = not trained and (self.evaluated or (self.ended and self.evaluating))
        spans = self._spans
        if spans and spans[-1][1] is trained and spans[-1][2] is evaluation:
            last = spans[-1][0]  # one sum for spans of a kind: an evaluation may have a million of them
            for phase, spent in enumerate(span):
                last[phase] += spent
        else:
            spans.append((span, trained, evaluation))
        if evaluation or span[CHECKPOINT] or span[EPOCH_START]:
            self._beside = True
        self.trained = self.evaluated = self.ended = False
        self._closure = 0
        self._span = _NOTHING.copy()
