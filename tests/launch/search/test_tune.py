"""From a script to a plan, with a simulated script: what is tried, verified, rolled back, left alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from fulltilt.diagnose.finding import Level
from fulltilt.launch.command import Command
from fulltilt.launch.job import FULL, NO_ROOM
from fulltilt.launch.search.plan import Key
from fulltilt.launch.search.tune import NotTuned, Tuned, Tuner
from fulltilt.measure.observation import Loader, Observation, Phase, Step, Surroundings, Training

KEY = Key(command=("train.py",), content="", hardware="none", versions={})


class Script:
    """A loop whose loader takes 20 ms per batch and worker, and whose step takes 4 ms."""

    generator: str | None = None
    remembers: str | None = None
    draws: bool | None = False
    samples: int | None = 8
    """Of a step."""

    def __init__(
        self,
        *,
        broken: Mapping[str, float] | None = None,
        wait: float = 0.020,
        drifts: bool = False,
        start: float = 2.0,
    ) -> None:
        self.broken = dict(broken or {})
        """Settings that change the losses, and by how much."""
        self.wait, self.drifts, self.start = wait, drifts, start
        self.now = 0.0
        self.asked: list[dict[str, Any]] = []
        self.step = 0.004

    def observe(self, command: Command, **options: Any) -> tuple[Observation, ...]:
        settings = dict(options.get("settings") or {})
        self.asked.append({**options, "settings": settings})
        mode = options.get("mode", "as is")
        workers = settings.get("loader.num_workers", 0)
        feeding = 0.0 if mode == "replay" else self.wait / max(workers, 1)
        step = self.step * (0.7 if settings.get("fused") else 1.0) * (0.5 if settings.get("autocast") else 1.0)
        waits = max(0.0, feeding - step) if workers else feeding
        count = min(options.get("max_steps", 200), 200, round(options.get("max_seconds", 9.0) / (step + waits)))
        self.now += self.start + count * (step + waits)
        phases: dict[Phase, float] = {
            "data wait": waits,
            "forward": step / 2,
            "backward": step / 4,
            "optimizer": step / 4,
        }
        if step + waits == 0:
            raise AssertionError
        steps = tuple(
            Step(
                number=at,
                started=self.start + at * (step + waits),
                seconds=step + waits,
                phases=phases,
                samples=self.samples,
            )
            for at in range(count)
        )
        loader = Loader(
            role="train", place=None, dataset="Files", samples=80_000, batch_size=8, num_workers=workers,
            prefetch_factor=2 if workers else None, persistent_workers=False, pin_memory=False, batch_bytes=100,
            samples_per_second=8 / feeding if mode == "loader" and feeding else None, generator=self.generator,
            remembers=self.remembers,
            draws=self.draws,
        )  # fmt: skip
        training = Training(
            model="Net", parameters=1000, dtype="float32", device="cpu", images=False, channels_last=False,
            compiled=False, autocast=None, tf32=False, cudnn_benchmark=False, optimizer="Adam", fused=False,
            foreach=False,
        )  # fmt: skip
        seen = Observation(
            command=("train.py",), mode=mode, applied=settings, ended="steps", seconds=3.0, steps=steps,
            loaders=(loader,), training=training, surroundings=Surroundings(cores=4, cpu_share=0.3),
            first_losses=self.losses(settings, count),
        )  # fmt: skip
        return (seen,)

    def losses(self, settings: Mapping[str, Any], count: int) -> tuple[float, ...]:
        off = sum(self.broken.get(name, 0.0) for name in settings)
        nudge = settings.get("verify.nudge", 0.0)
        run = len(self.asked) * 1e-9 if self.drifts else 0.0
        return tuple(2.0 * 0.98**at * (1 + off) * (1 + nudge * at / 10) + run for at in range(count))


def tuned(
    script: Script, level: Level = "numeric", seconds: float = 180.0, said: list[str] | None = None
) -> Tuned | NotTuned:
    said = [] if said is None else said
    found = Tuner(
        command=Command(target="train.py"), key=KEY, level=level, cores=4, seconds=seconds, observe=script.observe,
        clock=lambda: script.now, say=said.append,
    ).tune()  # fmt: skip
    assert said or isinstance(found, NotTuned)
    return found


@pytest.mark.parametrize(("samples", "unit"), [(8, "samples/s"), (None, "steps/s")])
def test_rates_are_called_what_they_count(samples: int | None, unit: str) -> None:
    script, said = Script(), list[str]()
    script.samples = samples
    tuned(script, said=said)
    rates = [line for line in said if "/s" in line]
    assert rates[0].startswith("as it is ")
    assert any(line.startswith("tried ") for line in rates)
    assert all(unit in line for line in rates)


def test_what_only_an_edit_can_mend_is_said() -> None:
    script, said = Script(), list[str]()
    script.generator = "Photos.rng"
    found = tuned(script, "exact", said=said)
    assert isinstance(found, Tuned)
    assert not found.plan.settings
    assert "an edit of the script is: " in said[-1]
    assert "DataLoader(…, num_workers=4, persistent_workers=True), with Photos.rng seeded anew" in said[-1]


def test_workers_that_would_keep_samples_each_are_left_alone_and_that_is_said() -> None:
    script, said = Script(), list[str]()
    script.remembers = "Photos.cache"
    found = tuned(script, said=said)
    assert isinstance(found, Tuned)
    assert "loader.num_workers" not in found.plan.settings
    (told,) = (line for line in said if "Photos.cache" in line)
    assert told.startswith("the number of workers is left alone: Photos.cache grows with the samples")


def test_workers_are_found_verified_and_planned() -> None:
    script = Script()
    found = tuned(script, "exact")
    assert isinstance(found, Tuned)
    plan = found.plan
    assert plan.settings["loader.num_workers"] >= 2
    assert plan.before is not None
    assert plan.after is not None
    assert plan.limit is not None
    assert plan.after > 2 * plan.before
    assert plan.before == float(f"{plan.before:.5g}"), "no more digits than were measured"
    assert "to the last bit" in plan.verified
    assert script.now <= 180
    compared = [one for one in script.asked if one.get("tie_draws")]
    assert len(compared) == 2, "as it is, and with the plan"
    assert len({one["seed"] for one in compared}) == 1


def test_where_samples_draw_workers_are_left_out_at_exact_and_told_of_at_numeric() -> None:
    script, said = Script(), list[str]()
    script.draws = True
    found = tuned(script, "exact", said=said)
    assert isinstance(found, Tuned)
    assert not found.plan.settings
    assert not any("loader.num_workers" in one["settings"] for one in script.asked)
    (left,) = found.plan.notes
    assert left in said
    assert "left out at level exact: its samples draw random numbers" in left
    said.clear()
    found = tuned(script, "numeric", said=said)
    assert isinstance(found, Tuned)
    assert found.plan.settings["loader.num_workers"] >= 2
    assert not found.plan.notes
    assert "loader.undrawn" not in found.plan.settings
    assert "to the last bit, with each sample's random draws fixed; in the run itself" in found.plan.verified
    assert found.after is not None
    assert found.after.verified == found.plan.verified
    assert found.plan.draws_anew
    assert f"verified: {found.plan.verified}" in said


def test_where_the_model_draws_what_it_does_not_draw_in_the_run_itself_it_is_said() -> None:
    class Draws(Script):
        def observe(self, command: Command, **options: Any) -> tuple[Observation, ...]:
            (seen,) = super().observe(command, **options)
            assert seen.training is not None
            on_gpu = replace(seen.training, device="cuda:0", kernel_seconds=0.003, launches=10)
            return (replace(seen, training=on_gpu, draws=bool(options.get("tie_dropout"))),)

    found = tuned(Draws(wait=0.0))
    assert isinstance(found, Tuned)
    assert found.plan.settings.get("autocast")
    assert "random draws within the model were tied to the seed" in found.plan.verified


def test_where_nothing_is_drawn_exact_workers_are_those_of_the_loaders_that_were_seen() -> None:
    script = Script()
    found = tuned(script, "exact")
    assert isinstance(found, Tuned)
    assert found.plan.settings["loader.undrawn"] == ["? Files 80000"]
    assert found.plan.verified == "all 40 losses are the same, to the last bit"
    with_workers = [one["settings"] for one in script.asked if "loader.num_workers" in one["settings"]]
    assert all("loader.undrawn" in one for one in with_workers), "trials and comparisons are of what is run"


def test_a_loader_that_was_measured_with_the_script_as_it_is_is_not_measured_again() -> None:
    class Both(Script):
        def observe(self, command: Command, **options: Any) -> tuple[Observation, ...]:
            (seen,) = super().observe(command, **options)
            rate = 400.0 if "loader" in options.get("then", ()) else None
            return (replace(seen, loaders=tuple(replace(one, samples_per_second=rate) for one in seen.loaders)),)

    script = Both()
    found = tuned(script, "exact")
    assert isinstance(found, Tuned)
    assert found.diagnosis.limits.loader == 400.0
    assert not [one for one in script.asked if one.get("mode") == "loader"]


def test_limits_that_were_measured_behind_the_steps_start_nothing_anew() -> None:
    """Neither the script's own, nor the plan's: its trial has told it."""

    class Behind(Script):
        def observe(self, command: Command, **options: Any) -> tuple[Observation, ...]:
            (seen,) = super().observe(command, **options)
            if "replay" not in options.get("then", ()):
                return (seen,)
            short = (replace(step, seconds=step.seconds - step.phases["data wait"]) for step in seen.steps)
            return (replace(seen, again=tuple(short)),)

    script = Behind()
    found = tuned(script)
    assert isinstance(found, Tuned)
    assert found.plan.settings["fused"]
    assert found.diagnosis.limits.step == pytest.approx(8 / 0.004)
    assert found.plan.limit == pytest.approx(8 / (0.7 * 0.004), rel=1e-4), "faster than the script's own"
    assert not [one for one in script.asked if one.get("mode") == "replay"]


def test_a_limit_below_what_was_reached_is_taken_again() -> None:
    """The machine was busy with something else until the trials began."""

    class Busy(Script):
        def observe(self, command: Command, **options: Any) -> tuple[Observation, ...]:
            self.step = 0.030 if len(self.asked) < 3 else 0.004
            return super().observe(command, **options)

    script = Busy()
    found = tuned(script, "exact")
    assert isinstance(found, Tuned)
    assert found.after is not None
    assert found.diagnosis.limits.step is not None
    assert found.diagnosis.limits.step < found.after.samples_per_second, "as it was first measured"
    assert found.after.limit is not None
    assert found.after.limit >= found.after.samples_per_second
    assert found.after.before == found.plan.before


def test_what_was_faster_only_because_the_machine_was_is_not_kept_and_both_figures_are_told() -> None:
    """Others had it while the script was watched; nothing that is tried makes any difference."""

    class Shared(Script):
        def observe(self, command: Command, **options: Any) -> tuple[Observation, ...]:
            busy = len(self.asked) < 3
            self.step, self.wait = (0.024, 0.048) if busy else (0.004, 0.008)
            settings = {name: value for name, value in (options.get("settings") or {}).items() if busy}
            (seen,) = super().observe(command, **{**options, "settings": settings})
            return (replace(seen, applied=dict(options.get("settings") or {})),)

    said: list[str] = []
    found = tuned(Shared(), "exact", said=said)
    assert isinstance(found, Tuned)
    assert "+500 %" in found.trials[0].reason
    assert found.plan.settings == {}
    assert any(line.startswith("as it is, beside the trials: ") for line in said)
    said = []
    tuned(Script(), "exact", said=said)
    assert not any("beside the trials" in line for line in said)


def test_a_setting_that_changes_the_losses_is_rolled_back_and_said() -> None:
    found = tuned(Script(broken={"loader.num_workers": 1e-7}), "exact")
    assert isinstance(found, Tuned)
    assert "loader.num_workers" not in found.plan.settings
    assert any("rolled back" in trial.reason for trial in found.trials)
    assert found.losses is not None
    assert found.losses.before != found.losses.after


def test_a_script_that_leaves_with_a_status_of_its_own_may_do_so_in_trials() -> None:
    class Leaves(Script):
        def observe(self, command: Command, **options: Any) -> tuple[Observation, ...]:
            (seen,) = super().observe(command, **options)
            return (replace(seen, ended="script", exit_status=3),)

    script = Leaves()
    assert isinstance(tuned(script, "exact"), Tuned)
    assert {one.get("own_status") for one in script.asked[1:]} == {3}


def test_what_is_gone_back_to_and_does_not_work_is_said() -> None:
    class Fails(Script):
        def observe(self, command: Command, **options: Any) -> tuple[Observation, ...]:
            judged = any(one.get("tie_draws") for one in self.asked)
            (seen,) = super().observe(command, **options)
            fails = judged and options.get("settings") and not options.get("tie_draws")
            return (replace(seen, ended="failed", exit_status=3) if fails else seen,)

    works = tuned(Script(broken={"fused": 0.5}))
    assert isinstance(works, Tuned)
    assert works.plan.settings
    assert "fused" not in works.plan.settings
    fails = tuned(Fails(broken={"fused": 0.5}))
    assert isinstance(fails, Tuned)
    assert not fails.plan.settings
    assert [trial.reason for trial in fails.trials[-2:]] == [fails.plan.verified, "failed (exit status 3)"]


def test_what_is_gone_back_to_is_held_against_the_script_as_it_is_beside_it() -> None:
    """Without `fused`, whose losses are off, workers are left, which still pay; on the way back each has a pair."""
    script = Script(broken={"fused": 0.5})
    found = tuned(script)
    assert isinstance(found, Tuned)
    assert found.plan.settings.get("loader.num_workers")
    judged = next(at for at, one in enumerate(script.asked) if one.get("tie_draws"))
    trials = [one["settings"] for one in script.asked[judged:] if not one.get("tie_draws")]
    assert trials[0]
    assert {} in trials, "the script as it is, once more"


def test_a_plan_is_not_given_up_for_good_where_the_time_was_the_reason() -> None:
    class Late(Script):
        """Settings that are judged bad, and no time for what they are to be replaced by."""

        def observe(self, command: Command, **options: Any) -> tuple[Observation, ...]:
            judged = any(one.get("tie_draws") for one in self.asked)
            (seen,) = super().observe(command, **options)
            late = judged and options.get("settings") and not options.get("tie_draws")
            return (replace(seen, ended="time", steps=()) if late else seen,)

    found = tuned(Late(broken={"fused": 0.5}))
    assert isinstance(found, Tuned)
    assert not found.plan.settings
    assert not found.complete


def test_losses_that_came_too_late_are_no_verdict_for_good() -> None:
    class Late(Script):
        def observe(self, command: Command, **options: Any) -> tuple[Observation, ...]:
            (seen,) = super().observe(command, **options)
            if options.get("tie_draws"):
                seen = replace(seen, ended="time", first_losses=seen.first_losses[:3])
            return (seen,)

    found = tuned(Late())
    assert isinstance(found, Tuned)
    assert not found.plan.settings
    assert "3 were seen" in found.plan.verified
    assert not found.complete


@pytest.mark.parametrize("step", [0.3, 0.6, 1.0])
def test_long_steps_are_tuned_too(step: float) -> None:
    """As many of them as a rate needs, in each trial."""
    script = Script(wait=step)
    script.step = step
    found = tuned(script, "exact", seconds=300.0)
    assert isinstance(found, Tuned)
    assert found.plan.settings.get("loader.num_workers")
    assert script.now <= 300.0 * 1.1


def test_steps_for_which_the_time_is_too_short_are_told_which_would_do() -> None:
    late_script = Script(wait=1.5)
    late_script.step = 1.5
    late = tuned(late_script, "exact", seconds=180.0)
    assert isinstance(late, NotTuned)
    would_do = float(late.reason.split("--max-seconds ")[1].split()[0])
    script = Script(wait=1.5)
    script.step = 1.5
    found = tuned(script, "exact", seconds=would_do)
    assert isinstance(found, Tuned)
    assert found.plan.settings
    assert script.now <= would_do * 1.1


def test_a_script_that_never_repeats_itself_is_held_to_its_own_band() -> None:
    found = tuned(Script(drifts=True))
    assert isinstance(found, Tuned)
    assert found.plan.settings
    assert "band" in found.plan.verified


def test_no_headroom_no_change() -> None:
    script = Script(wait=0.0)
    found = tuned(script, "exact")
    assert isinstance(found, Tuned)
    assert found.plan.settings == {}
    assert found.after is None
    assert not found.trials, "nothing was even tried"


@pytest.mark.parametrize(("busy", "settled"), [(7.0, False), (1.1, True)])
def test_nothing_found_while_the_machine_was_busy_is_not_settled(busy: float, settled: bool) -> None:
    """Its step takes so many times its limit, and nothing was seen in its way."""

    class Busy(Script):
        def observe(self, command: Command, **options: Any) -> tuple[Observation, ...]:
            self.step = 0.004 * (busy if options.get("mode", "as is") == "as is" else 1.0)
            return super().observe(command, **options)

    said: list[str] = []
    found = tuned(Busy(wait=0.0), "exact", said=said)
    assert isinstance(found, Tuned)
    assert not found.plan.settings
    assert found.complete
    assert found.settled == settled
    assert any(line.startswith("No headroom") for line in said) == settled
    assert any("can't be told: the machine was busier" in line for line in said) != settled


@pytest.mark.parametrize(
    ("ended", "status", "last", "told"),
    [
        ("failed", 3, None, "exit status 3"),
        ("killed", -9, None, "signal SIGKILL"),
        ("failed", 1, "EOFError: EOF when reading a line", "exit status 1: EOFError: EOF when reading a line"),
    ],
)
def test_a_script_that_fails_is_not_tuned(ended: Any, status: int, last: str | None, told: str) -> None:
    class Failing(Script):
        def observe(self, command: Command, **options: Any) -> tuple[Observation, ...]:
            notes = () if last is None else ("its output ended with: input()", f"its output ended with: {last}")
            seen = Observation(command=("train.py",), ended=ended, seconds=1.0, exit_status=status, notes=notes)
            return (seen,)

    found = tuned(Failing())
    assert isinstance(found, NotTuned)
    assert found.reason == f"tried without standard input, train.py ended with an error ({told})"


def test_a_script_whose_files_are_too_large_to_be_copied_is_not_tuned_for_that_reason() -> None:
    class Large(Script):
        def observe(self, command: Command, **options: Any) -> tuple[Observation, ...]:
            notes = (f"its output ended with: OSError: [Errno 28] {NO_ROOM}: that takes 300.0 GB: '/data/all.bin'",)
            return (Observation(command=("train.py",), ended="failed", seconds=1.0, exit_status=1, notes=notes),)

    found = tuned(Large())
    assert isinstance(found, NotTuned)
    assert found.reason == f"it can't be tried ({NO_ROOM}: that takes 300.0 GB: '/data/all.bin')"


def test_a_script_that_has_filled_the_temporary_folder_is_not_tuned_for_that_reason() -> None:
    class Full(Script):
        def observe(self, command: Command, **options: Any) -> tuple[Observation, ...]:
            notes = ("its output ended with: RuntimeError: unexpected pos 704 vs 662", f"{FULL}: 0 B are left")
            return (Observation(command=("train.py",), ended="failed", seconds=1.0, exit_status=1, notes=notes),)

    found = tuned(Full())
    assert isinstance(found, NotTuned)
    assert found.reason == f"it can't be tried ({FULL}: 0 B are left)"


def test_three_steps_are_too_few() -> None:
    class Short(Script):
        def observe(self, command: Command, **options: Any) -> tuple[Observation, ...]:
            return super().observe(command, **{**options, "max_steps": 3})

    found = tuned(Short())
    assert isinstance(found, NotTuned)
    assert "3 training steps" in found.reason


@pytest.mark.parametrize("broken", [(), ("fused",), ("fused", "loader.num_workers")])
@pytest.mark.parametrize("start", [2.0, 12.0, 18.0, 20.0])
def test_the_time_is_kept_even_where_plans_are_rolled_back(start: float, broken: tuple[str, ...]) -> None:
    script = Script(start=start, broken=dict.fromkeys(broken, 0.5))
    assert isinstance(tuned(script, seconds=180.0), Tuned)
    assert script.now <= 180.0 * 1.1


def test_the_time_is_kept() -> None:
    for seconds in (40.0, 90.0, 180.0):
        script = Script()
        assert isinstance(tuned(script, seconds=seconds), Tuned)
        assert script.now <= seconds + 5
    late = tuned(Script(), seconds=12.0)
    assert isinstance(late, NotTuned)
    assert "too short for one trial" in late.reason


@pytest.mark.parametrize(("seconds", "modes"), [(60.0, ["as is"]), (92.0, ["as is", "replay"])])
def test_limits_that_take_runs_of_their_own_are_measured_within_the_time(seconds: float, modes: list[str]) -> None:
    """A start takes 28 s: each of them would, once more, and the loader's is the first to be left out."""
    script = Script(start=28.0)
    late = tuned(script, "exact", seconds)
    assert isinstance(late, NotTuned)
    assert "too short for one trial" in late.reason
    assert [one.get("mode", "as is") for one in script.asked] == modes
    assert script.asked[0]["deadline_seconds"] == 0.75 * seconds
    assert all(one["deadline_seconds"] <= seconds for one in script.asked)
    assert script.now <= seconds


@pytest.mark.parametrize("start", [1.0, 5.0, 10.0, 20.0])
def test_too_short_a_time_is_said_with_one_that_does(start: float) -> None:
    """What was seen until then is not lost; and what is said to do, does."""
    seconds = 2.2 * start + 8.0
    late = tuned(Script(start=start), "exact", seconds)
    assert isinstance(late, NotTuned)
    assert f"a trial takes {start + 6:.0f} s here" in late.reason
    assert late.diagnosis is not None
    assert late.diagnosis.findings
    would_do = float(late.reason.split("--max-seconds ")[1].split()[0])
    assert would_do > seconds
    script = Script(start=start)
    found = tuned(script, "exact", would_do)
    assert isinstance(found, Tuned)
    assert found.plan.settings
    assert script.now <= 1.1 * would_do


def test_steps_that_were_passed_by_are_no_start() -> None:
    """Of short steps only some are watched; the others' time is training, too, and no trial spends it again."""

    class Dozing(Script):
        def observe(self, command: Command, **options: Any) -> tuple[Observation, ...]:
            (seen,) = super().observe(command, **options)
            return (replace(seen, steps=seen.steps[::4]),)

    late = tuned(Dozing(start=5.0), "exact", 19.0)
    assert isinstance(late, NotTuned)
    assert "a trial takes 11 s here" in late.reason


def test_where_the_time_does_for_one_short_trial_the_largest_forecast_has_it() -> None:
    script = Script(start=8.0)
    found = tuned(script, seconds=60.0)
    assert isinstance(found, Tuned)
    assert set(found.plan.settings) == {"loader.num_workers", "loader.persistent_workers", "loader.keep_memory"}
    assert "to the last bit" in found.plan.verified
    trials = [one for one in script.asked if not one.get("tie_draws") and one.get("mode", "as is") == "as is"][1:]
    assert all(one["max_seconds"] < 6.0 for one in trials)
    assert [bool(one["settings"]) for one in trials] == [True, False], "and the script as it is beside it"
    assert script.now <= 1.1 * 60.0
    assert len(_settings(tuned(Script(start=8.0), seconds=180.0))) > 3, "with more time, others too"


def test_where_the_script_takes_too_long_to_its_own_end_nothing_is_settled_for_good() -> None:
    class Leaves(Script):
        def observe(self, command: Command, **options: Any) -> tuple[Observation, ...]:
            (seen,) = super().observe(command, **options)
            if options.get("full"):
                return (replace(seen, ended="time", exit_status=0),)
            return (replace(seen, ended="failed" if seen.applied else "stable", exit_status=3 if seen.applied else 0),)

    script = Leaves()
    found = tuned(script, "exact")
    assert not _settings(found)
    assert isinstance(found, Tuned)
    assert not found.complete
    (looked,) = (one for one in script.asked if one.get("full"))
    assert looked["deadline_seconds"] > 1.5 * (script.start + 200 * 0.024), "its 200 steps, as slow as they are"


@pytest.mark.parametrize(("alone", "raised", "kept"), [(3, False, True), (0, False, False), (3, True, False)])
def test_a_trial_that_comes_to_the_scripts_end_has_failed_only_if_the_script_ends_otherwise(
    alone: int, raised: bool, kept: bool
) -> None:
    """The script as it is was not watched so far: it is looked to its end once, and not again."""

    class Leaves(Script):
        def observe(self, command: Command, **options: Any) -> tuple[Observation, ...]:
            (seen,) = super().observe(command, **options)
            if options.get("full"):
                return (replace(seen, ended="script", exit_status=alone),)
            if not seen.applied or options.get("own_status") == 3:
                return (replace(seen, ended="script" if options.get("own_status") else "stable", exit_status=0),)
            return (replace(seen, ended="failed", exit_status=3, raised=raised),)

    script = Leaves()
    found = tuned(script, "exact")
    assert bool(_settings(found)) == kept
    assert len([one for one in script.asked if one.get("full")]) == (0 if raised else 1)


def test_a_compiler_that_does_not_come_to_an_end_does_not_take_the_time_of_the_others() -> None:
    class Compiling(Script):
        def observe(self, command: Command, **options: Any) -> tuple[Observation, ...]:
            settings = dict(options.get("settings") or {})
            if "compile" not in settings:
                (seen,) = super().observe(command, **options)
                assert seen.training is not None
                training = replace(seen.training, device="cuda:0", images=True, launches=900)
                return (replace(seen, training=training),)
            self.asked.append({**options, "settings": settings})
            self.now += options["deadline_seconds"]
            return (Observation(command=("train.py",), mode="as is", applied=settings, ended="time", seconds=1.0),)

    script = Compiling(wait=0.0005)
    found = tuned(script)
    assert isinstance(found, Tuned)
    tried = [one for one in script.asked if "compile" in one["settings"]]
    assert tried
    assert script.now <= 180
    assert "compile" not in found.plan.settings
    assert any(trial.reason == "not ready in time" for trial in found.trials)


class OnGpu(Script):
    """Four workers are busy with transforms that a GPU would do: without them a batch takes a quarter of the time."""

    def __init__(self, *, mean: float = 0.0) -> None:
        super().__init__(wait=0.200)
        self.mean = mean
        """Of the inputs that the GPU makes; the transforms' is 0."""

    def observe(self, command: Command, **options: Any) -> tuple[Observation, ...]:
        settings = dict(options.get("settings") or {})
        self.wait = 0.050 if settings.get("augment") else 0.200
        (seen,) = super().observe(command, **{**options, "settings": {"loader.num_workers": 4} | settings})
        noise = (options.get("seed") or 0) % 7 * 0.01
        assert seen.training is not None
        return (
            replace(
                seen,
                training=replace(seen.training, device="cuda:0", fused=True),
                loaders=tuple(
                    replace(one, augmentation="GPUAugmentation(…)", movable=("Crop",), persistent_workers=True)
                    for one in seen.loaders
                ),
                first_inputs=((self.mean if settings.get("augment") else 0.0, 1.0 + noise),) * 8,
                first_losses=tuple(loss + noise for loss in seen.first_losses),
            ),
        )


def test_another_training_is_tried_where_it_is_asked_for_and_held_to_another_seed() -> None:
    assert "augment" not in _settings(tuned(OnGpu(), "numeric"))
    script = OnGpu()
    found = tuned(script, "semantic")
    assert "augment" in _settings(found)
    assert isinstance(found, Tuned)
    assert "mean losses of" in found.plan.verified
    compared = [one for one in script.asked if one.get("tie_draws")]
    assert len({one["seed"] for one in compared}) == 2


def test_images_that_look_otherwise_are_rolled_back() -> None:
    found = tuned(OnGpu(mean=2.0), "semantic")
    assert isinstance(found, Tuned)
    assert "augment" not in found.plan.settings
    assert any("another mean" in trial.reason for trial in found.trials)


def test_where_the_first_to_go_back_to_does_not_pay_the_next_has_its_turn() -> None:
    class Slower(OnGpu):
        """By itself, half precision costs more than workers give."""

        def observe(self, command: Command, **options: Any) -> tuple[Observation, ...]:
            settings = options.get("settings") or {}
            alone = "autocast" in settings and "augment" not in settings
            self.step = 0.4 if alone and not options.get("tie_draws") else 0.004
            return super().observe(command, **options)

    found = tuned(Slower(mean=2.0), "semantic", seconds=300.0)
    assert isinstance(found, Tuned)
    assert any("autocast" in trial.settings and "augment" not in trial.settings for trial in found.trials)
    assert "loader.num_workers" in found.plan.settings
    assert not {"autocast", "augment"} & found.plan.settings.keys()


def _settings(found: Tuned | NotTuned) -> Mapping[str, Any]:
    assert isinstance(found, Tuned)
    return found.plan.settings
