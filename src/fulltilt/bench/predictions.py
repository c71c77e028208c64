"""What a diagnosis predicts, beside what its fix gives: scripts with one planted cause each.

    folder/name.py         the script: diagnosed, its first finding's gain is the forecast
    folder/fixed/name.py   the same script, mended; where there is none, the finding's settings are put upon it

Both are run by turns, several times, because a machine that others use is not the same a minute later; once each in a
single round, for one that is ours alone. Compared is the time of a step with all that lies between the steps. Points
are of that time: a forecast that 60 % of it are saved, where 70 % were, is 10 points off; gains themselves have no
upper end (from 16 to 18 times is 200 points).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fulltilt.bench.ground import machine_facts, now
from fulltilt.bench.target import Target, in_json
from fulltilt.errors import InputError

ALLOWED_POINTS = 15.0
_MAKES_GROUP = "init_process_group"
"""A script that does is run by two ranks."""
_WATCH: dict[str, Any] = {"max_steps": 120, "max_seconds": 5.0, "deadline_seconds": 120.0}
_LIMITS: dict[str, Any] = {"max_steps": 60, "max_seconds": 4.0, "deadline_seconds": 120.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    script: str
    cause: str | None
    """Of the first finding; None where there is none."""
    predicted: float | None
    """Gain; None where none can be predicted."""
    measured: float | None
    """After the fix."""
    rounds: int = 0
    facts: dict[str, float | None] = field(default_factory=dict)
    """What the forecast was made of, in the last round: milliseconds of a step, and kernels launched in it."""

    @property
    def points(self) -> float | None:
        """How far apart, in percent of the step's time."""
        if self.predicted is None or self.measured is None:
            return None
        return 100 * abs(1 / (1 + self.predicted) - 1 / (1 + self.measured))

    @property
    def targets(self) -> tuple[Target, ...]:
        """None where nothing was predicted, or nothing mended."""
        if self.points is None:
            return ()
        return (Target(figure="points", wanted=ALLOWED_POINTS, found=self.points, at_most=True, unit=" points"),)


def scripts_in(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.py"))


def measure(folder: Path, *, names: Sequence[str] = (), rounds: int = 3) -> Iterator[Forecast]:
    """One for each script of the folder, or for those named."""
    found = scripts_in(folder)
    missing = sorted(set(names) - set(found))
    if missing or not found:
        raise InputError(
            f"{folder}: no script {', '.join(missing) or 'at all'}; there are {', '.join(found) or 'none'}"
        )
    return (_forecast(folder, name, rounds) for name in names or found)


def _forecast(folder: Path, name: str, rounds: int) -> Forecast:
    from fulltilt.diagnose import diagnose
    from fulltilt.launch.command import Command
    from fulltilt.launch.observe import observe, observe_all

    script, twin = folder / f"{name}.py", folder / "fixed" / f"{name}.py"
    processes = 2 if _MAKES_GROUP in script.read_text() else None
    command = Command(target=str(script), processes=processes)
    predicted: list[float | None] = []
    causes: list[str | None] = []
    ratios: list[float] = []
    for _ in range(rounds):
        ranks = observe_all(command, then=() if processes else ("replay", "loader"), **_WATCH)
        seen = ranks[0]
        fed = bool(seen.loaders) and processes is None
        replay = seen.replayed or observe(command, mode="replay", **_LIMITS) if fed else None
        diagnosis = diagnose(seen, replay=replay, loader=seen if fed else None, ranks=ranks if processes else ())
        first = diagnosis.findings[0] if diagnosis.findings else None
        causes.append(None if first is None else first.cause)
        predicted.append(None if first is None else first.gain)
        if first is None or not (twin.exists() or first.settings):
            continue
        settings = {} if twin.exists() else dict(first.settings)
        mended = Command(target=str(twin), processes=processes) if twin.exists() else command
        fixed = observe(mended, settings=settings, **_WATCH)
        as_is = [_whole(seen)]
        if rounds > 1:
            as_is.append(_whole(observe(command, **_WATCH)))
        ratios.append(statistics.fmean(as_is) / _whole(fixed))
    known = [one for one in predicted if one is not None]
    return Forecast(
        script=name,
        cause=statistics.mode(causes),
        predicted=statistics.median(known) if known else None,
        measured=statistics.median(ratios) - 1 if ratios else None,
        rounds=rounds,
        facts=_facts(seen),
    )


def _facts(seen: Any) -> dict[str, float | None]:
    from fulltilt.diagnose.figures import Figures
    from fulltilt.diagnose.finding import Limits

    figures = Figures(observation=seen, limits=Limits(step=None, loader=None))
    training = seen.training
    found = [("step", figures.step), ("busy", figures.gpu_busy), *figures.phases.items()]
    told: dict[str, float | None] = {name: None if value is None else round(value * 1e3, 4) for name, value in found}
    return {**told, "launches": None if training is None else training.launches}


def _whole(seen: Any) -> float:
    from fulltilt.diagnose.figures import Figures
    from fulltilt.diagnose.finding import Limits

    return Figures(observation=seen, limits=Limits(step=None, loader=None)).whole


def as_line(one: Forecast) -> str:
    told = " ".join(
        f"{name} {'—' if gain is None else f'{gain:+.0%}'}"
        for name, gain in (("predicted", one.predicted), ("measured", one.measured))
    )
    return f"{one.script:20} {one.cause or 'no finding':18} {told}"


def to_json(forecasts: Sequence[Forecast]) -> dict[str, Any]:
    return {
        "machine": machine_facts({}),
        "date": now(),
        "cases": [{**asdict(one), "points": one.points, "targets": in_json(one.targets)} for one in forecasts],
    }
