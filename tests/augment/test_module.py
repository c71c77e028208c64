"""The modules in somebody's loop: modes, strength, schedules, copies, torch.compile."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from tests.augment.support import labels, photo, plain
from torch.nn import functional as F

from fulltilt.augment import (
    GPUAugmentation,
    MinimalGPUAugmentation,
    ProgressiveAugmentation,
    Ragged,
    StrongGPUAugmentation,
)
from fulltilt.augment.module import STRONG

IMAGES = photo(3, 3, 16, 18)
MASKS = labels(3, 16, 18)


def test_as_in_the_guides(path):
    aug = GPUAugmentation(horizontal_flip_prob=0.5, rotation_degrees=15, brightness=0.2, contrast=0.2)
    images, masks = path(aug, IMAGES, MASKS)
    assert images.shape == IMAGES.shape
    assert images.dtype == torch.float32
    assert masks.dtype == torch.int64
    assert 0.0 <= float(images.min()) <= float(images.max()) <= 1.0
    assert set(masks.unique().tolist()) <= set(MASKS.unique().tolist())


# --- layouts and types ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels_last", [None, False, True])
@pytest.mark.parametrize("interleaved", [False, True])
def test_memory_format(path, interleaved, channels_last):
    images = IMAGES.movedim(1, -1).contiguous() if interleaved else IMAGES
    out = path(plain(channels_last=channels_last), images)
    assert out.shape == IMAGES.shape
    wanted = interleaved if channels_last is None else channels_last
    assert out.is_contiguous(memory_format=torch.channels_last if wanted else torch.contiguous_format)
    assert torch.allclose(out, IMAGES / 255)


@pytest.mark.parametrize(
    ("source", "asked", "found"),
    [
        (torch.uint8, None, torch.float32),
        (torch.float64, None, torch.float32),
        (torch.bfloat16, None, torch.bfloat16),
        (torch.float16, None, torch.float16),
        (torch.uint8, torch.float16, torch.float16),
        (torch.float32, torch.uint8, torch.uint8),
    ],
    ids=str,
)
def test_types(path, source, asked, found):
    images = IMAGES if source == torch.uint8 else (IMAGES / 255).to(source)
    out = path(plain(dtype=asked), images)
    assert out.dtype == found
    if found == torch.uint8:
        assert torch.equal(out, IMAGES)


@pytest.mark.parametrize(
    ("shape", "first"),
    [((3, 18, 22), True), ((18, 22, 3), False), ((1, 18, 22), True), ((18, 22, 1), False), ((18, 22, 4), False),
     ((3, 18, 4), True), ((4, 18, 3), False)],
    ids=str,
)  # fmt: skip
def test_channels_are_found(shape, first):
    images = photo(2, *shape)
    expected = images if first else images.movedim(-1, 1)
    assert torch.allclose(plain()(images), expected / 255)
    assert torch.allclose(plain(size=shape[1:] if first else shape[:2])([*images]), expected / 255, atol=1e-6)


@pytest.mark.parametrize("interleaved", [False, True])
def test_clips(path, interleaved):
    clips = photo(2, 3, 3, 10, 12)
    source = clips.movedim(2, -1).contiguous() if interleaved else clips
    out = path(plain(horizontal_flip_prob=1.0, layout="channels_last" if interleaved else "channels_first"), source)
    assert torch.allclose(out, clips.flip(-1) / 255)


@pytest.mark.parametrize("dims", [2, 3])
def test_lists_of_masks(path, dims):
    images = [photo(9, 12, 3), photo(14, 8, 3)]
    masks = [labels(9, 12), labels(14, 8)]
    given = masks if dims == 2 else [mask[None] for mask in masks]
    out, found = path(plain(random_crop=(7, 6)).eval(), images, given)
    assert found.shape == ((2, 7, 6) if dims == 2 else (2, 1, 7, 6))
    for k, (top, left) in enumerate([(1, 3), (3, 1)]):
        assert torch.equal(found[k].view(7, 6), masks[k][top : top + 7, left : left + 6])
        assert torch.allclose(out[k], images[k][top : top + 7, left : left + 6].movedim(-1, 0) / 255)


def test_a_ragged_batch_is_the_list():
    images, masks = [photo(9, 12, 3), photo(14, 8, 3)], [labels(9, 12), labels(14, 8)]
    options = {"random_resized_crop": True, "size": 6}
    listed = plain(**options)(images, masks)
    ragged = plain(**options)(Ragged.of(images), Ragged.of(masks, layout="channels_first"))
    assert torch.equal(listed[0], ragged[0])
    assert torch.equal(listed[1], ragged[1])


# --- eval ----------------------------------------------------------------------------------------------------------


KINDS = [GPUAugmentation, StrongGPUAugmentation, MinimalGPUAugmentation, ProgressiveAugmentation]


@pytest.mark.parametrize("kind", KINDS)
def test_eval_mode_is_identity(path, kind):
    images, masks = path(kind(dtype=torch.uint8).eval(), IMAGES, MASKS)
    assert torch.equal(images, IMAGES)
    assert torch.equal(masks, MASKS)


def test_eval_mode_resizes_and_normalises(path):
    aug = StrongGPUAugmentation(size=(8, 9), normalize="imagenet", dtype=torch.float16).eval()
    images, masks = path(aug, IMAGES, MASKS)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    expected = (F.interpolate(IMAGES / 255, (8, 9), mode="bilinear", antialias=True) - mean) / std
    assert images.dtype == torch.float16
    assert (images - expected).abs().max() < 4e-3
    assert torch.equal(masks, MASKS[:, 1::2, 1::2])


def test_eval_mode_crops_the_middle(path):
    images, masks = path(plain(random_crop=(8, 10), dtype=torch.uint8).eval(), IMAGES, MASKS)
    assert torch.equal(images, IMAGES[:, :, 4:12, 4:14])
    assert torch.equal(masks, MASKS[:, 4:12, 4:14])


# --- strength ------------------------------------------------------------------------------------------------------


def test_no_strength_leaves_flips_turns_and_crops(path):
    kept = {"vertical_flip_prob": 0.5, "quarter_turn_prob": 0.5, "random_crop": (8, 8), "dtype": torch.uint8}
    aug = StrongGPUAugmentation(invert_prob=1.0, **kept)
    aug.strength = 0.0
    ours, expected = path(aug, IMAGES, MASKS), path(MinimalGPUAugmentation(**kept), IMAGES, MASKS)
    assert torch.equal(ours[0], expected[0])
    assert torch.equal(ours[1], expected[1])


def test_half_strength_is_half_the_range(path):
    aug = plain(brightness=(0.4, 0.4), rotation_degrees=(40.0, 40.0))
    aug.strength = 0.5
    expected = path(plain(brightness=(0.7, 0.7), rotation_degrees=(20.0, 20.0)), IMAGES)
    assert (path(aug, IMAGES) - expected).abs().max() < 1e-5


def test_full_strength_is_what_was_asked(path):
    aug = StrongGPUAugmentation()
    aug.strength = 0.3
    aug.strength = 1.0
    assert torch.equal(path(aug, IMAGES), path(StrongGPUAugmentation(), IMAGES))


# --- schedules -----------------------------------------------------------------------------------------------------


def test_a_step_from_minimal_to_strong(path):
    options = {"dtype": torch.uint8}
    aug = ProgressiveAugmentation(switch_epoch=2, **options)
    for epoch, other in ((0, MinimalGPUAugmentation), (1, MinimalGPUAugmentation), (2, StrongGPUAugmentation)):
        aug.set_epoch(epoch)
        expected = other(**options)
        expected.set_epoch(epoch)
        ours, theirs = path(aug, IMAGES, MASKS), path(expected, IMAGES, MASKS)
        assert (ours[0].int() - theirs[0].int()).abs().max() <= 1
        assert torch.equal(ours[1], theirs[1])


def test_a_ramp():
    aug = ProgressiveAugmentation(switch_epoch=50, ramp_epochs=10)
    seen = []
    for epoch in (0, 49, 50, 51, 55, 60, 200):
        aug.set_epoch(epoch)
        seen.append(aug.strength)
    assert seen == pytest.approx([0.0, 0.0, 0.0, 0.1, 0.5, 1.0, 1.0])


def test_the_guides_schedule_is_the_default():
    aug = ProgressiveAugmentation()
    strengths = []
    for epoch in (0, 49, 50, 99):
        aug.set_epoch(epoch)
        strengths.append(aug.strength)
    assert strengths == [0.0, 0.0, 1.0, 1.0]


def test_a_schedule_changes_numbers_and_never_the_kernel():
    """Kernels are compiled for what a Spec says: it is one and the same in every epoch."""
    from fulltilt.augment.batch import make_batch

    aug = ProgressiveAugmentation(switch_epoch=1, ramp_epochs=3)
    batch = make_batch(IMAGES, MASKS, "auto")
    specs, dials = set(), set()
    for epoch in range(6):
        aug.set_epoch(epoch)
        specs.add(aug._spec(batch, counted=True))
        dials.add(tuple(id(t) for t in (aug._full, aug._rest, aug._strength, aug._state)))
    assert len(specs) == len(dials) == 1


def test_ends_of_ones_own(path):
    aug = ProgressiveAugmentation(
        switch_epoch=1,
        ramp_epochs=2,
        minimal={"horizontal_flip_prob": 0.0, "brightness": (0.8, 0.8)},
        strong=dict.fromkeys(STRONG, 0.0) | {"blur_sigma": (1.0, 1.0), "brightness": (0.4, 0.4)},
    )
    for epoch, factor in ((0, 0.8), (1, 0.8), (2, 0.6), (3, 0.4), (9, 0.4)):
        aug.set_epoch(epoch)
        assert (path(aug, IMAGES) - factor * IMAGES / 255).abs().max() < 1e-5


# --- copies and states ---------------------------------------------------------------------------------------------


def by_pickle(aug):
    return pickle.loads(pickle.dumps(aug))


def by_torch(aug):
    buffer = io.BytesIO()
    torch.save(aug, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize("way", [copy.deepcopy, by_pickle, by_torch])
@pytest.mark.parametrize("kind", [GPUAugmentation, ProgressiveAugmentation])
def test_a_copy_goes_on_by_itself(kind, way):
    aug = kind(seed=7)
    aug.set_epoch(60)
    aug(IMAGES)
    twin = way(aug)
    expected = aug(IMAGES)
    assert torch.equal(twin(IMAGES), expected)
    twin.set_epoch(2)
    assert not torch.equal(twin(IMAGES), aug(IMAGES))


@pytest.mark.parametrize("assign", [False, True])
def test_a_state_is_loaded_into_a_module_that_has_run(assign):
    source, target = GPUAugmentation(seed=9), GPUAugmentation(seed=1)
    source(IMAGES)
    target(IMAGES)
    target.load_state_dict({k: v.clone() for k, v in source.state_dict().items()}, assign=assign)
    assert torch.equal(target(IMAGES), source(IMAGES))


def test_a_state_holds_numbers_that_weights_only_can_load():
    buffer = io.BytesIO()
    torch.save(GPUAugmentation(seed=9).state_dict(), buffer)
    buffer.seek(0)
    GPUAugmentation().load_state_dict(torch.load(buffer, weights_only=True))


@pytest.mark.parametrize("to", [torch.float16, torch.bfloat16, torch.float64])
def test_a_models_dtype_is_not_the_draws(to):
    model = torch.nn.Sequential(GPUAugmentation(normalize="imagenet"))
    expected = copy.deepcopy(model)(IMAGES)
    assert torch.equal(model.to(to)(IMAGES), expected)


def test_nothing_to_train():
    aug = StrongGPUAugmentation(normalize="imagenet")
    assert not list(aug.parameters())
    assert set(aug.state_dict()) == {"_strength", "_state"}


def test_no_gradient_goes_back(path):
    assert not path(GPUAugmentation(), torch.rand(1, 3, 4, 5, requires_grad=True)).requires_grad


def test_its_repr_says_what_it_does():
    text = repr(GPUAugmentation(hue=0.1))
    assert "rotation_degrees=15" in text
    assert "hue=0.1" in text
    assert "saturation" not in text


def test_inputs_are_left_alone(path):
    images, masks = IMAGES.clone(), MASKS.clone()
    path(StrongGPUAugmentation(), images, masks)
    assert torch.equal(images, IMAGES)
    assert torch.equal(masks, MASKS)


# --- torch.compile -------------------------------------------------------------------------------------------------


@pytest.fixture
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("kind", ["masks", "boxes", "list", "clip", "index"])
def test_compiled_in_one_graph(kind):
    aug = StrongGPUAugmentation(size=(12, 14), normalize="imagenet", layout="channels_first")
    call: tuple = (IMAGES, MASKS)
    options: dict = {}
    if kind == "boxes":
        options = {"boxes": torch.tensor([[[2.0, 2.0, 9.0, 9.0]]]).expand(3, 1, 4)}
    elif kind == "list":
        call = ([photo(3, 15, 17), photo(3, 20, 11)],)
    elif kind == "clip":
        call = (photo(2, 3, 3, 18, 22),)
    elif kind == "index":
        options = {"index": torch.tensor([5, 3, 1 << 40])}

    def step(*args, **kwargs):
        out = aug(*args, **kwargs)
        return [x * 2 if x.is_floating_point() else x for x in (out if isinstance(out, tuple) else (out,))]

    expected = [step(*call, **options) for _ in range(3)]
    state = aug._state.tolist()
    aug.set_epoch(0)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for eager in expected:
        for ours, theirs in zip(compiled(*call, **options), eager, strict=True):
            assert ours.stride() == theirs.stride()
            assert torch.equal(ours, theirs)
    assert aug._state.tolist() == state


@pytest.mark.usefixtures("fresh_dynamo")
def test_compiled_epochs_and_shorter_batches():
    aug = GPUAugmentation()
    compiled = torch.compile(aug, fullgraph=True, backend="aot_eager")
    for epoch in range(3):
        aug.set_epoch(epoch)
        ours = [compiled(IMAGES), compiled(IMAGES[:2])]
        aug.set_epoch(epoch)
        assert torch.equal(ours[0], aug(IMAGES))
        assert torch.equal(ours[1], aug(IMAGES[:2]))


def test_the_operator_is_sound():
    """torch's own check: schema, fake tensors, aliasing."""
    from fulltilt.augment.batch import make_batch
    from fulltilt.augment.op import _FLOATS, _INTS

    aug = GPUAugmentation(normalize="imagenet", dtype=torch.bfloat16)
    batch = make_batch(IMAGES, MASKS, "auto")
    spec = aug._spec(batch, counted=True)
    shape = [batch.count, batch.frames, batch.channels, batch.height, batch.width, batch.interleaved, 0]
    torch.library.opcheck(
        torch.ops.fulltilt.augment.default,
        (
            batch.data, batch.masks, None, None, None, aug._state, aug._full, aug._rest, aug._strength, aug._norm, None,
            shape, [int(getattr(spec, n)) for n in _INTS], [float(getattr(spec, n)) for n in _FLOATS], spec.dtype,
        ),
        test_utils=("test_schema", "test_faketensor"),
    )  # fmt: skip
