"""Whatever comes in: the sampler's result for any size, type and layout, and the kernels' result equal to torch's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.augment.cases import DTYPES, FORMS, case_of, cases, laid_out, options
from tests.augment.checks import Labels, check_agreement, check_rotation
from tests.augment.support import kernels, labels, photo, plain, torch_path

from fulltilt.augment import Ragged

# In the interpreter a call takes a tenth of a second: looking for a smaller failing case would take minutes.
AS_FOUND = (Phase.explicit, Phase.generate)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_three_channels_in_every_form(path, form, dtype):
    """Each of these is read in a way of its own, which a random choice may miss."""
    for width in (2, 9, 34):
        images, layout = laid_out(form, dtype, 2, 3, 5, width, seed=width)
        check_rotation(path, case_of(images, layout, None, torch.float32), 20.0, 0.3)


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


@settings(max_examples=24, phases=AS_FOUND)
@given(data=st.data())
def test_kernels_and_torch_agree(data):
    case = data.draw(cases(height=18, width=34))
    steps = data.draw(st.booleans())
    chosen = data.draw(options(tuple(case.planes.shape[-2:]), steps=steps))
    aug = plain(**chosen, layout=case.layout, dtype=case.dtype, seed=data.draw(st.integers(0, 99)))
    with kernels() as path:
        check_agreement(path, aug, case.images, case.masks, odd_ones=0.02 if steps else 0.0)


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
        check_agreement(path, aug, images, masks)


@settings(max_examples=6, phases=AS_FOUND)
@given(data=st.data())
def test_kernels_and_torch_agree_on_clips(data):
    frames, channels = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([1, 3]))
    clips, masks = photo(2, frames, channels, 10, 14), labels(2, frames, 10, 14)
    aug = plain(**data.draw(options((10, 14))), layout="channels_first", dtype=torch.bfloat16)
    with kernels() as path:
        check_agreement(path, aug, clips, masks)


@pytest.mark.parametrize("fill", [0.0, "reflect", "edge"])
def test_a_label_that_is_not_its_places_is_found(fill):
    """And one on the border between two pixels may be either's."""
    image, mask = photo(1, 3, 8, 8), torch.arange(64).view(1, 8, 8)
    aug = plain(rotation_degrees=(30.0, 30.0), fill=fill, size=(16, 12))
    with torch_path() as path:
        allowed = Labels.of(path, aug, image, mask)
        found = path(aug, image, mask)[1]
    allowed.check(found)
    for at in ((8, 6), (2, 9), (15, 11)):
        wrong = found.clone()
        wrong[0][at] += 1
        with pytest.raises(AssertionError, match="1 of 192 labels"):
            allowed.check(wrong)
    halved = plain(size=(8, 4))  # every place along x lies between two
    with torch_path() as path:
        allowed = Labels.of(path, halved, image, mask)
    allowed.check(mask[:, :, 0::2])
    allowed.check(mask[:, :, 1::2])
    with pytest.raises(AssertionError, match="32 of 32 labels"):
        allowed.check(mask[:, :, [2, 4, 6, 7]] + 1)


@settings(max_examples=8, phases=AS_FOUND)
@given(offset=st.integers(0, 5), shrinks=st.booleans(), sizes=st.lists(st.integers(4, 9), min_size=2, max_size=2))
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
    aug = plain(size=(3, 4) if shrinks else (10, 11), horizontal_flip_prob=0.5)
    with kernels() as path:
        check_agreement(path, aug, ragged, None)
