"""How much of each batch the GPU decodes: found by trying, with the training's own rate as the measure. Policy only.

Where the cores can't keep up, files left to the GPU's engines help; but they take time from the step, so more is not
always better. Nor is less: decoders that just keep up may leave the trainer no core to launch kernels from. So both
sides of the best so far are tried, in steps that get smaller, and of shares that do equally well the smallest is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from fulltilt.feed.tuner import WAITING
from fulltilt.machine.decision import Decision

_FIRST_STEP, _LAST_STEP = 0.5, 0.0625
_SAME = 0.01
"""Rates closer than this are the same; the smaller share is kept."""
_CHANGED = 0.05
"""When the loop waits for so much more of its time than when the choice was made, the balance has changed."""
_LOOK_AGAIN = 40
"""Windows after which a smaller share is tried again: cores may have become free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareTrial:
    """What a share gave."""

    share: float
    rate: float
    wait_share: float


class ShareTuner:
    """Looks for the share with the best training rate, and looks again when the balance changes."""

    def __init__(self) -> None:
        self._begin(0.0, _FIRST_STEP)

    def _begin(self, share: float, step: float) -> None:
        self.share = share
        self.decision: Decision[float] | None = None
        """The choice, once it is made."""
        self._step = step
        self._trials: dict[float, ShareTrial] = {}
        self._windows = 0

    def observe(self, rate: float, wait_share: float) -> float:
        """Hear what the present share gave; the share to go on with."""
        if self.decision is not None:
            return self._follow(rate, wait_share)
        self._trials[self.share] = ShareTrial(share=self.share, rate=rate, wait_share=wait_share)
        chosen = self._chosen()
        following = self._following(chosen)
        if following is None:
            self.share, self.decision = chosen.share, self._decide(chosen)
            self._settled = chosen
        else:
            self.share = following
        return self.share

    def _follow(self, rate: float, wait_share: float) -> float:
        self._windows += 1
        changed = wait_share > self._settled.wait_share + _CHANGED
        if changed or (self.share > 0 and self._windows >= _LOOK_AGAIN):
            self._begin(self.share, _FIRST_STEP / 4 if self.share else _FIRST_STEP)
            return self.observe(rate, wait_share)
        return self.share

    def _chosen(self) -> ShareTrial:
        best = max(trial.rate for trial in self._trials.values())
        return min((t for t in self._trials.values() if t.rate >= best * (1 - _SAME)), key=lambda t: t.share)

    def _following(self, chosen: ShareTrial) -> float | None:
        if chosen.share == 0 and chosen.wait_share <= WAITING:
            return None
        while self._step >= _LAST_STEP:
            for share in (min(chosen.share + self._step, 1.0), max(chosen.share - self._step, 0.0)):
                if share not in self._trials:
                    return share
            self._step /= 2
        return None

    def _decide(self, chosen: ShareTrial) -> Decision[float]:
        trials = sorted(self._trials.values(), key=lambda trial: trial.share)
        tried = ", ".join(f"{t.share:.0%}: {t.rate:,.0f}/s waiting {t.wait_share:.0%}" for t in trials)
        why = "the cores keep up" if chosen.share == 0 and chosen.wait_share <= WAITING else "trains fastest"
        return Decision(
            value=chosen.share,
            reason=f"{why} (tried {tried})",
            evidence={"trials": [(t.share, t.rate, t.wait_share) for t in trials]},
        )
