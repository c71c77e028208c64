"""Masks found by the names of their images."""

from __future__ import annotations

import pytest

from fulltilt.pairs import by_image


@pytest.mark.parametrize(
    ("images", "masks", "found"),
    [
        (["1", "10"], ["10", "1", "2"], {"1": "1", "10": "10"}),
        (["1", "10"], ["1_mask", "10_mask", "2_mask"], {"1": "1_mask", "10": "10_mask"}),
        (["1", "10"], ["1_mask", "1_old", "10_mask"], {"1": "1_mask", "10": "10_mask"}),
        (["1", "10"], ["1_mask", "1_old", "10_mask", "10_old"], {}),
        (["1", "10"], ["10_mask", "100_mask"], {}),
        (["1", "10"], ["1_mask", "10"], {"10": "10"}),
    ],
)
def test_masks_have_the_names_of_their_images_or_one_common_end(images, masks, found):
    pairs = by_image(images, {name: name for name in masks})
    assert {name: pairs[name] for name in images if name in pairs} == found
