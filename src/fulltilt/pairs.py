"""Which mask belongs to which image, by the names of their files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

Mask = TypeVar("Mask")

_BEFORE_ENDS: Final = "_-. "
"""What an image's name is followed by where its mask's goes on: 1_mask is no other image's, as 10 would be."""


def by_image(images: Sequence[str], masks: Mapping[str, Mask]) -> Mapping[str, Mask]:
    """Masks by the names of their images: as they are, unless all end in the same way, such as _mask.

    Names are those of files without what says their kind. An image may have none in what is returned.
    """
    if any(name in masks for name in images):
        return masks
    first = images[0]
    ends = [name[len(first) :] for name in masks if name.startswith(first) and name[len(first)] in _BEFORE_ENDS]
    common = [end for end in ends if all(name + end in masks for name in images)]
    return {name: masks[name + common[0]] for name in images} if len(common) == 1 else masks
