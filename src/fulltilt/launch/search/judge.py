"""Whether settings leave a script's training as it was: runs of it from the same seed, before and after, compared.

The rules are verify.py's and verify_semantic.py's; here is which runs they need, and when those are made. Nobody times
them, so on a GPU with room for several they go on at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

from fulltilt.diagnose.finding import Level
from fulltilt.launch.ending import ended_tidily
from fulltilt.launch.search import lines, redrawn, verify_semantic
from fulltilt.launch.search.candidates import level_of
from fulltilt.launch.search.verify import LEAST_STEPS, Verdict, is_same, roundings, verdict
from fulltilt.launch.search.verify_semantic import Run
from fulltilt.measure.observation import Observation

_SIDE_BY_SIDE = 1.5
"""Runs side by side take so many times as long as one."""
_CORES = 8
_GPU_SHARE = 0.2
"""Of the GPU's memory, one of them needs at the most."""
_SEED = 20_000_003


class Judge:
    """Keeps what it has seen: of settings given up one after the other, the script as it is runs once for each kind of
    dropout."""

    def __init__(self, run: Callable[..., Observation], *, steps: int, side_by_side: bool) -> None:
        """
        Args:
            run: observes the script with `settings`, `seed` and other options of `observe`.
            steps: as many losses are compared.
        """
        self._run, self.steps, self._side_by_side = run, steps, side_by_side
        self.late = False
        """A run had no time for losses enough: what was judged by it may be judged otherwise another time."""
        self._known: dict[str, Run] = {}

    def runs(self, *, exact: bool) -> float:
        """How many runs, one after the other, a judgement takes the time of."""
        return _SIDE_BY_SIDE if self._side_by_side else 2 if exact else 3

    def __call__(self, settings: Mapping[str, Any]) -> Verdict:
        level = level_of(settings)
        # Elsewhere torch's own is compared: it drops the same, and attention keeps the kernels that it will run with.
        tied = level == "numeric" and redrawn.draws_others(settings)
        wanted = _wanted(settings, level)
        self._make(tied, *wanted)
        untied = self._lost_for_that([one for one, _ in wanted]) if tied else None
        if untied is not None:
            tied = False
            self._make(tied, *wanted)
        judged = self._failed(self._judged(settings, level, tied=tied), settings, tied=tied)
        if untied is not None:
            lost = f"failed ({untied.words})" if untied.failed else "was too slow"
            own = f"dropout was torch's own: with it tied to the seed the script {lost}"
            return replace(judged, reason=f"{judged.reason}; {own}")
        compared = self._of({}, tied=tied), self._of(settings, tied=tied)
        return replace(judged, draws=any(one.draws for one in compared))

    def _judged(self, settings: Mapping[str, Any], level: Level, *, tied: bool) -> Verdict:
        as_is, after = self._of({}, tied=tied), self._of(settings, tied=tied)
        if level == "semantic":
            other = self._of({}, tied=tied, seed=_SEED + 1)
            return verify_semantic.verdict(as_is, after, other, larger_batch="loader.batch_size" in settings)
        if level == "exact":
            same = is_same(as_is.losses, after.losses)
            again = () if same else self._of({}, tied=tied, again=True).losses
            return verdict(level, as_is.losses, after.losses, again=again)
        nudges = _nudges(settings)
        nudged = self._of(nudges[0], tied=tied).losses
        found = verdict(level, as_is.losses, after.losses, nudged=[nudged])
        if found.holds or found.step is None:
            return found
        return verdict(level, as_is.losses, after.losses, nudged=[nudged, self._of(nudges[1], tied=tied).losses])

    def _failed(self, judged: Verdict, settings: Mapping[str, Any], *, tied: bool) -> Verdict:
        """The verdict, where runs have failed."""
        as_is, after = self._of({}, tied=tied), self._of(settings, tied=tied)
        if judged.holds and after.failed and not as_is.failed:
            losses = f"{len(judged.curves.after)} losses"
            reason = f"with the settings the script failed after {losses} ({after.words}), as it is it does not"
            return replace(judged, holds=False, reason=reason)
        if judged.holds or judged.step is not None or not (as_is.failed or after.failed):
            return judged
        failed, whose = (as_is, "as it is") if as_is.failed else (after, "with the settings")
        return replace(judged, reason=f"{judged.reason}; {whose} the script failed ({failed.words})")

    def _lost_for_that(self, wanted: list[Mapping[str, Any]]) -> Run | None:
        """A run that failed or was too slow because dropout was tied: the same with torch's own goes on. Attention is
        done stepwise then, which takes the memory of its scores and the time for them."""
        for one in wanted:
            tied = self._of(one, tied=True)
            if tied.failed and self._side_by_side:  # each by itself may have the memory that all of them had not
                tied = self._known[_key(one, tied=True)] = self._of(one, tied=True, again=True)
            if tied.failed or tied.late:
                own = self._of(one, tied=False)
                lost = own.failed or own.late
                return tied if not lost or len(own.losses) > len(tied.losses) else None
        return None

    def _of(
        self, settings: Mapping[str, Any], *, tied: bool, again: bool = False, seed: int = _SEED, **options: Any
    ) -> Run:
        key = _key(settings, tied=tied, again=again, seed=seed)
        if key not in self._known:
            seen = self._run(settings=settings, seed=seed, tie_draws=True, tie_dropout=tied, **options)
            failed = seen.ended in ("failed", "killed")
            late = seen.ended == "time" and len(seen.first_losses) < LEAST_STEPS
            self.late = self.late or late
            self._known[key] = Run(
                losses=seen.first_losses[: self.steps],
                inputs=seen.first_inputs,
                failed=failed,
                late=late,
                words=lines.last_words(seen) if failed else "",
                draws=seen.draws,
            )
        return self._known[key]

    def _make(self, tied: bool, *wanted: tuple[Mapping[str, Any], int]) -> None:
        """These runs, settings and seed of each, at the same time; where there is no room, whoever asks makes them."""
        if not self._side_by_side:
            return
        broken_off = threading.Event()

        def go_on(*_: Any) -> None:
            if broken_off.is_set():
                raise InterruptedError("the comparison was broken off")

        with ended_tidily(), ThreadPoolExecutor(len(wanted)) as pool:
            runs = [pool.submit(self._of, one, tied=tied, seed=seed, on_progress=go_on) for one, seed in wanted]
            try:
                done, _ = wait(runs, return_when=FIRST_EXCEPTION)
                for run in done:
                    run.result()
            except BaseException:  # Ctrl-C: the threads end what they have started
                broken_off.set()
                raise


def _key(settings: Mapping[str, Any], *, tied: bool, again: bool = False, seed: int = _SEED) -> str:
    return repr((sorted(settings.items()), tied, again, seed))


def _wanted(settings: Mapping[str, Any], level: Level) -> list[tuple[Mapping[str, Any], int]]:
    """The runs, and the seed of each, that a judgement needs whatever they show."""
    wanted: list[tuple[Mapping[str, Any], int]] = [({}, _SEED), (settings, _SEED)]
    if level == "exact":
        return wanted
    return [*wanted, ({}, _SEED + 1) if level == "semantic" else (_nudges(settings)[0], _SEED)]


def _nudges(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    nudge = roundings(settings)
    return [{"verify.nudge": by} for by in (nudge, -nudge)]


def has_room(seen: Observation, cores: int) -> bool:
    """Whether a few of it may run at the same time: on a GPU, with memory and cores enough."""
    around, training = seen.surroundings, seen.training
    if training is None or not training.device.startswith("cuda") or around is None or cores < _CORES:
        return False
    used, total = around.gpu_memory_bytes, around.gpu_memory_total_bytes
    return used is not None and total is not None and used <= _GPU_SHARE * total
