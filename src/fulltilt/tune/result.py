"""A batch size that knows how it came about."""

from __future__ import annotations

from collections.abc import Sequence

from fulltilt.machine.decision import Decision
from fulltilt.tune.policy import Trial
from fulltilt.words import GIB, amount


class BatchSize(int):
    """The chosen size: a plain number wherever one is wanted, with `decision` and `trials` beside it."""

    decision: Decision[int]
    """The size, why it was chosen, and the figures behind it."""
    trials: tuple[Trial, ...]
    """Every size that was run, in the order of their size."""

    @classmethod
    def of(cls, decision: Decision[int], trials: Sequence[Trial]) -> BatchSize:
        chosen = cls(decision.value)
        chosen.decision, chosen.trials = decision, tuple(sorted(trials, key=lambda trial: trial.size))
        return chosen

    @property
    def reason(self) -> str:
        return self.decision.reason

    def table(self) -> str:
        """Size, memory and samples/s of each trial, the chosen one marked."""
        evidence = self.decision.evidence
        limit = evidence["limit_bytes"]
        lines = [
            f"memory: {evidence['room_bytes'] / GIB:.2f} GiB, of which {limit / GIB:.2f} GiB may be used",
            f"{'batch size':>12}{'memory':>14}{'samples/s':>14}",
        ]
        lines += [_row(trial, limit, chosen=trial.size == self) for trial in self.trials]
        return "\n".join([*lines, f"batch size {int(self)}: {self.reason}"])


def _row(trial: Trial, limit_bytes: int, *, chosen: bool) -> str:
    if trial.memory_bytes is None:
        return f"{trial.size:>12}{'–':>14}{'–':>14}  {trial.problem}"
    rate = trial.samples_per_second
    figures = f"{trial.memory_bytes / GIB:>10.2f} GiB{'–' if rate is None else amount(rate):>14}"
    mark = "  ← chosen" if chosen else "  over the limit" if trial.memory_bytes > limit_bytes else ""
    return f"{trial.size:>12}{figures}{mark}"
