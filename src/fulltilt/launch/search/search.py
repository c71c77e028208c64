"""Which of the candidates to keep: a policy that sees rates alone; who measures them is given to it.

    1. all candidates together, but the compiler, which takes a minute: most of them are independent, and one trial may
       be all that is needed
    2. where that pays: other numbers of workers where the loop still waits for its batches, the compiler on top where
       it does not; then parts are left out, half of the members at a time: what isn't missed is dropped
    3. where it does not (or fails), one by one in the order of what is predicted, each on top of those kept
    4. other numbers of workers around the one that was found, as long as one of them pays
    5. the best and the script as it is, by turns, until it is plain which is faster: once at least

A machine that others use, too, is faster now and slower then: two trials of the same settings may lie further apart
than either of them is uneven in itself. So trials are compared with those beside them, in pairs (`pairs.py`), whose
ratio no drift changes. As long as it is not plain, one way or the other, both are tried once more, by turns: often
where trials scatter, never where they don't.

A candidate pays if it gives `LEAST_GAIN` more than without it, beyond the noise of the pairs. No trial is begun that
would not end within the time, but for the last look; what was found until then is what counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fulltilt.diagnose.finding import Trial
from fulltilt.launch.search.candidates import Candidate, describe
from fulltilt.launch.search.pairs import History
from fulltilt.launch.search.rate import Rate
from fulltilt.launch.settings import Settings

Measure = Callable[[Settings], "Rate | str"]
"""Try settings for a few dozen steps: the rate, or why there is none."""
Neighbours = Callable[[Mapping[str, Any], "float | None"], Sequence[Settings]]

LATE = "not ready in time"
"""Why there is no rate of settings that another time may have one."""
LEAST_GAIN = 0.02
_SURE = 2.0
"""Standard errors."""
_LOST = 0.3
"""A trial that lost that much is not repeated, unless all that it is held against is old."""
_MOST_REPEATS = 4
"""Trials that one question may cost beyond its first."""
_LEAST_PAIRS = 2
"""Before the best is settled on: one pair alone does not say how far pairs lie apart."""
_LARGE = 0.5
"""For a gain beyond that one will do."""
_UNSTEADY = 0.03
"""How far trials of the same settings lie apart on a machine that is not ours alone."""
_FEWER_REPEATS = 2
"""Of all together: each of them is still to have its turn, where they don't pay."""
_KEPT_BACK = 2
"""Trials for that last question, which others leave time for."""
_KEPT_BACK_FOR_NOTHING = 1
"""As long as nothing was found that would have to stand it: for the script as it is, beside the next."""
_MARGIN = 1.2
_STARVED = 0.15
"""Share of the step in which the loop waits for a batch: beyond that no faster step helps."""
_COMPILED_BEFORE = 0.5
"""Of what compiling took the first time, it takes again: the compiler keeps a part of its work on disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search came to."""

    settings: Settings
    """Empty where nothing pays: the script is best left as it is."""
    rate: Rate
    baseline: Rate
    """As measured over the whole search."""
    trials: tuple[Trial, ...]
    complete: bool
    """The time sufficed for all that was to be tried."""


@dataclass(slots=True)
class _Search:
    measure: Measure
    clock: Callable[[], float]
    until: float
    say: Callable[[Trial], None]
    history: History = field(default_factory=History)
    trials: list[Trial] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)
    """Settings that could not be measured: they are not tried again."""
    expected: float = 0.0
    """Seconds that a trial takes, going by the last one: caches make the first one slow."""
    compiling: float | None = None
    """Seconds that come on top of it where the model is compiled; None as long as none was."""
    complete: bool = True

    def rate(self, settings: Mapping[str, Any]) -> Rate | None:
        """Of all trials of these settings together."""
        return self.history.rate(key_of(settings))

    def against(self, settings: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[float, float]:
        return self.history.gain(key_of(settings), key_of(other))

    def has_time(self, best: Mapping[str, Any]) -> bool:
        """For one more trial, and for the last question after it."""
        enough = self.has_time_for(1 + (self.kept_back(best) if self.trials else 0))
        self.complete = self.complete and enough
        return enough

    @staticmethod
    def kept_back(best: Mapping[str, Any]) -> int:
        return _KEPT_BACK if best else _KEPT_BACK_FOR_NOTHING

    def has_time_for(self, trials: int, *, beyond: float = 0.0) -> bool:
        return self.until - self.clock() >= trials * (self.expected + (self.compiling or 0.0)) + beyond

    def starved(self, settings: Mapping[str, Any]) -> bool:
        """The loop waits for its batches."""
        rate = self.rate(settings)
        return rate is not None and (rate.waits or 0.0) > _STARVED

    def measured(self, settings: Mapping[str, Any]) -> Rate | str:
        began = self.clock()
        got = self.measure(dict(settings))
        took = _MARGIN * (self.clock() - began)
        if "compile" in settings:
            more = max(took - self.expected, 0.0)
            self.compiling = more * _COMPILED_BEFORE if self.compiling is None else more
        else:
            self.expected = took
        if isinstance(got, Rate):
            self.history.add(key_of(settings), got)
        else:
            self.failed.add(key_of(settings))
            self.complete = self.complete and got != LATE
        return got

    def beats(self, settings: Settings, other: Mapping[str, Any], *, title: str, most: int = _MOST_REPEATS) -> bool:
        """Try settings against others that were tried; a trial, with its reason."""
        got = self.measured(settings)
        if isinstance(got, str):
            self.note(title, settings, None, kept=False, reason=got)
            return False
        gain, error = self.by_turns(settings, other, most=most, keep_back=self.kept_back(other))
        pays = gain >= LEAST_GAIN and gain >= error
        self.note(title, settings, self.rate(settings), kept=pays, reason=_reason(gain, error, pays=pays))
        return pays

    def by_turns(
        self,
        settings: Mapping[str, Any],
        other: Mapping[str, Any],
        *,
        most: int,
        keep_back: int,
        pairs: int = 0,
        beside: bool = True,
        late: bool = False,
    ) -> tuple[float, float]:
        """Both, as often as it takes until it is plain which is faster (and until there are as many pairs).

        `beside`: before something is turned down there has to be a pair, even where trials have not scattered so far.
        `late`: the first pair is had even where the time is up.
        """
        one, two = key_of(settings), key_of(other)
        gain, error = self.against(settings, other)
        for _ in range(most):
            known = self.history.pairs(one, two)
            unclear = abs(gain - LEAST_GAIN) < _SURE * error
            # What looks slower may have met another machine: it is held against something of the same minute.
            stale = gain < LEAST_GAIN and not known and (beside or self.history.scatter > _UNSTEADY)
            if not (stale or len(known) < pairs or (unclear and gain > -_LOST)):
                break
            if not (late and not known) and not self.has_time_for(1 + keep_back):
                self.complete = self.complete and not stale
                break
            following = settings if self.history.last == two else other
            if isinstance(self.measured(following), str):
                break
            gain, error = self.against(settings, other)
        return gain, error

    def is_missed(self, whole: Settings, part: Settings, *, title: str) -> bool:
        """Whether something is lost without what `part` leaves out of `whole`.

        Where that can't be told for noise, what seems to be missed stays: it was predicted to pay.
        """
        got = self.measured(part)
        if isinstance(got, str):
            self.note(title, part, None, kept=False, reason=f"{got}; it stays")
            return True
        loss, _ = self.by_turns(whole, part, most=1, keep_back=_KEPT_BACK, beside=False)
        missed = loss >= LEAST_GAIN
        reason = f"{_signed(1 / (1 + loss) - 1)}: " + ("it stays" if missed else "not missed, left out")
        self.note(title, part, got, kept=not missed, reason=reason)
        return missed

    def note(self, title: str, settings: Settings, rate: Rate | None, *, kept: bool, reason: str) -> None:
        self.trials.append(as_trial(title, settings, rate, kept=kept, reason=reason))
        self.say(self.trials[-1])


def as_trial(title: str, settings: Mapping[str, Any], rate: Rate | None, *, kept: bool, reason: str) -> Trial:
    return Trial(
        title=title,
        settings=settings,
        samples_per_second=None if rate is None else rate.value,
        kept=kept,
        reason=reason,
        noise=None if rate is None else rate.noise,
    )


def search(
    candidates: Sequence[Candidate],
    baseline: Rate,
    *,
    measure: Measure,
    clock: Callable[[], float],
    seconds: float,
    trial_seconds: float,
    compile_seconds: float = 0.0,
    neighbours: Neighbours = lambda *_: (),
    say: Callable[[Trial], None] = lambda _: None,
) -> Found:
    """The best settings that could be found in `seconds`.

    Args:
        trial_seconds: what a trial is thought to take.
        compile_seconds: what the first one that compiles is thought to take beyond that.
    """
    state = _Search(measure=measure, clock=clock, until=clock() + seconds, say=say, expected=trial_seconds)
    state.history.add(key_of({}), baseline)
    state.history.since = 1  # limits were measured since: no trial is beside it
    best: Settings = {}
    quick = [one for one in candidates if not one.compiles]
    most = _FEWER_REPEATS if len(quick) > 1 else _MOST_REPEATS
    if quick and state.has_time(best) and state.beats(merged(quick), {}, title=_title(quick), most=most):
        best = merged(quick)
        if state.starved(best):
            best = _climbed(state, best, neighbours)
        else:
            compilers = [one for one in candidates if one.compiles]
            best = _grown(state, compilers, best, compile_seconds)
        best = _pruned(state, quick, best)
    else:
        left = [one for one in candidates if quick != [one]]  # that one was tried just now
        best = _grown(state, left, {}, compile_seconds)
    best = _climbed(state, best, neighbours)
    best = _confirmed(state, best)
    rate, as_is = state.history.beside(key_of(best), key_of({}))
    return Found(settings=best, rate=rate, baseline=as_is, trials=tuple(state.trials), complete=state.complete)


def merged(candidates: Sequence[Candidate]) -> Settings:
    """All of them at once; of two that set the same thing, the one that is predicted to give more."""
    settings: Settings = {}
    for candidate in sorted(candidates, key=lambda one: one.gain):
        settings |= candidate.settings
    return settings


def _pruned(state: _Search, candidates: Sequence[Candidate], best: Settings) -> Settings:
    """The best without the candidates that aren't missed. Halves that are predicted to give least are left out first.

    What is lost is always counted from the best so far: many small losses must not add up.
    """
    known = merged(candidates)

    def of(members: Sequence[Candidate]) -> Settings:
        """Theirs, and what was found since: a compiler, another number of workers."""
        named = merged(members)
        return {name: value for name, value in best.items() if name in named or name not in known}

    top = best
    kept = list(candidates)
    groups = _halves(sorted(candidates, key=lambda one: one.gain)) if len(candidates) > 1 else []
    while groups and state.has_time(best):
        group = groups.pop(0)
        rest = [one for one in kept if one not in group]
        part = of(rest)
        if not part:  # without any of them it is the script as it is, which is slower
            groups = _halves(group) + groups if len(group) > 1 else groups
            continue
        if not state.is_missed(top, part, title=f"without {_title(group)}"):
            kept = rest
            now, before = state.rate(part), state.rate(top)
            if now is not None and before is not None and now.value > before.value:
                top = part
        elif len(group) > 1:
            groups = _halves(group) + groups
    return of(kept)


def _halves(group: Sequence[Candidate]) -> list[list[Candidate]]:
    middle = len(group) // 2
    return [list(group[:middle]), list(group[middle:])]


def _grown(state: _Search, candidates: Sequence[Candidate], best: Settings, compile_seconds: float) -> Settings:
    """One by one, on top of what was kept."""
    for candidate in sorted(candidates, key=lambda one: one.gain, reverse=True):
        if candidate.compiles and state.compiling is None:
            # What is slow to try, but was predicted, rather than a last look at what is known by then.
            if not state.has_time_for(1, beyond=compile_seconds):
                state.complete = False
                continue
        elif not state.has_time(best):
            continue
        tried = {**best, **candidate.settings}
        if state.beats(tried, best, title=candidate.title):
            best = tried
    return best


def _climbed(state: _Search, best: Settings, neighbours: Neighbours) -> Settings:
    """From neighbour to neighbour, as long as one of them pays."""
    better = True
    while better and best:
        better = False
        rate = state.rate(best)
        for other in neighbours(best, None if rate is None else rate.waits):
            if state.rate(other) is not None or key_of(other) in state.failed or not state.has_time(best):
                continue
            if state.beats(other, best, title=describe(_difference(other, best))):
                best, better = other, True
                break
    return best


def _confirmed(state: _Search, best: Settings) -> Settings:
    """The baseline is minutes old: both are looked at again, by turns; nothing is kept that is not faster now.

    Pairs from before don't count: among many trials the best is the one that was lucky, too. A gain of any size is held
    against the same minute: others may have had the machine while the script was watched as it is.
    """
    if not best:
        return {}
    history = state.history
    gain, _ = state.against(best, {})
    history.since = len(history.trials) - (history.last == key_of(best))
    pairs = _LEAST_PAIRS if gain < _LARGE else 1
    gain, error = state.by_turns(best, {}, most=2 * _MOST_REPEATS, keep_back=0, pairs=pairs, late=True)
    if not history.pairs(key_of(best), key_of({})):
        state.complete = False
        state.note(f"once more, {describe(best)}", best, None, kept=False, reason="it could not be measured again")
        return {}
    if gain >= LEAST_GAIN + error:
        return best
    rate, _ = state.history.beside(key_of(best), key_of({}))
    state.note(f"once more, {describe(best)}", best, rate, kept=False, reason=_reason(gain, error, pays=False))
    return {}


def _title(candidates: Sequence[Candidate]) -> str:
    ordered = sorted(candidates, key=lambda one: one.gain, reverse=True)
    return describe({name: value for one in ordered for name, value in one.settings.items()})


def _difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> Settings:
    return {name: value for name, value in one.items() if other.get(name) != value}


def key_of(settings: Mapping[str, Any]) -> str:
    """The same for the same settings, in whatever order they were put together."""
    return repr(sorted(settings.items()))


def _signed(gain: float) -> str:
    return f"{gain * 100:+.0f} %".replace("-", "−")


def _reason(gain: float, error: float, *, pays: bool) -> str:
    if pays:
        return _signed(gain)
    if gain < -LEAST_GAIN:
        return f"{_signed(gain)}: slower"
    return f"{_signed(gain)} ± {error * 100:.0f} %: not beyond noise"
