"""The limits of a script, from its own objects: batches handed out again, and its loader alone."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fulltilt.launch import observe as observing
from fulltilt.launch.command import parse
from fulltilt.launch.observe import observe

PLAIN = str(Path(__file__).parent / "scripts" / "plain.py")
LEAVES = str(Path(__file__).parent / "scripts" / "leaves.py")


@pytest.mark.parametrize("workers", [0, 1])
def test_replayed_batches_cost_nothing(workers: int) -> None:
    command = parse([PLAIN, "--seconds", "0.02", "--epochs", "4", "--workers", str(workers)])
    actual = observe(command)
    limit = observe(command, mode="replay")
    assert actual.samples_per_second is not None
    assert limit.samples_per_second is not None
    assert limit.mode == "replay"
    assert actual.samples_per_second < 58  # samples of 20 ms each; of eight batches the first is an epoch's start
    assert limit.samples_per_second > 1.5 * actual.samples_per_second
    waited, before = (sum(step.phases.get("data wait", 0.0) for step in seen.steps) for seen in (limit, actual))
    assert waited / len(limit.steps) < 0.02 * before / len(actual.steps)
    assert len(limit.steps) > 15  # its epochs are as long as they were, and evaluation still happens
    assert limit.outside["eval"] > 0


@pytest.mark.parametrize(("workers", "least", "most"), [(0, 30, 51), (2, 56, 101)])
def test_the_loader_alone(workers: int, least: float, most: float) -> None:
    """Samples of 20 ms, in which nobody computes: a busy machine adds little to them."""
    seen = observe(parse([PLAIN, "--seconds", "0.02", "--workers", str(workers), "--epochs", "9"]), mode="loader")
    train = next(loader for loader in seen.loaders if loader.role == "train")
    assert train.samples_per_second is not None
    assert least < train.samples_per_second < most
    assert seen.ended == "steps"
    assert seen.exit_status == 0


def test_the_loader_alone_behind_the_steps_of_the_same_run() -> None:
    seen = observe(
        parse([PLAIN, "--seconds", "0.02", "--workers", "2", "--epochs", "9"]), then=("loader",), max_steps=12
    )
    (train,) = (loader for loader in seen.loaders if loader.role == "train")
    assert 8 <= len(seen.steps) <= 12
    assert seen.behind_seconds > 2
    assert train.samples_per_second is not None
    assert 40 < train.samples_per_second < 110, "two workers, 20 ms for each sample"
    assert seen.seconds > seen.behind_seconds
    assert seen.replayed is None


@pytest.mark.parametrize("workers", [0, 2])
def test_both_limits_behind_the_steps_of_the_same_run(workers: int) -> None:
    """Samples of 20 ms, which cost nothing any more; what was noted of the script as it is stays as it was."""
    words = [PLAIN, "--seconds", "0.02", "--workers", str(workers), "--epochs", "60"]
    seen, plain = (observe(parse(words), then=then, max_steps=16) for then in (("replay", "loader"), ()))
    again = seen.replayed
    assert again is not None
    assert again.mode == "replay"
    assert 30 <= len(again.steps) <= 1001
    assert len(seen.steps) <= 16
    assert again.steps[0].number > seen.steps[-1].number + 3
    assert again.samples_per_second is not None
    assert seen.samples_per_second is not None
    assert again.samples_per_second > 1.5 * seen.samples_per_second
    assert not any(step.phases.get("data wait", 0.0) > 0.02 for step in again.steps)
    (train,), (as_is,) = ([one for one in some.loaders if one.role == "train"] for some in (seen, plain))
    assert train.samples_per_second is not None
    assert train.start_seconds is not None
    assert as_is.start_seconds is not None
    assert train.start_seconds > 0.2 * as_is.start_seconds, "epochs that cost nothing are not counted"
    assert len(seen.syncs) == len(plain.syncs)
    assert train.starts <= (3 if workers else 0), "two epochs, and the next at the most"
    assert plain.replayed is None


@pytest.mark.parametrize(("how", "status"), [("returns", 0), ("exits", 3), ("raises", 1), ("killed", -9)])
def test_what_was_seen_stays_if_the_script_ends_while_its_limits_are_measured(
    how: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # what others write beside us would be noted
    seen = observe(parse([LEAVES, "--steps", "30", "--how", how]), then=("replay", "loader"), max_steps=24)
    assert seen.ended == "steps"
    assert seen.exit_status == status
    assert 16 <= len(seen.steps) <= 24
    assert seen.replayed is None
    assert seen.samples_per_second is not None
    assert not seen.notes, "how it ends behind its steps is nothing that was watched"
    (train,) = seen.loaders
    assert train.made == 6, "of four batches each"
    assert train.samples_per_second is None


def test_limits_that_never_end_are_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long evaluation, or a script that can't go on with batches it had before."""
    monkeypatch.setattr(observing, "LIMITS_SECONDS", 1.0)
    began = time.monotonic()
    seen = observe(parse([LEAVES, "--steps", "30", "--how", "sleeps"]), then=("replay", "loader"), max_steps=24)
    assert time.monotonic() - began < 50, "it sleeps for a minute"
    assert seen.ended == "steps"
    assert 16 <= len(seen.steps) <= 24


def test_a_trial_that_is_late_with_its_limits_was_seen() -> None:
    words = [LEAVES, "--steps", "30", "--how", "sleeps"]
    seen = observe(parse(words), then=("replay",), max_steps=24, deadline_seconds=12.0)
    assert seen.ended == "steps"
    assert 16 <= len(seen.steps) <= 24


def test_what_a_script_prints_while_its_limits_are_measured_is_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    """Of losses over batches that it has had before, nobody wants to know."""
    told: list[bool] = []
    words = [PLAIN, "--workers", "0", "--epochs", "900"]
    seen = observe(
        parse(words), then=("replay",), max_steps=16, echo=True, on_progress=lambda _, limits: told.append(limits)
    )
    assert seen.replayed is not None
    assert capfd.readouterr().out == "epoch 0\n"
    assert any(told)
    assert not told[0]


def test_a_limit_has_several_steps() -> None:
    """Steps of 700 ms: where the time suffices for one or two, a run of its own has more."""
    seen = observe(parse([LEAVES, "--steps", "99", "--seconds", "0.7"]), then=("replay",), max_steps=5)
    assert seen.replayed is None


def test_a_script_that_ends_too_soon_has_no_limit_behind_its_steps() -> None:
    seen = observe(parse([PLAIN, "--workers", "0", "--epochs", "2"]), then=("replay", "loader"))
    assert seen.ended == "script"
    assert seen.replayed is None


def test_a_script_without_a_loader_has_none_to_measure() -> None:
    script = str(Path(PLAIN).with_name("small.py"))
    seen = observe(parse([script, "trains", "20"]), mode="loader")
    assert seen.loaders == ()
    assert any("without a DataLoader" in note for note in seen.notes)


def test_draws_tied_to_samples_make_runs_with_and_without_workers_the_same(tmp_path: Path) -> None:
    script = tmp_path / "draws.py"
    script.write_text(
        """
import random, sys
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Drawn(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.randn(4) * random.random() + np.random.rand()

def mixed(samples):
    batch = torch.stack(samples)
    return batch + random.random() * batch[torch.randperm(len(batch))] * np.random.beta(1, 1)

if __name__ == "__main__":
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    for workers in (0, 2):
        model.load_state_dict(start)
        random.seed(7), np.random.seed(7), torch.manual_seed(7)
        for batch in DataLoader(Drawn(), 4, shuffle=True, num_workers=workers, collate_fn=mixed):
            optimizer.zero_grad()
            model(batch.float()).square().mean().backward()
            optimizer.step()
"""
    )
    tied, untied = (observe(parse([str(script)]), seed=7, tie_draws=tie).first_losses for tie in (True, False))
    assert len(tied) == len(untied) == 32
    assert tied[:16] == tied[16:]
    assert untied[:16] != untied[16:]


def test_nobody_looks_at_the_machine_while_losses_are_compared() -> None:
    seen = observe(parse([PLAIN, "--workers", "0", "--epochs", "9"]), max_steps=12, seed=1, tie_draws=True)
    assert len(seen.first_losses) >= 12
    assert seen.surroundings is not None
    assert seen.surroundings.cpu_share is None
    assert seen.surroundings.memory_bytes == ()
