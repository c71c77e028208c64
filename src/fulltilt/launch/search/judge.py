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
from fulltilt.launch.search import verify_semantic
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
    """Keeps what it has seen: of settings given up one after the other, the script as it is runs once a level."""

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
        judged = self._judged(settings, level)
        if judged.holds and self._of(settings, level).failed and not self._of({}, level).failed:
            reason = (
                f"with the settings the script failed after {len(judged.curves.after)} losses, as it is it does not"
            )
            return replace(judged, holds=False, reason=reason)
        return judged

    def _judged(self, settings: Mapping[str, Any], level: Level) -> Verdict:
        if level == "semantic":
            self._make(level, ({}, _SEED), (settings, _SEED), ({}, _SEED + 1))
            compared = self._of({}, level), self._of(settings, level), self._of({}, level, seed=_SEED + 1)
            return verify_semantic.verdict(*compared, larger_batch="loader.batch_size" in settings)
        nudge = roundings(settings)
        nudges = [{"verify.nudge": by} for by in (nudge, -nudge)]
        self._make(level, ({}, _SEED), (settings, _SEED), *([(nudges[0], _SEED)] if level == "numeric" else []))
        before, after = self._of({}, level).losses, self._of(settings, level).losses
        if level == "exact":
            again = () if is_same(before, after) else self._of({}, level, again=True).losses
            return verdict(level, before, after, again=again)
        found = verdict(level, before, after, nudged=[self._of(nudges[0], level).losses])
        if found.holds or found.step is None:
            return found
        return verdict(level, before, after, nudged=[self._of(one, level).losses for one in nudges])

    def _of(
        self, settings: Mapping[str, Any], level: Level, *, again: bool = False, seed: int = _SEED, **options: Any
    ) -> Run:
        """Exact runs drop what torch does: to the last bit is said of the script as it will be run."""
        dropout = level == "numeric"
        key = repr((sorted(settings.items()), dropout, again, seed))
        if key not in self._known:
            seen = self._run(settings=settings, seed=seed, tie_draws=True, tie_dropout=dropout, **options)
            failed = seen.ended in ("failed", "killed")
            self.late = self.late or (seen.ended == "time" and len(seen.first_losses) < LEAST_STEPS)
            self._known[key] = Run(losses=seen.first_losses[: self.steps], inputs=seen.first_inputs, failed=failed)
        return self._known[key]

    def _make(self, level: Level, *wanted: tuple[Mapping[str, Any], int]) -> None:
        """These runs, settings and seed of each, at the same time; where there is no room, whoever asks makes them."""
        if not self._side_by_side:
            return
        broken_off = threading.Event()

        def go_on(*_: Any) -> None:
            if broken_off.is_set():
                raise InterruptedError("the comparison was broken off")

        with ended_tidily(), ThreadPoolExecutor(len(wanted)) as pool:
            runs = [pool.submit(self._of, settings, level, seed=seed, on_progress=go_on) for settings, seed in wanted]
            try:
                done, _ = wait(runs, return_when=FIRST_EXCEPTION)
                for run in done:
                    run.result()
            except BaseException:  # Ctrl-C: the threads end what they have started
                broken_off.set()
                raise


def has_room(seen: Observation, cores: int) -> bool:
    """Whether a few of it may run at the same time: on a GPU, with memory and cores enough."""
    around, training = seen.surroundings, seen.training
    if training is None or not training.device.startswith("cuda") or around is None or cores < _CORES:
        return False
    used, total = around.gpu_memory_bytes, around.gpu_memory_total_bytes
    return used is not None and total is not None and used <= _GPU_SHARE * total
