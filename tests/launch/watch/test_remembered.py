"""What data sets keep of the samples that they make: workers would have one each."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset

from fulltilt.launch.command import parse
from fulltilt.launch.observe import observe
from fulltilt.launch.watch.remembered import FIRST_LOOKS, Remembered

SAMPLES, BATCH = 64, 8


class Photos(Dataset[Any]):
    def __init__(self, make: Callable[[Any, int], Any], **given: Any) -> None:
        self.paths = [str(index) for index in range(SAMPLES)]
        self.last, self.file = 0, None
        self.make = make
        self.__dict__.update(given)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return self.make(self, index)


class Cached(Photos):
    @functools.lru_cache(maxsize=None)  # noqa: B019, UP033
    def load(self, index: int) -> torch.Tensor:
        return torch.full((2,), index)


class Shared(Photos):
    cache: ClassVar[dict[int, int]] = {}

    def load(self, index: int) -> int:
        return self.cache.setdefault(index, index)


class Shelf:
    """A class of the script's own, in the data set."""

    def __init__(self) -> None:
        self.kept: dict[int, torch.Tensor] = {}

    def get(self, index: int) -> torch.Tensor:
        return self.kept.setdefault(index, torch.zeros(1))


def _count(photos: Any, _: int) -> None:
    photos.count += 1


def seen(photos: Any, batches: int = FIRST_LOOKS, key: Callable[[int], Any] = int) -> str | None:
    remembered = Remembered()
    for batch in range(batches):
        indices = [key((batch * BATCH + at) * 5 % SAMPLES) for at in range(BATCH)]
        before = remembered.begun(photos, indices)
        for index in indices:
            photos[index]
        if before is not None:
            remembered.made(photos, indices, before)
    return remembered.name


KEEPS: dict[str, Photos] = {
    "dict": Photos(lambda it, at: it.cache.setdefault(at, torch.zeros(1)), cache={}),
    "list": Photos(lambda it, at: it.cache.append(at), cache=[]),
    "room": Photos(lambda it, at: it.cache.__setitem__(at, torch.zeros(1)), cache=[None] * SAMPLES),
    "array": Photos(lambda it, at: it.cache.__setitem__(at, at + 1), cache=np.zeros((SAMPLES, 3))),
    "tensor": Photos(lambda it, at: it.cache.__setitem__(at, at + 1), cache=torch.zeros(SAMPLES, 3)),
    "function": Photos(lambda it, at: it.cache(at), cache=functools.cache(lambda at: at)),
}


@pytest.mark.parametrize("photos", KEEPS.values(), ids=KEEPS.keys())
def test_what_grows_with_the_samples_is_seen(photos: Photos) -> None:
    assert seen(photos) == "Photos.cache"


def test_methods_counts_and_the_scripts_own_objects_are_looked_into() -> None:
    assert seen(Cached(lambda it, at: it.load(at))) == "Cached.load"
    assert seen(Shared(lambda it, at: it.load(at))) == "Shared.cache"
    assert seen(Photos(_count, count=0)) == "Photos.count"
    assert seen(Photos(lambda it, at: it.shelf.get(at), shelf=Shelf())) == "Photos.Shelf.kept"
    kept = Photos(lambda it, at: it.cache.__setitem__(at, at + 1), cache=np.zeros((SAMPLES, 3)))
    assert seen(Photos(lambda it, at: it.cache.setdefault(at, 0), cache={}), key=str) == "Photos.cache"
    assert seen(Subset(kept, list(reversed(range(SAMPLES))))) == "Photos.cache"
    assert seen(Subset(Photos(lambda it, at: it.cache.setdefault(at, 0), cache={}), range(SAMPLES))) == "Photos.cache"


def test_what_workers_may_have_each_is_none(tmp_path: Path) -> None:
    """Opened as it is first needed, a few of it, shared, or there from the first."""
    for shard in range(SAMPLES):
        (tmp_path / str(shard)).touch()

    def opened(it: Any, at: int) -> None:
        if at not in it.files:
            it.files[at] = (tmp_path / str(at)).open("rb")

    def lazily(it: Any, at: int) -> None:
        it.file = it.file or (tmp_path / str(at)).open("rb")
        it.last = at

    files = Photos(opened, files={})
    few = Photos(lambda it, at: it.shards.setdefault(at // 16, at), shards={})
    some = Photos(lambda it, at: it.load(at), load=functools.lru_cache(maxsize=SAMPLES // 2)(lambda at: at))
    full = Photos(lambda it, at: it.cache[at], cache=dict.fromkeys(range(SAMPLES), 0))
    shared = Photos(lambda it, at: it.cache.__setitem__(at, 1), cache=torch.zeros(SAMPLES).share_memory_())
    lazy = Photos(lazily)
    try:
        for photos in (files, few, some, full, shared, lazy):
            assert seen(photos) is None, vars(photos).keys()
    finally:
        for file in (*files.files.values(), lazy.file):  # type: ignore[attr-defined]
            file.close()


def test_the_last_samples_number_is_no_count() -> None:
    """In the data's own order it grows as one does."""
    photos = Photos(lambda it, at: setattr(it, "last", at))
    remembered = Remembered()
    for first in range(0, SAMPLES, BATCH):
        indices = list(range(first, first + BATCH))
        before = remembered.begun(photos, indices)
        for index in indices:
            photos[index]
        assert before is not None
        remembered.made(photos, indices, before)
    assert remembered.name is None


class Remote:
    """Whatever is asked for, a server is asked for it."""

    def __init__(self, asked: list[str]) -> None:
        self.asked = asked

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_: self.asked.append(name)


def test_a_data_sets_own_objects_are_not_asked() -> None:
    asked: list[str] = []
    photos = Photos(lambda it, at: it.cache.setdefault(at, 0), remote=Remote(asked), cache={})
    assert seen(photos) == "Photos.cache"
    assert not asked


def test_a_few_batches_are_looked_at() -> None:
    remembered = Remembered()
    photos = KEEPS["dict"]
    looks = [remembered.begun(photos, [0]) for _ in range(3 * FIRST_LOOKS)]
    assert sum(one is not None for one in looks) == FIRST_LOOKS
    assert seen(Photos(lambda it, at: it.cache.setdefault(at, 0), cache={}), batches=1) is None, "once is none"


SCRIPT = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset

class Photos(Dataset):
    def __init__(self): self.cache = {}
    def __len__(self): return 64
    def __getitem__(self, index):
        if index not in self.cache:
            self.cache[index] = torch.full((4,), float(index))
        return self.cache[index]

if __name__ == "__main__":
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    loader = DataLoader(Photos(), batch_size=4, num_workers=int(sys.argv[1]))
    for _ in range(2):
        for batch in loader:
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_it_is_told_of_a_scripts_loader(workers: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    told = observe(parse([str(script), workers]), full=True)
    assert told.exit_status == 0, told.notes
    assert [loader.remembers for loader in told.loaders] == ["Photos.cache"]
