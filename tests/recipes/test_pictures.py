"""Image files as an ordinary data set: the same samples as the feed's, one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from fulltilt.augment import GPUAugmentation, Settings
from fulltilt.errors import InputError
from fulltilt.feed import ImageFiles, feed
from fulltilt.recipes import classification, segmentation
from fulltilt.recipes.pictures import Pictures


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def cells(root):
    return segmentation.files(6, 64, root=root)


def test_the_feed_and_the_data_set_see_the_same_pictures(cells, tmp_path):
    ordinary = Pictures(cells, Settings(size=48), training=False, features=segmentation.likeness)
    augment = GPUAugmentation(size=48).eval()
    options = {"features": segmentation.likeness, "cache_folder": tmp_path, "device": "cpu", "num_workers": 1}
    with feed(cells, batch_size=6, augment=augment, **options) as batches:
        images, masks, features = next(iter(batches))
        for index in range(6):
            image, mask, row = ordinary[index]
            assert image.shape == images[index].shape == (3, 48, 48)
            assert (image - images[index]).abs().mean() < 2 / 255  # two filters that make pictures smaller
            assert (mask == masks[index]).float().mean() > 0.97
            torch.testing.assert_close(row, features[index])


def test_a_mask_follows_its_picture(tmp_path):
    half = np.zeros((8, 8), np.uint8)
    half[:, :3] = 1
    Image.fromarray(half * 255).convert("RGB").save(tmp_path / "a.png")
    labels = Image.fromarray(half)
    labels.putpalette([0, 0, 0, 255, 255, 255])
    labels.save(tmp_path / "mask.png")
    files = ImageFiles([tmp_path / "a.png"], masks=[tmp_path / "mask.png"])
    image, mask = Pictures(files, Settings(horizontal_flip_prob=1.0))[0]
    assert image[0].equal(mask.float())
    assert mask[:, -3:].eq(1).all()
    assert mask.sum() == 24
    image, mask = Pictures(files, Settings(vertical_flip_prob=1.0, rotation_degrees=(180.0, 180.0)))[0]
    assert image[0].equal(mask.float())
    assert mask[:, -3:].eq(1).all()


def test_training_draws_and_validation_does_not(root):
    files = classification.files(8, 32, root=root)
    assert files.classes == list(classification.KINDS)
    settings = Settings(rotation_degrees=20, brightness=0.3, contrast=0.3, normalize=((0.5,), (0.25,)))
    drawn = Pictures(files, settings, channels=1)
    assert not drawn[0][0].equal(drawn[0][0])
    still = Pictures(files, settings, channels=1, training=False)
    image, label = still[5]
    assert image.shape == (1, 32, 32)
    assert image.equal(still[5][0])
    assert -2 <= image.min() < image.max() <= 2
    assert label.dtype == torch.int64
    assert [int(still[i][1]) for i in range(8)] == list(range(8))


def test_what_is_not_made_on_the_cpu_is_refused(cells):
    with pytest.raises(InputError, match="shear_degrees, blur_prob is not made on the CPU"):
        Pictures(cells, Settings(shear_degrees=5, blur_prob=0.5))


def test_generated_pictures_are_the_same_whenever_they_are_drawn():
    for draw in (classification.draw, segmentation.draw):
        first, again, other = draw(3, 64), draw(3, 64), draw(3, 64, 1)
        assert np.array_equal(first[0], again[0])
        assert np.array_equal(first[1], again[1])
        assert not np.array_equal(first[0], other[0])


def test_what_is_searched_for_depends_on_the_stain():
    """Without knowing the stain, neither bright nor dark can be the answer: there is something to learn."""
    for index, bright in enumerate((True, True, False, False)):
        picture, mask = segmentation.draw(index, 128)
        grey = picture.mean(2)
        ground = np.median(grey)
        assert (grey[mask == 1].mean() > ground) == bright
        assert ((grey > 1.15 * ground) | (grey < 0.8 * ground))[mask == 0].any()  # the others are there, too


def test_likeness_tells_stains_apart():
    for index in range(8):
        picture = torch.from_numpy(segmentation.draw(index, 128)[0]).permute(2, 0, 1)
        assert int(segmentation.likeness(picture).argmax()) == index % len(segmentation.STAINS)
