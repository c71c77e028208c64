"""The balance between CPU and GPU: how many decoders, and how much of the decoding is the GPU's. Policy only.

    share is looked for ─► number of decoders is looked for ─► settled ─┬─ falls behind ─► more decoders, then the share
                                                                  ▲     ├─ cores are back ─► the share
                                                                  └─────┴─ now and then, ever more rarely ─► the share

First the share, for that decides how much is left to the decoders. What was chosen is left alone until it is clearly
worse, or the cores clearly faster, than when it was chosen: two measurements in a row, or one that leaves no doubt;
after a search that led back to where it began, twice as many.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from fulltilt.feed.share import ShareTuner
from fulltilt.feed.tuner import MARGIN, WAITING, Tuner

FALLEN = 0.08
"""A rate that has fallen by so much, while the loop waits or decoding takes longer, is a change of load."""
WAITS_MORE = 0.05
"""So is a loop that waits for so much more of its time."""
NO_DOUBT = 0.25
"""One measurement will do when the loop waits for so much more."""
SLOWER, FASTER = 0.8, 1.3
"""Decoders that would do less, or more, than so much of what they did then: others took cores, or gave them back."""
UNCHANGED = 0.03
"""A rate this close to what it was: whatever else has changed does no harm."""
TWICE, MOST_PATIENCE = 2, 16
"""Measurements in a row that show a change before it is believed; twice as many after a search that led back."""
BACK = 0.07
"""A share this close to the one before is the same."""
WORTH_GROWING = 1.2
"""Decoders are added where there may be so many times as many: the last core of sixteen is better the trainer's."""
LOOK_AGAIN = 40
"""Measurements after which a smaller share is tried where nothing is known of the decoders; twice as many each time."""

State = Literal["share", "decoders", "settled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One measurement."""

    rate: float
    """Samples a second, seen from the training loop."""
    wait_share: float
    """Share of the time that the loop waited for a batch."""
    cores_used: float | None = None
    """CPU time per second of all decoders together."""
    decoder_rate: float | None = None
    """Samples a second that the decoders would give if they never waited for work."""


class Balance:
    """Hears measurements, and says how to go on."""

    def __init__(
        self, *, workers: int, tuner: Callable[[int], Tuner] | None, share: ShareTuner | None, most_workers: int
    ) -> None:
        """
        Args:
            tuner: makes what looks for the number of decoders, from a number on; None leaves it alone.
            share: looks for the GPU's share; None leaves it alone.
        """
        self.workers = workers
        self.tuner = None if tuner is None else tuner(workers)
        self.share_tuner = share
        self.changes = 0
        """How often something was changed, since the beginning."""
        self.reopened = 0
        self.why = ""
        """Why a search was begun again."""
        self._most = most_workers
        self._base: Seen | None = None
        self._bad = self._better = 0
        self._patience = TWICE
        self._left: tuple[int, float] | None = None
        """What was given up for the last search."""
        self._windows, self._look_again = 0, LOOK_AGAIN
        self._grown: tuple[int, float] | None = None
        """Decoders before the last that were added, and what they gave."""

    @property
    def share(self) -> float | None:
        return None if self.share_tuner is None else self.share_tuner.share

    @property
    def state(self) -> State:
        if self.share_tuner is not None and self.share_tuner.decision is None and not self._is_counting:
            return "share"
        return "decoders" if self.tuner is not None and not self.tuner.settled else "settled"

    @property
    def adapts(self) -> bool:
        """Whether there is anything to look for."""
        return self.tuner is not None or self.share_tuner is not None

    @property
    def _is_counting(self) -> bool:
        """Numbers of decoders are being tried: a loop that waits then says nothing of the share."""
        return self.tuner is not None and not self.tuner.settled and bool(self.tuner.trials)

    def without_share(self) -> None:
        """The GPU decodes nothing from now on."""
        self.share_tuner = None

    def settle(self) -> None:
        """Look no further: the best share that was tried, and as many decoders as there are."""
        if self.share_tuner is not None:
            self.share_tuner.settle()
        if self.tuner is not None and not self.tuner.settled:
            self.tuner.settle(self.workers, "the search was ended by hand")

    def observe(self, seen: Seen) -> None:
        """Hear what the present settings gave; `workers` and `share` are those to go on with."""
        before = self.workers, self.share
        if self.state == "settled":
            self._watch(seen)
        else:
            self._search(seen)
        self.changes += (self.workers, self.share) != before

    def _search(self, seen: Seen) -> None:
        self._base = None
        if self.state == "share" and self.share_tuner is not None:
            if not self.share_tuner.trials and self._may_grow(seen):
                self._grow(seen)
                return
            self.share_tuner.observe(seen.rate, seen.wait_share, seen.decoder_rate)
            if self.share_tuner.decision is None:
                return
            if self.share and self.tuner is not None:
                self.tuner.settle(self.workers, "the GPU decodes a part, as these do all that they can")
        if self.tuner is not None and not self.tuner.settled:
            self.workers = self.tuner.observe(seen.rate, seen.wait_share, seen.cores_used)

    # --- settled -----------------------------------------------------------------------------------------------------

    def _watch(self, seen: Seen) -> None:
        base, grown = self._base, self._grown
        self._grown = None
        if grown is not None and seen.rate < grown[1] * (1 + MARGIN):
            self._take(grown[0], "more were no faster")
        if grown is not None and seen.wait_share > WAITING:
            self._look_for_share(seen)
            if self.share_tuner is not None:
                return
        if base is None or grown is not None:
            self._base, self._bad, self._better, self._windows = seen, 0, 0, 0
            self._judge_search()
            expected = 0.0 if self.share_tuner is None else self.share_tuner.expected_rate
            if grown is None and seen.rate < expected * (1 - FALLEN) and seen.wait_share > WAITING + WAITS_MORE:
                self._bad = self._patience - 1  # it has changed since it was tried: another such measurement will do
                self._base = replace(seen, rate=expected, wait_share=0.0)
            return
        self._windows += 1
        decoders = _ratio(seen.decoder_rate, base.decoder_rate)
        waits = seen.wait_share - base.wait_share
        fell = seen.rate < base.rate * (1 - FALLEN) and (seen.wait_share > WAITING or decoders < SLOWER)
        differs = abs(seen.rate - base.rate) > UNCHANGED * base.rate
        self._bad = self._bad + 1 if fell or (differs and waits > WAITS_MORE) else 0
        rose = base.wait_share > WAITING and seen.rate > base.rate * (1 + FALLEN)
        self._better = self._better + 1 if self.share and (rose or decoders > FASTER) else 0
        if self._bad >= self._patience or (waits > NO_DOUBT and self._patience == TWICE):
            self._reopen(seen, f"{seen.rate:,.0f}/s waiting {seen.wait_share:.0%}, it was {base.rate:,.0f}/s")
        elif self._better >= self._patience:
            self._reopen(seen, "the cores have more to give than when this was chosen")
        elif self.share and seen.decoder_rate is None and self._windows >= self._look_again:
            self._look_again *= 2
            self._reopen(seen, "a smaller share is tried again")

    def _judge_search(self) -> None:
        """A search that led back to where it began was for nothing: the next has to be asked for more urgently."""
        if self._left is None:
            return
        workers, share = self._left
        back = self.workers == workers and abs((self.share or 0.0) - share) < BACK
        self._patience = min(2 * self._patience, MOST_PATIENCE) if back else TWICE
        self._left = None

    def _reopen(self, seen: Seen, why: str) -> None:
        """First more decoders, which cost the GPU nothing; if the loop waits all the same, the share."""
        self.why = why
        self.reopened += 1
        self._left = self.workers, self.share or 0.0
        if self._may_grow(seen):
            self._grown = self.workers, seen.rate
            self._grow(seen)
        else:
            self._look_for_share(seen)

    def _may_grow(self, seen: Seen) -> bool:
        room = self._most >= self.workers * WORTH_GROWING
        return self.tuner is not None and room and seen.wait_share > WAITING

    def _grow(self, seen: Seen) -> None:
        """As many as would do if each brought as much as now."""
        wanted = math.ceil(self.workers / max(1 - seen.wait_share, 0.1))
        self._take(min(max(wanted, self.workers + 1), self._most), "the loop waited for fewer")

    def _take(self, workers: int, reason: str) -> None:
        self.workers = workers
        if self.tuner is not None and self.tuner.settled:
            self.tuner.settle(workers, reason)
        elif self.tuner is not None:
            self.tuner.workers = workers

    def _look_for_share(self, seen: Seen) -> None:
        self._base = None
        if self.share_tuner is not None:
            self.share_tuner.reopen(seen.rate, seen.wait_share, seen.decoder_rate)


def _ratio(now: float | None, then: float | None) -> float:
    return 1.0 if not now or not then else now / then
