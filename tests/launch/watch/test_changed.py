from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from fulltilt.launch.watch.changed import loader_state, shares
from fulltilt.launch.watch.stages import Stages
from fulltilt.launch.watch.transforms import time_parts


class Jitter:
    def __init__(self) -> None:
        self.strength = 0.5

    def call(self, image: Any) -> Any:
        return image * self.strength


class Slotted:
    __slots__ = ("strength",)

    def __init__(self) -> None:
        self.strength = 0.5

    def __call__(self, image: Any) -> Any:
        return image * self.strength


AROUND = {"size": 224}


def scaled(image: Any) -> Any:
    return image[: AROUND["size"]]


def closing_over(options: dict[str, float]) -> Callable[[Any], Any]:
    return lambda image: image * options["strength"]


class Closed:
    def __len__(self) -> int:
        raise ValueError("the file is closed")


class Files(Dataset[Any]):
    level_of_all = 1

    def __init__(self) -> None:
        self.slotted, self.scaled = Slotted(), scaled
        self.inner = {"strength": 0.5}
        self.closing = closing_over(self.inner)
        self.method = Jitter().call
        self.part = functools.partial(scaled, image=[0.5])
        self.names = [f"{number}.jpg" for number in range(100)]
        self.sizes = [224, 224]
        self.labels = {number: f"label {number}" for number in range(100)}
        self.weights = np.ones((100, 2))
        self.cut = np.ones((100, 4))[:, ::2]
        self.paths = np.array(["one", "two"], dtype=object)
        self.level = np.array(3)
        self.mean = torch.tensor(0.5)
        self.table = torch.zeros(10)
        self.transforms = [Jitter()]
        self.file = Closed()
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.names)


def changing(name: str, value: Any) -> Callable[[Files], None]:
    return lambda files: setattr(files, name, value)


CHANGES: dict[str, Callable[[Files], None]] = {
    "an attribute": changing("epoch", 1),
    "an attribute of its class": lambda files: setattr(Files, "level_of_all", 2),
    "a slot": lambda files: setattr(files.slotted, "strength", 0.9),
    "a variable of the script": lambda files: AROUND.__setitem__("size", 320),
    "what a function has from where it was made": lambda files: files.inner.__setitem__("strength", 0.9),
    "whose method it is": lambda files: setattr(files.method.__self__, "strength", 0.9),  # type: ignore[attr-defined]
    "what a function is given": lambda files: files.part.keywords["image"].__setitem__(0, 0.9),
    "a list, in place": lambda files: files.names.reverse(),
    "a number in a list": lambda files: files.sizes.__setitem__(0, 320),
    "a dictionary": lambda files: files.labels.__setitem__(3, "other"),
    "an array, in place": lambda files: files.weights.__setitem__((7, 1), 2.0),
    "a view": lambda files: files.cut.__setitem__((7, 1), 2.0),
    "an array of objects": lambda files: files.paths.__setitem__(0, "three"),
    "an array without a dimension": lambda files: files.level.__setitem__((), 4),
    "a tensor, in place": lambda files: files.table.add_(1),
    "a tensor without a dimension": lambda files: files.mean.fill_(0.4),
    "a transform": lambda files: setattr(files.transforms[0], "strength", 0.9),
}


@pytest.mark.parametrize(
    "wrapped", [lambda files: files, lambda files: Subset(files, [0, 1]), lambda files: ConcatDataset([files])]
)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_a_script_changes_between_epochs_is_seen(
    change: Callable[[Files], None], wrapped: Callable[[Files], Any]
) -> None:
    files = Files()
    loader: DataLoader[Any] = DataLoader(wrapped(files))
    before = loader_state(loader)
    assert loader_state(loader) == before
    try:
        change(files)
        assert loader_state(loader) != before
    finally:
        Files.level_of_all = 1
        AROUND["size"] = 224


class Cut:
    def __init__(self) -> None:
        self.length = 16

    def __call__(self, batch: list[Any]) -> list[Any]:
        return batch[: self.length]

    def method(self, batch: list[Any]) -> list[Any]:
        return self(batch)


@pytest.mark.parametrize(
    "carrying",
    [
        lambda cut: cut,
        lambda cut: cut.method,
        lambda cut: lambda batch: cut.method(batch[1:]),
        lambda cut: functools.partial(Cut.__call__, cut),
        lambda cut: functools.partial(lambda batch, by: by(batch), by=cut),
    ],
    ids=["an object", "a method", "a closure", "a partial", "a partial's keyword"],
)
@pytest.mark.parametrize("name", ["collate_fn", "worker_init_fn"])
def test_what_a_loaders_functions_carry_with_them_is_seen(carrying: Callable[[Cut], Any], name: str) -> None:
    cut = Cut()
    loader: DataLoader[Any] = DataLoader(Files(), **{name: carrying(cut)})
    before = loader_state(loader)
    assert loader_state(loader) == before
    cut.length = 32
    assert loader_state(loader) != before


def test_another_collate_fn_is_seen_and_a_variable_without_a_value_is_none() -> None:
    def collate(batch: list[Any]) -> Any:
        return later(batch)

    loader: DataLoader[Any] = DataLoader(Files(), collate_fn=collate)
    before = loader_state(loader)
    later = list
    assert loader_state(loader) != before
    loader.collate_fn = list
    assert loader_state(loader) != before


def helper(value: Any) -> Any:
    return value


def test_timers_of_ours_are_no_change_of_the_scripts(tmp_path: Path) -> None:
    """They are put into a class, too, when a loader without workers makes its samples in the training process: one for
    evaluation, say, whose data set is of the class that others train with."""

    class Halved(Dataset[Any]):
        def __init__(self) -> None:
            self.transform = lambda value: value

        def half(self, value: int) -> float:
            return value / 2

        def __getitem__(self, index: int) -> Any:
            return helper(self.transform(self.half(index)))

    train, held_out = DataLoader(Halved()), DataLoader(Halved())
    before, real = loader_state(train), helper
    try:
        time_parts(held_out.dataset, Stages(tmp_path))
        assert globals()["helper"] is not real, "it is timed"
        assert loader_state(train) == before
        time_parts(train.dataset, Stages(tmp_path))
        assert loader_state(train) == before
    finally:
        globals()["helper"] = real


def test_nothing_of_it_is_touched() -> None:
    files = Files()
    files.table = files.table.requires_grad_()
    with torch.inference_mode():
        files.mean = torch.zeros(())
    loader: DataLoader[Any] = DataLoader(files)
    assert loader_state(loader) == loader_state(loader)
    assert files.level == 3


def test_what_a_script_shares_with_its_workers_is_told() -> None:
    def shared(**attributes: Any) -> bool:
        return shares(loader_state(DataLoader(Holding(**attributes), batch_size=2)))

    context = multiprocessing.get_context("fork")
    for value in (context.Value("i", 1), context.Array("d", 3), context.RawValue("i", 1), context.Queue()):
        assert shared(value=value)
        assert shared(value=[value])
    for value in (1, "shared", ("shared",), np.zeros(3), torch.zeros(3), [1.0, 2.0]):
        assert not shared(value=value), value


def test_files_that_are_mapped_are_shared_where_they_can_be_written(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(8))
    for mode, expected in (("r", False), ("r+", True)):
        mapped = np.load(tmp_path / "a.npy", mmap_mode=mode)  # type: ignore[arg-type]
        assert shares(loader_state(DataLoader(Holding(value=mapped), batch_size=2))) is expected


class Holding(Dataset[Any]):
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index
