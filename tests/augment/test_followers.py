"""Modules that follow: Kornia's with masks, and anything else."""

from __future__ import annotations

import kornia.augmentation as K
import pytest
import torch
from tests.augment.support import photo, plain

from fulltilt.errors import InputError

IMAGES = photo(2, 3, 16, 20)


@pytest.mark.parametrize("images", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("dtype", "largest"),
    [(torch.uint8, 255), (torch.bool, 1), (torch.int16, 30000), (torch.int32, 1 << 30), (torch.int64, 1 << 60)],
    ids=str,
)
def test_labels_stay_labels(dtype, largest, images):
    """Whatever the images' type: a label that no mask had before must not appear."""
    generator = torch.Generator().manual_seed(4)
    masks = torch.randint(0, largest + 1, (2, 16, 20), generator=generator).to(dtype)
    aug = plain(then=[K.RandomHorizontalFlip(p=1.0), K.RandomRotation(40.0, p=1.0)], dtype=images)
    torch.manual_seed(0)
    out, labels = aug(IMAGES, masks)
    assert out.dtype == images
    assert labels.dtype == dtype
    assert labels.shape == masks.shape
    assert set(labels.flatten().tolist()) <= set(masks.flatten().tolist()) | {0}
    assert len(set(labels.flatten().tolist())) > (1 if dtype == torch.bool else 50)


def test_masks_of_floats_keep_their_values():
    masks = torch.rand(2, 16, 20, generator=torch.Generator().manual_seed(4))
    _, out = plain(then=[K.RandomHorizontalFlip(p=1.0)])(IMAGES, masks)
    assert torch.equal(out, masks.flip(-1))


@pytest.mark.parametrize("shape", [(2, 16, 20), (2, 1, 16, 20)])
def test_images_and_masks_stay_together(shape):
    """The mask of a turned image is the turned mask: both are made of the same picture."""
    picture = (torch.rand(2, 1, 4, 5, generator=torch.Generator().manual_seed(1)) > 0.5).float()
    picture = picture.repeat_interleave(4, 2).repeat_interleave(4, 3)
    then = [K.RandomAffine(30.0, translate=(0.1, 0.1), scale=(0.8, 1.2), p=1.0), K.RandomVerticalFlip(p=0.5)]
    torch.manual_seed(3)
    images, masks = plain(rotation_degrees=20.0, then=then)(picture.expand(2, 3, 16, 20), picture.view(shape).long())
    assert masks.shape == shape
    clear = (images[:, 0] - 0.5).abs() > 0.25  # away from the edges, where images are between
    assert clear.float().mean() > 0.6
    assert ((images[:, 0] > 0.5) == masks.view(2, 16, 20).bool())[clear].float().mean() > 0.97


def test_a_sequence_of_kornias_own():
    then = [K.AugmentationSequential(K.RandomHorizontalFlip(p=1.0), data_keys=["input", "mask"])]
    masks = torch.arange(2 * 16 * 20).view(2, 16, 20)
    images, labels = plain(then=then)(IMAGES, masks)
    assert torch.equal(labels, masks.flip(-1))
    assert torch.allclose(images, IMAGES.flip(-1) / 255)


def test_clips_go_through_frame_by_frame():
    clips = photo(2, 3, 3, 8, 10)
    out = plain(then=[K.RandomHorizontalFlip(p=1.0)], layout="channels_first")(clips)
    assert torch.allclose(out, clips.flip(-1) / 255)


def test_functions_and_modules_of_any_kind():
    aug = plain(then=[torch.nn.Hardtanh(0.2, 0.8), lambda images: images * 2])
    out, masks = aug(IMAGES, torch.ones(2, 16, 20, dtype=torch.int64))
    assert torch.allclose(out, (IMAGES / 255).clamp(0.2, 0.8) * 2)
    assert bool((masks == 1).all())


def test_in_training_only():
    aug = plain(then=[lambda images: images * 0])
    assert float(aug(IMAGES).max()) == 0.0
    assert float(aug.eval()(IMAGES).max()) == 1.0


def test_a_change_of_size_that_masks_would_miss():
    aug = plain(then=[torch.nn.AvgPool2d(2)])
    assert aug(IMAGES).shape == (2, 3, 8, 10)
    with pytest.raises(InputError, match=r"AvgPool2d.*\(16, 20\).*\(8, 10\).*masks"):
        aug(IMAGES, torch.zeros(2, 16, 20))


@pytest.mark.parametrize("argument", [{"boxes": torch.zeros(2, 1, 4)}, {"keypoints": torch.zeros(2, 1, 2)}])
def test_boxes_and_points_cant_follow(argument):
    aug = plain(then=[K.RandomHorizontalFlip(p=1.0)])
    with pytest.raises(InputError, match="boxes and keypoints"):
        aug(IMAGES, **argument)
    assert len(aug.eval()(IMAGES, **argument)) == 2
