"""Short steps are watched in bursts; what lies between them is no part of what was seen."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from threading import get_ident
from typing import Any

import pytest

from fulltilt.launch.command import parse
from fulltilt.launch.job import Job
from fulltilt.launch.observe import observe
from fulltilt.launch.watch.watch import Watch
from fulltilt.measure.bursts import BURST, FIRST
from fulltilt.measure.timeline import FORWARD, Timeline

OPTIMIZER = object()


class Clock:
    now = 0

    def __call__(self) -> int:
        return self.now


class Gpu:
    def __init__(self) -> None:
        self.said: list[str] = []

    def pause(self) -> None:
        self.said.append("pause")

    def resume(self) -> None:
        self.said.append("resume")

    def step_ended(self, record: Any) -> None:
        pass


class Loop:
    """The hooks' part of a loop whose steps take `step_ms`."""

    def __init__(self, tmp_path: Path, **job: Any) -> None:
        self.clock = Clock()
        self.watch = Watch(Job(out=str(tmp_path), **job))
        self.watch.timeline = Timeline(self.clock)
        self.watch.group = (0, 1)
        self.watch.gpu = Gpu()

    def run(self, steps: int, *, step_ms: float, optimizer: object = OPTIMIZER) -> list[bool]:
        """Whether each step was watched."""
        watch, watched = self.watch, []
        for _ in range(steps):
            awake = watch.thread == get_ident()
            if awake:
                watch.timeline.enter(FORWARD)
            self.clock.now += round(step_ms * 1e6)
            if awake:
                watch.timeline.leave()
                watch.step_of(optimizer)
                watch.dozing.step_ended(watch)
            else:
                watch.dozing.passes_by(watch, optimizer)
            watched.append(awake)
        return watched


@pytest.fixture
def loop(tmp_path: Path) -> Loop:
    return Loop(tmp_path)


def test_the_first_steps_and_then_bursts(loop: Loop) -> None:
    watched = loop.run(3000, step_ms=1)
    assert all(watched[:FIRST])
    assert 2 * FIRST < sum(watched) < 3000 / 5
    bursts = "".join("█" if one else " " for one in watched[FIRST:]).split()
    assert {len(burst) for burst in bursts[:-1]} == {BURST}
    assert loop.watch.dozing.first_burst == FIRST
    assert loop.watch.dozing.passed_by == 3000 - sum(watched)


def test_only_watched_steps_have_a_record_and_each_its_own_time(loop: Loop) -> None:
    watched = loop.run(1000, step_ms=1)
    assert len(loop.watch.records) == sum(watched)
    assert {record.step_ns for record in loop.watch.records} == {1_000_000}


def test_long_steps_are_all_watched(loop: Loop) -> None:
    assert all(loop.run(500, step_ms=20))
    assert loop.watch.dozing.first_burst is None


@pytest.mark.parametrize("job", [{"full": True}, {"tie_draws": True}, {"mode": "replay"}])
def test_where_each_step_counts_all_are_watched(tmp_path: Path, job: dict[str, Any]) -> None:
    assert all(Loop(tmp_path, **job).run(500, step_ms=0.2))


def test_a_script_that_only_runs_pays_for_bursts_alone(tmp_path: Path) -> None:
    loop = Loop(tmp_path, full=True, lets_go=True)
    loop.watch.group = None  # nobody asks whether it is to stop
    watched = loop.run(3000, step_ms=1)
    assert 2 * FIRST < sum(watched) < 3000 / 5


def test_ranks_that_stop_together_watch_all_steps(loop: Loop) -> None:
    loop.watch.group = (0, 2)
    assert all(loop.run(500, step_ms=0.2))


def test_while_kernels_are_counted_nobody_dozes(loop: Loop) -> None:
    loop.watch.closed = 10
    assert all(loop.run(500, step_ms=0.2))


def test_the_gpus_clock_has_its_windows_within_bursts(loop: Loop) -> None:
    watched = loop.run(1000, step_ms=1)
    said = loop.watch.gpu.said
    assert said[:2] == ["pause", "resume"]
    assert len(said) == sum(one != after for one, after in pairwise(watched))


def test_modules_pass_through_meanwhile(loop: Loop) -> None:
    loop.run(FIRST, step_ms=1)
    assert loop.watch.sleeper == get_ident()
    assert loop.watch.inside
    loop.watch.dozing.wake(loop.watch)
    assert not loop.watch.inside
    assert loop.watch.thread == get_ident()


def test_an_optimizer_that_is_done_with_does_not_keep_it_asleep(loop: Loop) -> None:
    loop.run(FIRST, step_ms=1)
    assert loop.watch.sleeper
    loop.run(4 * FIRST, step_ms=1, optimizer=object())
    assert any(loop.run(8 * FIRST, step_ms=1, optimizer=object()))


def test_compiled_code_is_not_compiled_again_for_it(capfd: pytest.CaptureFixture[str]) -> None:
    script = Path(__file__).parents[1] / "scripts" / "compiled.py"
    seen = observe(parse([str(script), "150"]), echo=True, max_steps=1000)
    assert capfd.readouterr().out == "wrapped 1\nin place 1\nfunction 1\n"
    assert any("were watched, in bursts" in note for note in seen.notes), seen.notes


SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(200, 4)), batch_size=4)
for epoch in range(200):
    for (batch,) in loader:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
"""


def test_a_script_of_short_steps(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    seen = observe(parse([str(script)]))
    assert seen.ended == "steps"
    assert seen.steps[-1].number == 199  # as many as ever
    (said,) = (note for note in seen.notes if "were watched, in bursts" in note)
    watched = int(said.split(" were watched")[0].split()[-1])
    left = watched - len(seen.steps)  # the latter is what a diagnosis shows as watched
    assert left > 0
    assert said.endswith(f"; the first {left} of those watched are warm-up, and in no figure")
    assert 0 < len(seen.first_losses) < 200  # those one after the other from the first on
    spent = seen.steps[-1].started + seen.steps[-1].seconds - seen.steps[0].started
    assert sum(step.seconds for step in seen.steps) < 0.7 * spent
    for step in seen.steps:
        assert sum(step.phases.values()) == pytest.approx(step.seconds)
        assert step.samples == 4
    (loader,) = seen.loaders
    assert loader.role == "train"
    assert seen.training is not None
    assert seen.training.accumulation == 1
