"""Whatever comes in: the sampler's result for any size, type and layout, and the kernels' result equal to torch's."""

from __future__ import annotations

import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.augment.cases import Case, cases, options
from tests.augment.support import (
    Path,
    about_centre,
    kernels,
    labels,
    photo,
    plain,
    rotate,
    rounding,
    sample,
    sample_labels,
    stretch,
    torch_path,
)

from fulltilt.augment import Ragged

# In the interpreter a call takes a tenth of a second: looking for a smaller failing case would take minutes.
AS_FOUND = (Phase.explicit, Phase.generate)


def check_rotation(path: Path, case: Case, degrees: float, fill: float | str) -> None:
    """One flip and one rotation, against float64, with masks exact."""
    aug = plain(
        horizontal_flip_prob=1.0,
        rotation_degrees=(degrees, degrees),
        fill=fill,
        layout=case.layout,
        dtype=case.dtype,
        mask_fill=1,
    )
    result = path(aug, case.images, *(() if case.masks is None else (case.masks,)))
    images, masks = result if case.masks is not None else (result, None)
    size = tuple(case.planes.shape[-2:])
    inverse = about_centre(rotate(degrees) @ stretch(-1, 1), size)
    assert images.dtype == case.dtype
    assert images.shape == case.planes.shape
    # Places are computed in float32: on large images they are off by some 1e-4 of a pixel.
    tolerance = rounding(path, case.dtype) + 1e-4 + 2e-6 * max(size)
    for k, source in enumerate(case.planes):
        values = source.double() / (255 if source.dtype == torch.uint8 else 1)
        found = images[k].double() / (255 if case.dtype == torch.uint8 else 1)
        assert (found - sample(values, inverse, size, fill)).abs().max() < tolerance
        if masks is not None:
            expected, decided = sample_labels(case.masks[k].view(size), inverse, size, fill, mask_fill=1)
            assert masks.dtype == case.masks.dtype
            assert masks.shape == case.masks.shape
            assert torch.equal(masks[k].view(size)[decided], expected[decided])


FILLS = st.sampled_from([0.0, 0.7, "reflect", "edge"])
DEGREES = st.floats(-180, 180, width=32)


@settings(max_examples=60)
@given(case=cases(height=600, width=500), degrees=DEGREES, fill=FILLS)
def test_a_rotation_of_anything_in_torch(case, degrees, fill):
    with torch_path() as path:
        check_rotation(path, case, degrees, fill)


@settings(max_examples=40, phases=AS_FOUND)
@given(case=cases(height=18, width=34), degrees=DEGREES, fill=FILLS)
def test_a_rotation_of_anything_in_the_kernels(case, degrees, fill):
    with kernels() as path:
        check_rotation(path, case, degrees, fill)


def agree(found: torch.Tensor, expected: torch.Tensor, tolerance: float, *, odd_ones: float = 0.0) -> None:
    """Within the tolerance, except for a share of odd ones."""
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    apart = ~((found.double() - expected.double()).abs() <= tolerance)  # a NaN is apart too
    assert float(apart.double().mean()) <= odd_ones, f"{int(apart.sum())} of {apart.numel()} are apart"


def check_agreement(path: Path, aug, images, masks, dtype, *, odd_ones: float) -> None:
    """The kernels' result and torch's, and the running index afterwards."""
    call = (images,) if masks is None else (images, masks)
    with torch_path() as other:
        expected = other(aug, *call)
    state = aug._state.tolist()
    aug.set_epoch(0)
    found = path(aug, *call)
    assert aug._state.tolist() == state
    # One rounding each, or two units of 8 bits; after normalisation and in places the sum of small errors.
    tolerance = 1.01 / 1 if dtype == torch.uint8 else 2 * rounding(path, dtype) + 5e-4
    if masks is None:
        agree(found, expected, tolerance, odd_ones=odd_ones)
        return
    agree(found[0], expected[0], tolerance, odd_ones=odd_ones)
    agree(found[1], expected[1], 0.0, odd_ones=0.004)  # a label on the border between two


@settings(max_examples=45, phases=AS_FOUND)
@given(data=st.data())
def test_kernels_and_torch_agree(data):
    case = data.draw(cases(height=18, width=34))
    steps = data.draw(st.booleans())
    chosen = data.draw(options(tuple(case.planes.shape[-2:]), steps=steps))
    aug = plain(**chosen, layout=case.layout, dtype=case.dtype, seed=data.draw(st.integers(0, 99)))
    with kernels() as path:
        check_agreement(path, aug, case.images, case.masks, case.dtype, odd_ones=0.02 if steps else 0.0)


@settings(max_examples=12, phases=AS_FOUND)
@given(data=st.data())
def test_kernels_and_torch_agree_on_images_of_different_sizes(data):
    sizes = data.draw(st.lists(st.tuples(st.integers(1, 16), st.integers(1, 20)), min_size=1, max_size=3))
    channels = data.draw(st.sampled_from([1, 3, 3, 4]))
    interleaved = data.draw(st.booleans())
    images = [photo(*((*s, channels) if interleaved else (channels, *s)), seed=k) for k, s in enumerate(sizes)]
    masks = [labels(*s, seed=k) for k, s in enumerate(sizes)] if data.draw(st.booleans()) else None
    chosen = {"size": (9, 11)} | data.draw(options((12, 15)))
    if "random_crop" in chosen:
        del chosen["size"]
    aug = plain(**chosen, layout="channels_last" if interleaved else "channels_first")
    with kernels() as path:
        check_agreement(path, aug, images, masks, torch.float32, odd_ones=0.0)


@settings(max_examples=6, phases=AS_FOUND)
@given(data=st.data())
def test_kernels_and_torch_agree_on_clips(data):
    frames, channels = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([1, 3]))
    clips, masks = photo(2, frames, channels, 10, 14), labels(2, frames, 10, 14)
    aug = plain(**data.draw(options((10, 14))), layout="channels_first", dtype=torch.bfloat16)
    with kernels() as path:
        check_agreement(path, aug, clips, masks, torch.bfloat16, odd_ones=0.0)


@settings(max_examples=12, phases=AS_FOUND)
@given(offset=st.integers(0, 5), shrinks=st.booleans(), sizes=st.lists(st.integers(4, 12), min_size=2, max_size=2))
def test_a_buffer_that_begins_anywhere(offset, shrinks, sizes):
    """Words are read from aligned addresses, and nothing beyond an image shows in it."""
    images = [photo(s, s + 1, 3, seed=s) for s in sizes]
    buffer = torch.cat([photo(offset, seed=7), *(image.flatten() for image in images), photo(9, seed=8)])
    offsets, at = [], offset
    for image in images:
        offsets.append(at)
        at += image.numel()
    ragged = Ragged(
        data=buffer,
        offsets=torch.tensor(offsets),
        sizes=torch.tensor([image.shape[:2] for image in images], dtype=torch.int32),
        smallest=min(sizes),
    )
    aug = plain(size=(3, 4) if shrinks else (13, 14), horizontal_flip_prob=0.5)
    with kernels() as path:
        check_agreement(path, aug, ragged, None, torch.float32, odd_ones=0.0)
