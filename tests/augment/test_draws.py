"""The same sample gets the same draw: alone, in any batch, in any order, on either path. Draws are as asked for."""

from __future__ import annotations

import math

import pytest
import torch
from tests.augment.support import dots, kernels, labels, philox, photo, plain, torch_path, uniform, word

from fulltilt.augment import GPUAugmentation, StrongGPUAugmentation
from fulltilt.augment import philox as generator
from fulltilt.augment.layout import UNIFORMS, Column, Uniform

# --- the generator -------------------------------------------------------------------------------------------------

# From the authors' own file of known answers (Random123, kat_vectors: philox4x32, 10 rounds).
KNOWN = [
    ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(counter, key, answer):
    words = generator.philox(tuple(torch.tensor([c]) for c in counter), key)
    assert " ".join(f"{int(w):08x}" for w in words) == answer
    assert " ".join(f"{w:08x}" for w in philox(counter, key)) == answer


@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (5, 3), (-1, 1), (-(1 << 63), 7), ((1 << 63) - 1, (1 << 32) - 1)])
def test_a_samples_words(seed, epoch):
    index = [0, 1, 12345, (1 << 32) + 1, (1 << 40) + 3]
    words = generator.sample_words(seed, epoch, torch.tensor(index), UNIFORMS)
    for k, sample in enumerate(index):
        assert words[k].tolist() == [word(seed, epoch, sample, purpose) for purpose in range(UNIFORMS)]


def test_purposes_keep_their_numbers():
    """A renumbering would change every draw that somebody has trained with."""
    assert {u.name: u.value for u in Uniform} == {
        "HORIZONTAL_FLIP": 0, "VERTICAL_FLIP": 1, "QUARTER_TURN": 2, "TURNS": 3, "ROTATION": 4, "SCALE": 5,
        "TRANSLATE_X": 6, "TRANSLATE_Y": 7, "SHEAR_X": 8, "SHEAR_Y": 9, "CROP_X": 10, "CROP_Y": 11,
        "PERSPECTIVE_IF": 12, "BRIGHTNESS": 16, "CONTRAST": 17, "SATURATION": 18, "HUE": 19, "GRAY": 20, "INVERT": 21,
        "GAMMA": 22, "SOLARIZE": 23, "POSTERIZE": 24, "ERASE_IF": 25, "BLUR_IF": 26, "BLUR": 27, "ERASE_AREA": 28,
        "ERASE_RATIO": 29, "ERASE_X": 30, "ERASE_Y": 31, "PERSPECTIVE": 32, "CROP": 40, "NOISE_KEY": 60,
    }  # fmt: skip


@pytest.mark.parametrize("seed", [0, -3, (1 << 40) + 9])
def test_uniforms_reach_the_rows_unrounded(path, seed):
    aug = plain(brightness=(0.0, 1.0), hue=(0.0, 0.5), noise_std=0.1, seed=seed)
    aug.set_epoch(4)
    index = torch.tensor([0, 7, (1 << 33) + 5])
    rows = path.rows(aug, photo(3, 8, 8, 3), index=index)
    keys = rows[:, Column.NOISE_KEY : Column.NOISE_KEY + 2].contiguous().view(torch.int32)
    for k, sample in enumerate(index.tolist()):
        assert float(rows[k, Column.GAIN]) == uniform(Uniform.BRIGHTNESS, index=sample, seed=seed, epoch=4)
        assert float(rows[k, Column.HUE]) == uniform(Uniform.HUE, index=sample, seed=seed, epoch=4) / 2
        found = [int(key) & 0xFFFFFFFF for key in keys[k]]
        assert found == [word(seed, 4, sample, Uniform.NOISE_KEY + j) for j in range(2)]


# --- the same sample, the same draw --------------------------------------------------------------------------------

EVERYTHING = {
    "vertical_flip_prob": 0.3,
    "quarter_turn_prob": 0.4,
    "rotation_degrees": 30.0,
    "perspective": 0.3,
    "random_resized_crop": True,
    "size": 12,
    "solarize_prob": 0.3,
    "posterize_prob": 0.3,
    "invert_prob": 0.3,
}


def images_and_masks(count):
    return photo(count, 14, 16, 3), labels(count, 14, 16)


@pytest.mark.parametrize("split", [[1] * 5, [2, 3]], ids=str)
def test_however_a_batch_is_split(path, split):
    images, masks = images_and_masks(5)
    whole = path(StrongGPUAugmentation(**EVERYTHING, seed=11), images, masks)
    aug = StrongGPUAugmentation(**EVERYTHING, seed=11)
    parts = [path(aug, i, m) for i, m in zip(images.split(split), masks.split(split), strict=True)]
    assert torch.equal(whole[0], torch.cat([part[0] for part in parts]))
    assert torch.equal(whole[1], torch.cat([part[1] for part in parts]))


def test_whatever_the_order_and_the_company(path):
    images, masks = images_and_masks(6)
    aug = StrongGPUAugmentation(**EVERYTHING)
    whole = path(aug, images, masks, index=torch.arange(6))
    order = torch.tensor([4, 0, 5, 2])
    some = path(aug, images[order], masks[order], index=order)
    assert torch.equal(some[0], whole[0][order])
    assert torch.equal(some[1], whole[1][order])


def test_two_ranks_see_what_one_sees(path):
    """A distributed sampler deals samples out in turn."""
    images, _ = images_and_masks(6)
    one = path(GPUAugmentation(seed=3), images)
    for rank in range(2):
        mine = torch.arange(rank, 6, 2)
        assert torch.equal(path(GPUAugmentation(seed=3), images[mine], index=mine), one[mine])


def test_counting_is_from_zero_in_each_epoch(path):
    images, _ = images_and_masks(4)
    aug = GPUAugmentation()
    first, second = path(aug, images), path(aug, images)
    assert torch.equal(second, path(aug, images, index=torch.arange(4, 8)))
    aug.set_epoch(1)
    other = path(aug, images)
    aug.set_epoch(0)
    assert torch.equal(path(aug, images), first)
    assert not torch.equal(other, first)


def test_an_index_moves_no_counter(path):
    images, _ = images_and_masks(2)
    aug = GPUAugmentation()
    path(aug, images, index=torch.tensor([8, 9]))
    assert torch.equal(path(aug, images), path(GPUAugmentation(), images))


def test_eval_mode_moves_no_counter(path):
    images, _ = images_and_masks(2)
    aug = GPUAugmentation()
    path(aug.eval(), images)
    assert torch.equal(path(aug.train(), images), path(GPUAugmentation(), images))


def test_a_resumed_run_goes_on_where_it_stopped(path):
    images, _ = images_and_masks(3)
    aug = GPUAugmentation(seed=5)
    aug.set_epoch(6)
    aug.strength = 0.5
    path(aug, images)
    saved = {name: value.clone() for name, value in aug.state_dict().items()}
    resumed = GPUAugmentation(seed=0)
    resumed.load_state_dict(saved)
    assert resumed.strength == 0.5
    assert torch.equal(path(resumed, images), path(aug, images))


@pytest.mark.parametrize("change", ["seed", "epoch", "index"])
def test_other_numbers_are_other_draws(path, change):
    images = photo(1, 14, 16, 3).expand(3, 14, 16, 3)
    base = path(GPUAugmentation(), images, index=torch.arange(3))
    aug = GPUAugmentation(seed=1 if change == "seed" else 0)
    if change == "epoch":
        aug.set_epoch(1)
    other = path(aug, images, index=torch.arange(3) + (3 if change == "index" else 0))
    assert all(not torch.equal(a, b) for a, b in zip(base, other, strict=True))


DRAWN = {
    "all": EVERYTHING,
    "crop": {"random_crop": (9, 20), "crop_padding": 3},
    "mean": {"contrast_pivot": "mean"},
}


@pytest.mark.parametrize("name", DRAWN)
def test_both_paths_draw_alike(name):
    images = photo(6 if name == "mean" else 100, 14, 16, 3)
    aug = StrongGPUAugmentation(**DRAWN[name], seed=2)
    with torch_path() as path:
        expected = path.rows(aug, images)
    with kernels() as path:
        found = path.rows(aug, images)
    keys = slice(Column.NOISE_KEY, Column.NOISE_KEY + 2)
    assert torch.equal(found[:, keys].contiguous().view(torch.int32), expected[:, keys].contiguous().view(torch.int32))
    assert (found[:, : keys.start] - expected[:, : keys.start]).abs().max() < 1e-5


# --- one operation leaves the others alone -------------------------------------------------------------------------

SEPARATE = {
    "brightness": Column.GAIN,
    "hue": Column.HUE,
    "gamma": Column.GAMMA,
    "solarize_prob": Column.SOLARIZE,
    "posterize_prob": Column.POSTERIZE,
    "erase_prob": Column.ERASE,
    "blur_prob": Column.BLUR,
    "noise_std": Column.NOISE_KEY,
    "rotation_degrees": Column.MATRIX,
}


@pytest.mark.parametrize("without", SEPARATE)
def test_leaving_one_out_changes_no_other(path, without):
    options = {name: (0.3 if name != "rotation_degrees" else 15.0) for name in SEPARATE}
    whole = path.rows(plain(**options), photo(40, 9, 9, 3))
    rest = path.rows(plain(**{k: v for k, v in options.items() if k != without}), photo(40, 9, 9, 3))
    for name, column in SEPARATE.items():
        width = {Column.ERASE: 4, Column.MATRIX: 9, Column.NOISE_KEY: 2}.get(column, 1)
        same = torch.equal(
            whole[:, column : column + width].contiguous().view(torch.int32),
            rest[:, column : column + width].contiguous().view(torch.int32),
        )
        if name != without:
            assert same, name
        elif name != "noise_std":
            assert not same, name


# --- distributions -------------------------------------------------------------------------------------------------

COUNT = 4000
LIMIT = 1.95 / math.sqrt(COUNT)
"""Kolmogorov and Smirnov's distance, exceeded by one fair draw in a thousand."""


def rows(**options):
    with torch_path() as path:
        return path.rows(plain(**options, layout="channels_first", seed=99), dots(COUNT, 8, 8)).double()


def distance(values, low, high):
    ordered = ((values - low) / (high - low)).sort().values
    steps = torch.arange(COUNT, dtype=torch.float64)
    return float(torch.maximum(ordered - steps / COUNT, (steps + 1) / COUNT - ordered).max())


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize(("name", "place"), [("horizontal_flip_prob", 0), ("vertical_flip_prob", 4)])
def test_flips_happen_as_often_as_asked(name, place, probability):
    share = float((rows(**{name: probability})[:, place] < 0).double().mean())
    assert abs(share - probability) <= 4 * math.sqrt(probability * (1 - probability) / COUNT)


def test_the_three_turns_are_alike_often():
    found = rows(quarter_turn_prob=0.75)
    turns = torch.atan2(found[:, 1], found[:, 0]).div(math.pi / 2).round().long() % 4
    counts = torch.bincount(turns, minlength=4).double()
    assert ((counts - COUNT / 4) ** 2 / (COUNT / 4)).sum() < 16.3  # 3 degrees of freedom, one in a thousand


def test_angles_are_uniform():
    found = rows(rotation_degrees=(-20.0, 50.0))
    assert distance(torch.rad2deg(torch.atan2(found[:, 1], found[:, 0])), -20, 50) < LIMIT


def test_scales_are_uniform():
    assert distance(1 / rows(scale=(0.5, 1.5))[:, 0], 0.5, 1.5) < LIMIT


def test_shifts_are_uniform_and_independent():
    found = rows(translate=(0.5, 0.25))
    x, y = -found[:, 2] / 8, -found[:, 5] / 8
    assert distance(x, -0.5, 0.5) < LIMIT
    assert distance(y, -0.25, 0.25) < LIMIT
    assert abs(float((x * y).mean() / (x.std() * y.std()))) < 4 / math.sqrt(COUNT)


def test_no_two_purposes_go_together():
    """Uniforms of all purposes over many samples: no pair is correlated."""
    u = generator.to_uniform(generator.sample_words(1, 2, torch.arange(COUNT), UNIFORMS)).double()
    found = torch.corrcoef(u.T) - torch.eye(UNIFORMS, dtype=torch.float64)
    assert float(found.abs().max()) < 5.5 / math.sqrt(COUNT)
    assert float(torch.corrcoef(torch.stack([u[1:, 4], u[:-1, 4]]))[0, 1].abs()) < 4 / math.sqrt(COUNT)
