"""Images handed over as bytes: what the script gets is what its own transforms would have made, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.launch.test_apply import elsewhere
from tests.launch.transforms_like import compose, flip, normalize, to_tensor, tv
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fulltilt.launch.apply import install
from fulltilt.launch.unfinished import Table

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

COUNT = 16
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Photos(Dataset[Any]):
    """Noise of one size."""

    def __init__(
        self, transform: Any, *, modes: tuple[str, ...] = ("RGB",), after: Callable[[Any], Any] = lambda image: image
    ) -> None:
        self.transform, self.modes, self.after = transform, modes, after

    def __len__(self) -> int:
        return COUNT

    def image(self, index: int) -> Any:
        noise = np.random.default_rng(index).integers(0, 256, (9, 12, 3), dtype=np.uint8)
        return Image.fromarray(noise).convert(self.modes[index % len(self.modes)], dither=Image.Dither.NONE)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.after(self.transform(self.image(index))), index


class Arrays(Photos):
    def image(self, index: int) -> Any:
        return np.array(super().image(index))


def batches(dataset: Any, settings: dict[str, Any], **options: Any) -> tuple[list[Any], list[str], list[str]]:
    """Two epochs' batches, what they arrived as, and notes."""

    def work() -> tuple[list[Any], list[str], list[str]]:
        notes: list[str] = []
        install(settings, notes)
        arrived: list[str] = []
        look_up = Table.look_up

        def looks_up(self: Table, pixels: Tensor, *, last: bool) -> Tensor:
            arrived.append(f"{tuple(pixels.shape)}")
            return look_up(self, pixels, last=last)

        Table.look_up = looks_up  # type: ignore[method-assign]
        torch.manual_seed(0)
        loader = DataLoader(dataset, **{"batch_size": 8, "num_workers": 2, "shuffle": True, **options})
        found = []
        for _ in range(2):
            for images, labels in loader:
                assert type(images) is Tensor
                found.append((images.numpy().copy(), images.is_contiguous(), str(images.dtype), labels.tolist()))
            found.append(torch.rand(1).tolist())  # the training's own draws go on as before
        return found, arrived, notes

    result: tuple[list[Any], list[str], list[str]] = elsewhere(work)
    return result


def same(after: list[Any], before: list[Any]) -> None:
    assert len(after) == len(before)
    for one, other in zip(after, before, strict=True):
        assert one[1:] == other[1:]
        np.testing.assert_array_equal(one[0], other[0])


def to_image() -> Any:
    """Version 2's: channels first as a view, as there."""
    return tv("ToImage", lambda image: torch.from_numpy(np.array(image)).permute(2, 0, 1))


def to_dtype() -> Any:
    return tv("ToDtype", lambda image: image.to(torch.float32).div(255), dtype=torch.float32, scale=True)


def normalize_in_place() -> Any:
    def call(image: Tensor) -> Tensor:
        return image.sub_(torch.tensor(MEAN).view(-1, 1, 1)).div_(torch.tensor(STD).view(-1, 1, 1))

    return tv("Normalize", call, mean=MEAN, std=STD, inplace=True)


def gray() -> Any:
    return tv("Normalize", lambda image: (image - 0.4) / 0.3, mean=(0.4,), std=(0.3,), inplace=False)


CHAINS: dict[str, tuple[Any, type[Photos], tuple[str, ...]]] = {
    "version 1": (compose(flip(), to_tensor(), normalize(MEAN, STD)), Photos, ("RGB",)),
    "in place": (compose(flip(), to_tensor(), normalize_in_place()), Photos, ("RGB",)),
    "version 2": (compose(flip(), to_image(), to_dtype(), normalize(MEAN, STD)), Photos, ("RGB",)),
    "tensors": (compose(to_image(), flip(), to_dtype(), normalize(MEAN, STD)), Photos, ("RGB",)),
    "gray": (compose(flip(), to_tensor(), gray()), Photos, ("L",)),
    "arrays": (compose(to_tensor(), normalize(MEAN, STD)), Arrays, ("RGB",)),
    "gray arrays": (compose(to_tensor(), gray()), Arrays, ("L",)),
    "an evaluation's": (compose(to_tensor()), Photos, ("RGB",)),
}


@pytest.mark.parametrize("name", CHAINS)
def test_batches_are_the_scripts_own_bit_for_bit(name: str) -> None:
    transform, kind, modes = CHAINS[name]
    before, none, _ = batches(kind(transform, modes=modes), {})
    after, arrived, notes = batches(kind(transform, modes=modes), {"loader.bytes": True})
    channels = len(modes[0])
    shape = (8, channels, 9, 12) if name == "tensors" else (8, 9, 12, channels)
    assert (none, arrived, notes) == ([], [str(shape)] * 4, [])
    same(after, before)


@pytest.mark.parametrize(
    "options",
    [{"persistent_workers": True}, {"num_workers": 1, "batch_size": 5, "drop_last": True}, {"sampler": None}],
    ids=["workers that live on", "a last batch dropped", "as they are"],
)
def test_whatever_the_loader_is_told(options: dict[str, Any]) -> None:
    made = compose(flip(), to_tensor(), normalize(MEAN, STD))
    before, _, _ = batches(Photos(made), {}, **options)
    after, arrived, _ = batches(Photos(made), {"loader.bytes": True, "loader.ahead": True}, **options)
    assert arrived
    same(after, before)
