"""How much of each batch the GPU decodes: found by trying, with the training's own rate as the measure. Policy only.

Where the cores can't keep up, files left to the GPU's engines help; but they take time from the step, so more is not
always better. What each trial shows is put into a simple model, which says where to look:

    rate(share) = min(cores / (1 - share), engines / share, 1 / (step + share · cost))

It leaves out that decoders which just keep up may leave the trainer no core to launch kernels from. So both sides of
the best so far are tried as well, in steps that get smaller, and of shares that do equally well the smallest is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from fulltilt.feed.tuner import WAITING
from fulltilt.machine.decision import Decision

_FIRST_STEP, _LAST_STEP = 0.25, 0.0625
_GUESSES = 3
"""Shares that the model may propose before its neighbours are tried."""
_NEAR = 0.03
"""Shares closer than this are the same."""
_IDLE = 0.9
"""Decoders that do less than so much of what they could have time to spare."""
_FAR = 0.2
"""A share at which the model has the step so much slower is not tried; it is wrong by half of that at times."""
_SAME = 0.01
"""Rates closer than this are the same; the smaller share is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareTrial:
    """What a share gave."""

    share: float
    rate: float
    wait_share: float
    decoder_rate: float | None = None
    """What the decoders would give if they never waited for work, where that is known."""

    @property
    def waits(self) -> bool:
        return self.wait_share > WAITING

    @property
    def decoded(self) -> float:
        """Samples a second by the decoders."""
        return self.rate * (1 - self.share)

    @property
    def decoders_idle(self) -> bool:
        return self.decoder_rate is not None and self.decoded < _IDLE * self.decoder_rate

    @property
    def unheld_rate(self) -> float:
        """Of a loop that does not wait."""
        return self.rate / max(1.0 - self.wait_share, 0.02)


class ShareTuner:
    """Looks for the share with the best training rate."""

    def __init__(self) -> None:
        self._cost: float | None = None
        """Of a sample decoded by the GPU, in samples of the step; from an earlier search."""
        self.share = 0.0
        self._begin()

    def _begin(self) -> None:
        self.decision: Decision[float] | None = None
        """The choice, once it is made."""
        self.expected_rate = 0.0
        """What the choice gave when it was tried."""
        self._step = _FIRST_STEP
        self._guesses = 0
        self._trials: dict[float, ShareTrial] = {}

    @property
    def trials(self) -> int:
        """How many shares have been tried in this search."""
        return len(self._trials)

    def reopen(self, rate: float, wait_share: float, decoder_rate: float | None = None) -> float:
        """Look again, where the model says after what the present share gave last; the share to go on with.

        That is no trial: what has changed may have done so in the middle of it.
        """
        self._begin()
        last = ShareTrial(share=self.share, rate=rate, wait_share=wait_share, decoder_rate=decoder_rate)
        self.share = self._guess([last])
        return self.share

    def observe(self, rate: float, wait_share: float, decoder_rate: float | None = None) -> float:
        """Hear what the present share gave; the share to go on with."""
        if self.decision is not None:
            return self.share
        self._trials[self.share] = ShareTrial(
            share=self.share, rate=rate, wait_share=wait_share, decoder_rate=decoder_rate
        )
        chosen = self._chosen()
        following = self._following(chosen)
        if following is None:
            self.share, self.decision, self.expected_rate = chosen.share, self._decide(chosen), chosen.rate
        else:
            self.share = following
        return self.share

    def settle(self) -> None:
        """End the search with the best of what was tried."""
        if self.decision is not None:
            return
        if not self._trials:
            self.decision = Decision(value=self.share, reason="ended before anything was tried")
            return
        chosen = self._chosen()
        self.share, self.decision, self.expected_rate = chosen.share, self._decide(chosen), chosen.rate

    def _chosen(self) -> ShareTrial:
        best = max(trial.rate for trial in self._trials.values())
        return min((t for t in self._trials.values() if t.rate >= best * (1 - _SAME)), key=lambda t: t.share)

    def _following(self, chosen: ShareTrial) -> float | None:
        if chosen.share == 0 and not chosen.waits:
            return None
        if self._guesses < _GUESSES:
            self._guesses += 1
            guess = self._guess(sorted(self._trials.values(), key=lambda trial: trial.share))
            if not self._is_tried(guess):
                return guess
            self._guesses = _GUESSES
        while self._step >= _LAST_STEP:
            for share in (min(chosen.share + self._step, 1.0), max(chosen.share - self._step, 0.0)):
                if not self._is_tried(share) and self._may_be_better(share, chosen):
                    return share
            self._step /= 2
        return None

    def _may_be_better(self, share: float, chosen: ShareTrial) -> bool:
        """Not if the decoders can't give so much, or the GPU would be far too slow."""
        trials = sorted(self._trials.values(), key=lambda trial: trial.share)
        cores, _ = self._capacities(trials)
        if cores is not None and share < chosen.share and cores / (1 - share) < chosen.rate * (1 - _SAME):
            return False
        step, cost = self._line(trials)
        return share < chosen.share or 1 / (step + share * cost) > chosen.rate * (1 - _FAR)

    def _is_tried(self, share: float) -> bool:
        return any(abs(share - tried) < _NEAR for tried in self._trials)

    def _guess(self, trials: list[ShareTrial]) -> float:
        """Where the model has its best: decoders, engines and the step take equally long."""
        step, cost = self._line(trials)
        cores, engines = self._capacities(trials)
        if cores is None:  # more than the cores need: how much less would do is not known yet
            return max(trials[0].share - _FIRST_STEP / 2, 0.0)
        best = (1 - cores * step) / (1 + cores * cost)
        if engines is not None:
            best = min(best, engines / (engines + cores))
        return round(min(max(best, 0.0), 1.0) * 32) / 32

    @staticmethod
    def _capacities(trials: list[ShareTrial]) -> tuple[float | None, float | None]:
        """Samples a second of the decoders and of the GPU's engines, as far as a loop has waited for them.

        A loop that waits although the decoders have less to do than they could waits for the engines. Where none has
        waited for the decoders, what they are said to be able to do counts.
        """
        waiting = [trial for trial in trials if trial.waits]
        cores = max((trial.decoded for trial in waiting if not trial.decoders_idle), default=None)
        idle = [t for t in waiting if t.decoders_idle or (cores is not None and t.decoded < _IDLE * cores)]
        if cores is None:
            cores = min((trial.decoder_rate for trial in trials if trial.decoder_rate is not None), default=None)
        return cores, max((trial.rate * trial.share for trial in idle), default=None)

    def _line(self, trials: list[ShareTrial]) -> tuple[float, float]:
        """Seconds of a step's sample, and what decoding on the GPU adds to them."""
        low, high = trials[0], trials[-1]
        if high.share - low.share >= _NEAR:
            cost = (1 / high.unheld_rate - 1 / low.unheld_rate) / (high.share - low.share)
            step = 1 / low.unheld_rate - low.share * cost
            if step > 0:
                self._cost = max(cost, 0.0) / step
        relative = self._cost or 0.0
        step = 1 / low.unheld_rate / (1 + low.share * relative)
        return step, step * relative

    def _decide(self, chosen: ShareTrial) -> Decision[float]:
        trials = sorted(self._trials.values(), key=lambda trial: trial.share)
        tried = ", ".join(f"{t.share:.0%}: {t.rate:,.0f}/s waiting {t.wait_share:.0%}" for t in trials)
        why = "the cores keep up" if chosen.share == 0 and not chosen.waits else "trains fastest"
        return Decision(
            value=chosen.share,
            reason=f"{why} (tried {tried})",
            evidence={"trials": [(t.share, t.rate, t.wait_share) for t in trials]},
        )
