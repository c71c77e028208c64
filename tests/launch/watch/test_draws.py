"""Whether samples draw random numbers, seen where they are made; and whether a model does, where it is called."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from fulltilt.launch.command import parse
from fulltilt.launch.job import Job
from fulltilt.launch.observe import observe
from fulltilt.launch.watch.draws import FIRST_CALLS, FIRST_LOOKS, LOOK_EVERY, Looks, looked_at, states
from fulltilt.launch.watch.stages import draws
from fulltilt.launch.watch.watch import Watch

SCRIPT = """
import random, sys
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

DRAWN = {
    "torch": lambda index: torch.randn(4),
    "numpy": lambda index: torch.as_tensor(np.random.rand(4)).float(),
    "random": lambda index: torch.full((4,), random.random()),
    "seed": lambda index: torch.as_tensor(np.random.default_rng(torch.initial_seed() + index).random(4)).float(),
    "rarely": lambda index: torch.randn(4) if index == 11 else torch.zeros(4),
    "collate": lambda index: torch.zeros(4),
    "own": lambda index: torch.as_tensor(np.random.default_rng(index).random(4)).float(),
}
workers, context = int(sys.argv[1]), sys.argv[2]
kinds = sys.argv[3:] or list(DRAWN)

class Data(Dataset):
    def __init__(self, kind):
        self.kind = kind
    def __len__(self):
        return 32
    def __getitem__(self, index):
        return DRAWN[self.kind](index)

class Collate:
    def __init__(self, kind):
        self.kind = kind
    def __call__(self, items):
        return torch.stack(items) + (torch.rand(1) if self.kind == "collate" else 0)

def main():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout())  # the training's own draws are none of a sample's
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    more = {"multiprocessing_context": context} if workers else {}
    loaders = [
        DataLoader(Data(kind), 4, shuffle=True, num_workers=workers, collate_fn=Collate(kind), **more)
        for kind in kinds
    ]
    for loader in loaders:
        for batch in loader:
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["0", "-"], [True, True, True, True, True, True, False]),
        (["2", "fork"], [True, True, True, True, True, True, False]),
        (["1", "spawn", "random", "own"], [True, False]),
    ],
    ids=["main", "fork", "spawn"],
)
def test_it_is_seen_which_samples_draw(words: list[str], expected: list[bool], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    seen = observe(parse([str(script), *words]), max_steps=1000)
    assert seen.exit_status == 0, seen.notes
    assert [loader.draws for loader in seen.loaders] == expected


def test_samples_whose_draws_are_tied_are_not_looked_at(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    seen = observe(parse([str(script), "0", "-"]), seed=1, tie_draws=True, max_steps=1000)
    assert {loader.draws for loader in seen.loaders} == {None}


def test_few_batches_are_looked_at_and_none_once_draws_were_seen() -> None:
    looks = Looks()
    assert looks.draws is None
    due = [looks.due() for _ in range(10 * LOOK_EVERY)]
    assert all(due[:FIRST_LOOKS])
    assert sum(due) == FIRST_LOOKS + 10 - FIRST_LOOKS // LOOK_EVERY
    before = states()
    looks.made(before)
    assert looks.draws is False
    torch.rand(1)
    looks.made(before)
    assert looks.draws is True
    looks.made(states())
    assert looks.draws is True
    assert not any(looks.due() for _ in range(2 * LOOK_EVERY))


class Model(nn.Module):
    def __init__(self, *, draws: bool, at: int = 0) -> None:
        super().__init__()
        self.draws, self.at = draws, at

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        self.at -= 1
        return given + torch.randn(4) if self.draws and self.at < 0 else given * 2


def calls(count: int, model: nn.Module) -> bool:
    """Whether it was seen that the model draws, in so many calls."""
    watch = Watch(Job(command=("train.py",), out=""))
    call = looked_at(watch, nn.Module.__call__)
    for _ in range(count):
        call(model, torch.zeros(4))
        torch.rand(1)  # the loop's own are none of the model's
    return watch.draws


def test_a_model_is_seen_to_draw_in_its_first_calls_that_train() -> None:
    assert calls(1, Model(draws=True))
    assert calls(3, nn.Dropout())
    assert calls(FIRST_CALLS, Model(draws=True, at=FIRST_CALLS - 1))
    assert not calls(FIRST_CALLS + 1, Model(draws=True, at=FIRST_CALLS)), "few are looked at"
    assert not calls(3, Model(draws=False))
    assert not calls(3, Model(draws=True).eval()), "it is not training"
    with torch.no_grad():
        assert not calls(3, Model(draws=True))
    assert torch.func.vmap(looked_at_within, randomness="same")(torch.zeros(2, 4)).shape == (2, 4)


def looked_at_within(given: torch.Tensor) -> torch.Tensor:
    watch = Watch(Job(command=("train.py",), out=""))
    made: torch.Tensor = looked_at(watch, nn.Module.__call__)(Model(draws=True), given)
    assert watch.draws
    return made


NOISE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 4)
    def forward(self, given):
        return self.net(given + torch.randn_like(given))

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for inputs, labels in DataLoader(TensorDataset(torch.randn(96, 16), torch.arange(96) % 4), 16, shuffle=True):
    loss = nn.functional.cross_entropy(net(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("noise", "tied", "draws"), [(True, True, True), (False, True, False), (True, False, False)])
def test_a_script_whose_model_draws_is_told_from_others(noise: bool, tied: bool, draws: bool, tmp_path: Path) -> None:
    """Noise is no dropout, and compiled code would draw another; it is looked for in runs that are tied alone."""
    script = tmp_path / "train.py"
    script.write_text(NOISE if noise else NOISE.replace(" + torch.randn_like(given)", ""))
    seen = observe(parse([str(script)]), seed=1, tie_draws=True, tie_dropout=tied)
    assert len(seen.first_losses) == 6, seen.notes
    assert seen.draws == draws


def test_a_loader_draws_where_one_of_its_processes_does(tmp_path: Path) -> None:
    assert draws(tmp_path, "0") is None
    (tmp_path / "stages-0-11.json").write_text('{"samples": 2, "spent": {}, "draws": null}')
    assert draws(tmp_path, "0") is None
    (tmp_path / "stages-0-12.json").write_text('{"samples": 2, "spent": {}, "draws": false}')
    assert draws(tmp_path, "0") is False
    (tmp_path / "stages-0-13.json").write_text('{"samples": 2, "spent": {}, "draws": true}')
    (tmp_path / "stages-1-12.json").write_text('{"samples": 2, "spent": {}, "draws": false}')
    assert draws(tmp_path, "0") is True
    assert draws(tmp_path, "1") is False
