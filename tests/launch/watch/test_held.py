"""Files that a data set holds open, which workers would share, and generators, of which they would have copies."""

from __future__ import annotations

import io
import mmap
import random
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

from fulltilt.launch.watch.held import generator, open_file


class Records(Dataset[Any]):
    def __init__(self, **given: Any) -> None:
        self.rows = list(range(1000))
        self.__dict__.update(given)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> int:
        return self.rows[index]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "data.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", "content")
    with tarfile.open(tmp_path / "data.tar", "w") as archive:
        archive.add(path)
    np.savez(tmp_path / "data.npz", numbers=np.arange(4))
    return path


OPEN: dict[str, Callable[[Path], Any]] = {
    "a file": lambda path: path.open("rb"),
    "an archive": zipfile.ZipFile,
    "a tape": lambda path: tarfile.TarFile(path.with_suffix(".tar")),
    "arrays": lambda path: np.load(path.with_suffix(".npz")),
}


@pytest.mark.parametrize("opened", OPEN.values(), ids=OPEN.keys())
def test_open_files_are_found(opened: Callable[[Path], Any], path: Path) -> None:
    with opened(path) as kept:
        records = Records(kept=kept)
        assert open_file(records) == "Records.kept"
        assert open_file(Records(parts={"train": [kept]})) == "Records.parts"
        assert open_file(Subset(records, [0])) == "Records.kept"
        assert open_file(ConcatDataset([Records(), records])) == "Records.kept"
    assert open_file(records) is None


def test_what_no_worker_shares_is_none(path: Path) -> None:
    with path.open("rb") as file, path.open("ab") as log, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
        assert open_file(Records(kept=io.BytesIO(b"content"), log=log, path=path)) is None
        assert open_file(Records(file=file, whole=whole)) is None
    assert open_file(Records(closed=file)) is None
    assert open_file(range(3)) is None


class Turn:
    def __init__(self, rng: Any) -> None:
        self.rng = rng


class Chain:
    def __init__(self, *transforms: Any) -> None:
        self.transforms = list(transforms)


OWN = {
    "random": random.Random(0),
    "numpy": np.random.default_rng(0),
    "numpy, as it was": np.random.RandomState(0),
    "torch": torch.Generator(),
}


@pytest.mark.parametrize("rng", OWN.values(), ids=OWN.keys())
def test_generators_are_found(rng: Any) -> None:
    assert generator(Records(rng=rng)) == "Records.rng"
    assert generator(Subset(Records(transform=Chain(Turn(None), Chain(Turn(rng)))), [0])) == "Records.transform"


def test_what_is_met_far_below_first_is_looked_into_where_it_is_near() -> None:
    turn = Turn(random.Random(0))
    assert generator(Records(transforms=[Chain(Chain(turn)), turn])) == "Records.transforms"


def test_what_each_worker_may_have_is_no_generator() -> None:
    assert generator(Records(rng=random.SystemRandom(), kind=random.Random, seed=0)) is None
    itself = Records()
    itself.rows = itself  # type: ignore[assignment]
    assert generator(itself) is None


def test_generators_of_packages_that_know_of_workers_are_theirs() -> None:
    kind = type("Rotate", (Turn,), {"__module__": "albumentations.core"})
    assert generator(Records(transform=kind(random.Random(0)))) is None
