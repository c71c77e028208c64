"""Which batch size to try next, and which one to take: pure policy. bench.py runs what this asks for.

    search ──► size ──► bench.py ──► Trial ──► search ──► … ──► a decision

Sizes double from the smallest, as far as the memory seen so far says that they fit: memory is a line, so much for model
and optimizer and so much for each sample. Where doubling stops paying, the knee is between two sizes that were tried,
and the gap is halved a few times. Only a size that ran, and left the margin free, is ever chosen.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from fulltilt.errors import InputError, UnavailableError
from fulltilt.machine.decision import Decision
from fulltilt.words import GIB, amount

NEAR = 0.97
"""A size this near to the best rate is as good; the smallest such is the knee."""
FLAT_GAIN = 0.01
"""Doubling that brings less than this is not climbing any more."""
_FLAT_DOUBLINGS = 2
_NARROWINGS = 4
_CLOSE = 0.1
"""Sizes that differ by no more than this share are not worth a trial between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What may be chosen from: min_batch, min_batch + step, … up to max_batch."""

    min_batch: int
    max_batch: int
    step: int

    def __post_init__(self) -> None:
        for name in ("min_batch", "max_batch", "step"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name}={value!r} must be a whole number of at least 1")
        if self.max_batch < self.min_batch:
            raise InputError(f"max_batch={self.max_batch} is below min_batch={self.min_batch}")

    @property
    def largest(self) -> int:
        return self.at_most(self.max_batch) or self.min_batch

    def __contains__(self, size: int) -> bool:
        return self.min_batch <= size <= self.max_batch and (size - self.min_batch) % self.step == 0

    def at_most(self, bound: float) -> int | None:
        """The largest size up to `bound`."""
        bound = min(bound, self.max_batch)
        if bound < self.min_batch:
            return None
        return self.min_batch + int(bound - self.min_batch) // self.step * self.step

    def between(self, low: int, high: int) -> Sequence[int]:
        """Sizes above `low` and below `high`, both sizes themselves."""
        return range(low + self.step, high, self.step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What came of running a size."""

    size: int
    room_bytes: int
    """What the process could use at that time, in all."""
    memory_bytes: int | None = None
    """The peak of whole steps, optimizer state and all; absent where memory ran out."""
    step_seconds: float | None = None
    problem: str | None = None
    """Why it did not run."""

    @property
    def samples_per_second(self) -> float | None:
        return None if self.step_seconds is None else self.size / self.step_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Memory by batch size."""

    fixed_bytes: float
    """Model, gradients, optimizer state."""
    bytes_per_sample: float

    def largest(self, limit_bytes: float) -> float:
        """The largest size within the limit; not rounded, and infinite where samples cost nothing."""
        if self.bytes_per_sample <= 0:
            return float("inf") if self.fixed_bytes <= limit_bytes else 0.0
        return max(0.0, (limit_bytes - self.fixed_bytes) / self.bytes_per_sample)


def fit_memory(trials: Sequence[Trial], held_bytes: int) -> Line | None:
    """The line through the trials that ran, by least squares.

    Of one trial, everything beyond what was held before counts as the samples': too much rather than too little.
    """
    points = [(trial.size, trial.memory_bytes) for trial in trials if trial.memory_bytes is not None]
    if not points:
        return None
    sizes, memory = [size for size, _ in points], [taken for _, taken in points]
    if len(set(sizes)) == 1:
        grown = max(0.0, max(memory) - held_bytes)
        return Line(fixed_bytes=max(memory) - grown, bytes_per_sample=grown / sizes[0])
    size, taken = fmean(sizes), fmean(memory)
    spread = sum((s - size) ** 2 for s in sizes)
    slope = max(0.0, sum((s - size) * (m - taken) for s, m in points) / spread)
    return Line(fixed_bytes=taken - slope * size, bytes_per_sample=slope)


def knee(trials: Sequence[Trial]) -> Trial:
    """The smallest of these whose rate is near the best."""
    best = max(trial.samples_per_second or 0.0 for trial in trials)
    return min((t for t in trials if (t.samples_per_second or 0.0) >= NEAR * best), key=lambda trial: trial.size)


def check_safety(safety: float) -> None:
    if not 0 < safety <= 1:
        raise InputError(f"safety={safety} must be above 0 and at most 1")


Search = Generator[int, Trial, Decision[int]]


def search(sizes: Sizes, *, safety: float = 0.9, held_bytes: int = 0) -> Search:
    """Yields sizes to run, is sent what came out, returns the decision.

    Args:
        safety: share of the memory that a step may take.
        held_bytes: what is taken before the first trial, the model included.
    """
    check_safety(safety)
    state = _State(sizes, safety, held_bytes)
    yield from _smallest(state)
    yield from _probe(state)
    yield from _climb(state)
    yield from _narrow(state)
    return state.decision()


@dataclass(slots=True)
class _State:
    sizes: Sizes
    safety: float
    held_bytes: int
    trials: list[Trial] = field(default_factory=list)

    def note(self, trial: Trial) -> bool:
        """Whether it fits."""
        self.trials.append(trial)
        return self.fits(trial)

    @property
    def room_bytes(self) -> int:
        """The least that was seen: other processes come and go."""
        return min(trial.room_bytes for trial in self.trials)

    @property
    def limit_bytes(self) -> float:
        return self.safety * self.room_bytes

    def fits(self, trial: Trial) -> bool:
        return trial.memory_bytes is not None and trial.memory_bytes <= self.limit_bytes

    @property
    def ran(self) -> list[Trial]:
        return [trial for trial in self.trials if self.fits(trial)]

    @property
    def fitting(self) -> list[Trial]:
        """What may be chosen: a probe may be of a size that was not asked for."""
        return [trial for trial in self.ran if trial.size in self.sizes]

    @property
    def tried(self) -> set[int]:
        return {trial.size for trial in self.trials}

    def predicted(self) -> float:
        line = fit_memory(self.trials, self.held_bytes)
        return 0.0 if line is None else line.largest(self.limit_bytes)

    def next_up(self, wanted: int) -> int | None:
        """The largest size up to `wanted` that can be expected to fit, and would tell something new."""
        done = max(trial.size for trial in self.fitting)
        failed = min((t.size for t in self.trials if not self.fits(t) and t.size > done), default=None)
        bound = min(float(wanted), self.predicted())
        if failed is not None:  # the line was wrong about that one, so it is not trusted up to there
            if failed - done <= _CLOSE * failed:
                return None
            bound = min(bound, (done + failed) / 2)
        size = self.sizes.at_most(bound)
        return size if size is not None and size > done else None

    def decision(self) -> Decision[int]:
        fitting = self.fitting
        if not fitting:  # room that others have taken since the first trial
            raise _nothing_fits(self)
        chosen, best = knee(fitting), max(fitting, key=lambda trial: trial.samples_per_second or 0.0)
        rate, best_rate = chosen.samples_per_second or 0.0, best.samples_per_second or 0.0
        line = fit_memory(self.trials, self.held_bytes)
        largest = None if line is None else self.sizes.at_most(line.largest(self.limit_bytes))
        reason = f"the fastest of {len(fitting)} sizes that ran and fit"
        if chosen is not best:
            near = f"the smallest within {1 - NEAR:.0%} of the best rate"
            reason = f"{near}, {amount(best_rate)} samples/s at {best.size}"
        elif len(fitting) == 1:
            reason = "the only size that ran and fits" if self.sizes.largest > chosen.size else "the only size allowed"
        elif chosen.size == self.sizes.largest:
            reason += ", and the largest allowed"
        return Decision(
            value=chosen.size,
            reason=reason,
            evidence={
                "samples_per_second": rate,
                "best_samples_per_second": best_rate,
                "memory_bytes": chosen.memory_bytes,
                "room_bytes": self.room_bytes,
                "limit_bytes": int(self.limit_bytes),
                "fixed_bytes": None if line is None else round(line.fixed_bytes),
                "bytes_per_sample": None if line is None else round(line.bytes_per_sample),
                "largest_predicted": largest,
            },
        )


def _smallest(state: _State) -> Generator[int, Trial, None]:
    """The smallest size. Where it doesn't fit, what would is found out, for the message."""
    size = state.sizes.min_batch
    if state.note((yield size)):
        return
    failed = size
    while size > 1 and not state.ran:
        failed, size = size, size // 2
        state.note((yield size))
    while state.ran and failed - size > max(1, _CLOSE * failed):
        middle = (size + failed) // 2
        if state.note((yield middle)):
            size = middle
        else:
            failed = middle
    raise _nothing_fits(state)


def _probe(state: _State) -> Generator[int, Trial, None]:
    """One trial can't tell a large model from large samples. Where it leaves no room to climb, a second one does."""
    smallest = state.sizes.min_batch
    if smallest == state.sizes.largest or state.next_up(smallest + state.sizes.step) is not None:
        return
    size = smallest // 2 or int(min(state.predicted(), smallest + state.sizes.step))
    if size != smallest:
        state.note((yield size))


def _climb(state: _State) -> Generator[int, Trial, None]:
    """Doubling, until memory, the sizes or the gain end."""
    flat, best = 0, state.trials[0].samples_per_second or 0.0
    while flat < _FLAT_DOUBLINGS and state.fitting:
        done = max(trial.size for trial in state.fitting)
        size = state.next_up(max(2 * done, done + state.sizes.step))
        if size is None:
            return
        trial = yield size
        if state.note(trial):
            rate = trial.samples_per_second or 0.0
            flat = flat + 1 if rate < (1 + FLAT_GAIN) * best else 0
            best = max(best, rate)


def _narrow(state: _State) -> Generator[int, Trial, None]:
    """Between the knee and the size below it."""
    for _ in range(_NARROWINGS):
        if not state.fitting:
            return
        high = knee(state.fitting).size
        low = max((trial.size for trial in state.fitting if trial.size < high), default=None)
        left = [] if low is None else [s for s in state.sizes.between(low, high) if s not in state.tried]
        if low is None or not left or high - low <= _CLOSE * high:
            return
        state.note((yield left[len(left) // 2]))


def _nothing_fits(state: _State) -> UnavailableError:
    smallest = state.trials[0]
    if smallest.memory_bytes is None:
        why = f"{smallest.problem or 'out of memory'}"
    else:
        why = f"a step takes {smallest.memory_bytes / GIB:.2f} GiB"
    limit = f"{state.limit_bytes / GIB:.2f} GiB ({state.safety:.0%} of {state.room_bytes / GIB:.2f} GiB)"
    largest = max((trial.size for trial in state.ran), default=None)
    told = f"the largest that ran is {largest}: pass min_batch={largest}, and accumulate gradients over several batches"
    if largest is None:
        told = "no smaller size ran either: free memory, or take a smaller model or another optimizer"
    return UnavailableError(f"min_batch={state.sizes.min_batch} does not fit in {limit}: {why}; {told}")
