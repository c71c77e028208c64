"""A batch shaped like an earlier one is launched without another look at it: what that must not get wrong."""

from __future__ import annotations

import pytest
import torch
from tests.augment.support import plain

from fulltilt.augment import GPUAugmentation, Ragged
from fulltilt.errors import InputError


class _OnGPU(torch.Tensor):
    """A tensor that claims to be on a GPU, so that the interpreter is reached by the way that skips the checks."""

    @property
    def is_cuda(self):
        return True


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(lambda clips: clips, id="whole"),
        pytest.param(lambda clips: clips[:, :3], id="first frames"),
        pytest.param(lambda clips: clips[:, ::2], id="every other frame"),
        pytest.param(lambda clips: clips[:, :1].expand(-1, 4, -1, -1, -1), id="one frame repeated"),
        pytest.param(lambda clips: clips.transpose(1, 2).contiguous().transpose(1, 2), id="channels before frames"),
    ],
)
def test_clips_in_any_steps(kernel_path, part):
    clips = part(torch.randint(0, 256, (2, 5, 3, 6, 9), dtype=torch.uint8).to(kernel_path.device))
    aug = plain(dtype=torch.uint8).to(kernel_path.device)
    batch = clips if clips.is_cuda else clips.as_subclass(_OnGPU)
    for _ in range(2):
        assert torch.equal(aug(batch).as_subclass(torch.Tensor), clips)


def test_a_buffer_moved_during_validation_can_still_be_written():
    aug = GPUAugmentation()
    with torch.inference_mode():
        aug.eval()._move(torch.device("meta"))
    assert not aug._state.is_inference()
    aug.set_epoch(3)


def ragged(**changes):
    images = Ragged.of([torch.zeros(6, 5, 3, dtype=torch.uint8)] * 2)
    return Ragged(**({"data": images.data, "offsets": images.offsets, "sizes": images.sizes} | changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"offsets": torch.zeros(2, dtype=torch.int32)},
            r"offsets is \(2,\) torch.int32 .* must be \(2,\) torch.int64",
        ),
        (
            {"sizes": torch.ones(2, 2, dtype=torch.int64)},
            r"sizes is \(2, 2\) torch.int64 .* must be \(2, 2\) torch.int32",
        ),
        ({"sizes": torch.ones(3, 2, dtype=torch.int32)}, r"sizes is \(3, 2\)"),
        ({"sizes": torch.ones(2, 2, dtype=torch.int32, device="meta")}, "on meta.*on cpu, where data is"),
        ({"data": torch.zeros(6, 30, dtype=torch.uint8)}, r"data has shape \(6, 30\); it must be flat"),
    ],
)
def test_a_ragged_batch_that_a_compiled_kernel_would_misread(changes, words):
    ragged()
    with pytest.raises(InputError, match=words):
        ragged(**changes)


def test_large_images_are_taken_and_huge_ones_refused():
    flips = plain(horizontal_flip_prob=1.0, dtype=torch.uint8)
    large = torch.zeros(1, 3, 1300, 1400, dtype=torch.uint8)  # planes × sides is beyond 2^31, elements are not
    assert flips(large).shape == large.shape
    with pytest.raises(InputError, match=r"span 2\^31 elements or more each: tile them first"):
        flips(torch.empty(1, 3, 1 << 15, 1 << 15, dtype=torch.uint8, device="meta"))
    with pytest.raises(InputError, match=r"an output of 3×32768×32768 has 2\^31 elements or more"):
        plain(size=1 << 15)(torch.zeros(1, 3, 4, 4))
