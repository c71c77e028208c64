"""A data set's transforms, done for whole batches in the training process: what the script gets is what it expects."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.launch.apply.test_install import elsewhere
from tests.launch.apply.transforms_like import al, compose, flip, normalize, to_tensor, tv
from torch.utils.data import DataLoader, Dataset

from fulltilt.launch.apply.install import install

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

COUNT = 24


class Photos(Dataset[Any]):
    """Images of several sizes, each of one colour, which tells who is who."""

    def __init__(self, transform: Any, *, mode: str = "RGB", after: Callable[[Any], Any] = lambda image: image) -> None:
        self.transform, self.mode, self.after = transform, mode, after

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, Any]:
        image = Image.new("RGB", (20 + index % 3, 18 + index % 2), (10 * index, 100, 200))
        mode = self.mode if index % 4 == 0 else "RGB"
        return {"image": self.after(self.transform(image.convert(mode, dither=Image.Dither.NONE))), "label": index}


def batches(dataset: Any, settings: dict[str, Any], **options: Any) -> tuple[list[Any], list[str]]:
    def work() -> tuple[list[Any], list[str]]:
        notes: list[str] = []
        install(settings, notes)
        torch.manual_seed(0)
        loader = DataLoader(dataset, **{"batch_size": 8, "num_workers": 1, **options})
        found = [
            (batch["image"].numpy(), batch["label"].tolist(), str(batch["image"].dtype))
            for _ in range(2)
            for batch in loader
        ]
        return found, notes

    result: tuple[list[Any], list[str]] = elsewhere(work)
    return result


def resized(size: int = 12) -> Any:
    def call(image: Any) -> Any:
        return image.resize((size, size))

    return tv("RandomResizedCrop", call, size=(size, size), scale=(0.5, 1.0), ratio=(0.75, 1.33))


def test_images_of_all_sizes_come_out_normalised_and_in_order() -> None:
    """Of one colour each, they look the same however they are cropped and turned."""
    made = compose(resized(), flip(), to_tensor(), normalize())
    before, _ = batches(Photos(made), {})
    after, notes = batches(Photos(made), {"augment": True})
    assert notes == []
    assert len(after) == len(before) == 6
    for (images, labels, dtype), (expected, order, wanted) in zip(after, before, strict=True):
        assert labels == order
        assert dtype == wanted == "torch.float32"
        np.testing.assert_allclose(images, expected, atol=1e-5)


def test_draws_are_of_the_gpus_and_others_in_each_epoch() -> None:
    class Sloped(Photos):
        def __getitem__(self, index: int) -> Any:
            ramp = np.linspace(0, 255, 16, dtype=np.uint8)
            return {"image": self.transform(np.stack([np.stack([ramp] * 16)] * 3, -1)), "label": index}

    made = compose(flip(), to_tensor())
    found, _ = batches(Sloped(made), {"augment": True}, batch_size=COUNT)
    turned = [tuple(images[:, 0, 0, 0] > images[:, 0, 0, -1]) for images, _, _ in found]
    assert all(6 <= sum(epoch) <= 18 for epoch in turned)
    assert turned[0] != turned[1]
    again, _ = batches(Sloped(made), {"augment": True}, batch_size=COUNT)
    assert [tuple(images[:, 0, 0, 0] > images[:, 0, 0, -1]) for images, _, _ in again] == turned


def test_an_image_that_has_no_bytes_is_done_by_its_transforms_in_its_place() -> None:
    whole = compose(resized(), flip(), tv("Identity", lambda image: image.convert("RGB")), to_tensor(), normalize())
    before, _ = batches(Photos(whole, mode="P"), {})
    after, _ = batches(Photos(whole, mode="P"), {"augment": True})
    assert before
    for (images, labels, _), (expected, order, _) in zip(after, before, strict=True):
        assert labels == order
        np.testing.assert_allclose(images, expected, atol=1e-5)


def test_a_data_set_that_works_on_the_tensor_gets_it() -> None:
    made = compose(resized(), flip(), to_tensor(), normalize())
    for after in (lambda image: image * 2.0, lambda image: torch.clamp(image, -1, 1), lambda image: image[:1]):
        found, _ = batches(Photos(made, after=after), {"augment": True})
        expected, _ = batches(Photos(made, after=after), {})
        assert expected
        for (images, *_), (wanted, *_) in zip(found, expected, strict=True):
            np.testing.assert_array_equal(images, wanted)


def test_albumentations_by_name() -> None:
    def composed(**targets: Any) -> Any:
        for member in members:
            targets = {**targets, **member(image=targets["image"])}
        return targets

    def member(function: Callable[[Any], Any]) -> Callable[..., Any]:
        return lambda image: {"image": function(image)}

    members = [
        al("CenterCrop", member(lambda image: image[:16, :16]), height=16, width=16),
        al("HorizontalFlip", member(lambda image: image[:, ::-1]), p=0.5),
        al("ToTensorV2", member(lambda image: torch.from_numpy(image.copy()).permute(2, 0, 1))),
    ]
    transform = al("Compose", composed, transforms=members)

    class Named(Photos):
        def __getitem__(self, index: int) -> Any:
            image = np.full((18 + index % 3, 20, 3), index, np.uint8)
            if self.mode == "masked":
                both = self.transform(image=image, mask=image[..., 0])
                return {"image": both["image"], "label": int(both["mask"].max())}
            return {"image": self.transform(image=image)["image"], "label": index}

    for mode in ("RGB", "masked"):  # with a mask they are left alone: both would have to be drawn for together
        found, _ = batches(Named(transform, mode=mode), {"augment": True})
        assert found
        for images, labels, dtype in found:
            assert dtype == "torch.uint8"
            assert images.shape == (8, 3, 16, 16)
            assert (images == np.array(labels)[:, None, None, None]).all()


def test_loaders_that_are_left_alone() -> None:
    made = compose(flip(), to_tensor())
    _, notes = batches(Photos(compose(resized(), flip(), to_tensor())), {"augment": True}, num_workers=0)
    assert notes == ["augment: left alone where the loader has no workers"]

    def stacked(samples: Any) -> Any:
        random.random()
        images = torch.stack([sample["image"][:, :16, :16] for sample in samples])
        return {"image": images, "label": torch.tensor([sample["label"] for sample in samples])}

    found, notes = batches(Photos(made), {"augment": True}, collate_fn=stacked)
    assert notes == []
    assert found[0][0].shape == (8, 3, 16, 16)


def test_a_larger_batch_is_for_loaders_that_shuffle() -> None:
    made = compose(resized(), to_tensor())
    settings = {"loader.batch_size": 12}
    trains, _ = batches(Photos(made), settings, shuffle=True)
    evaluates, _ = batches(Photos(made), settings)
    assert [len(labels) for _, labels, _ in trains] == [12, 12] * 2
    assert [len(labels) for _, labels, _ in evaluates] == [8, 8, 8] * 2
