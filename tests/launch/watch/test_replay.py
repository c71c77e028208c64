from __future__ import annotations

from collections import UserDict, namedtuple
from collections.abc import Iterator

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
