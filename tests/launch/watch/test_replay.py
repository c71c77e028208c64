from __future__ import annotations

import logging
import os
from collections import UserDict, namedtuple
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fulltilt.launch.watch.replay import Replay, mapped
from fulltilt.launch.watch.watch import LoaderSeen

Pair = namedtuple("Pair", ["image", "label"])


class Loader:
    def __len__(self) -> int:
        return 6


LOADER = Loader()


def shelf() -> tuple[Replay, LoaderSeen]:
    replay, seen = Replay(), LoaderSeen(0, LOADER, None)
    for place in range(4):
        batch = {"image": torch.full((2, 3), float(place)), "meta": [Pair(torch.tensor(place), "name")]}
        replay.following(seen, place, lambda batch=batch: batch)
    return replay, seen


def test_batches_are_the_loaders_own_until_one_is_known_to_train() -> None:
    replay, seen = shelf()
    assert not replay.ready(seen)
    seen.role = "train"
    assert replay.ready(seen)
    assert len(list(replay.epoch(seen))) == 6


def test_structure_is_kept_and_containers_are_new() -> None:
    replay, seen = shelf()
    seen.role = "train"
    first, *_, again = [replay.following(seen, 0, Loader) for _ in range(5)]
    assert isinstance(first["meta"][0], Pair)
    assert first["meta"][0].label == "name"
    assert again["image"] is first["image"]
    first.pop("meta")
    assert "meta" in again


def test_a_batch_that_was_worked_on_in_place_is_given_as_it_was() -> None:
    replay, seen = shelf()
    seen.role = "train"
    for _ in range(4):
        replay.following(seen, 0, Loader)["image"].add_(100)
    assert [float(replay.following(seen, 0, Loader)["image"][0, 0]) for _ in range(4)] == [0.0, 1.0, 2.0, 3.0]


def test_a_move_is_remembered_by_its_call() -> None:
    replay, seen = shelf()
    seen.role = "train"
    tensor = replay.following(seen, 0, Loader)["image"]
    assert replay.moved(tensor, "to", ("meta",), {}) is None
    there = torch.full((2, 3), 5.0)
    replay.note(tensor, "to", ("meta",), {}, there)
    assert replay.moved(tensor, "to", ("meta",), {}) is there
    assert replay.moved(tensor, "to", ("cpu",), {}) is None
    there.mul_(0)
    assert float(replay.moved(tensor, "to", ("meta",), {})[0, 0]) == 5.0
    assert replay.moved(torch.zeros(2), "to", ("meta",), {}) is None


def test_mappings_of_other_kinds() -> None:
    batch = UserDict({"ids": torch.ones(2)})
    other = mapped(batch, lambda tensor: tensor + 1)
    assert isinstance(other, UserDict)
    assert float(other["ids"][0]) == 2.0
    assert float(batch["ids"][0]) == 1.0


class Batch:
    """Of a data set that it knows."""

    def __init__(self, images: torch.Tensor, data: Data) -> None:
        self.images, self.data = images, data


class Data:
    def __init__(self) -> None:
        self.log = logging.getLogger(__name__)
        self.file = open(os.devnull)  # noqa: SIM115
        self.last = Batch(torch.ones(2), self)

    def __reduce__(self) -> Any:
        raise TypeError("it has a file open")


class Named(list[Any]):
    def __init__(self, name: str, parts: list[Any]) -> None:
        super().__init__(parts)
        self.name = name


class Tree:
    def __init__(self, parent: Tree | None = None) -> None:
        self.value, self.parent = torch.ones(2), parent
        self.leaves = [Tree(self), Tree(self)] if parent is None else []


def test_batches_may_know_where_they_come_from_and_go_in_circles() -> None:
    data = Data()
    handlers, manager = data.log.handlers, data.log.manager
    other = mapped(data.last, lambda tensor: tensor + 1)
    assert (float(other.images[0]), float(data.last.images[0])) == (2.0, 1.0)
    assert other.data is data
    assert data.log.handlers is handlers
    assert data.log.manager is manager
    data.file.close()
    named = Named("train", [torch.ones(2)])
    assert mapped((named, torch.ones(1)), lambda tensor: tensor + 1)[0] is named

    tree = Tree()
    other = mapped([tree, logging.getLogger(__name__)], lambda tensor: tensor + 1)[0]
    assert other is not tree
    assert all(leaf.parent is other and float(leaf.value[0]) == 2.0 for leaf in other.leaves)
    assert float(tree.leaves[0].value[0]) == 1.0


def test_an_epoch_ends_as_the_loaders_own_does() -> None:
    replay, seen = shelf()
    seen.role = "train"
    replay.following(seen, 5, Loader)
    with pytest.raises(StopIteration):
        replay.following(seen, 6, Loader)


def test_a_loader_with_one_iterator_for_all_epochs_goes_on() -> None:
    class Endless(Loader):
        def __iter__(self) -> Iterator[int]:
            return iter(range(6))

    replay, seen = shelf()
    loader = Endless()
    seen.made_anew(loader)
    seen.role = "train"
    assert "image" in replay.following(seen, 600, Loader)
