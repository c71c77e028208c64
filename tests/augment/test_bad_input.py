"""What is wrong is named, with what was found and what is allowed; what is allowed is never garbage."""

from __future__ import annotations

import pytest
import torch
from tests.augment.support import labels, photo, plain

from fulltilt.augment import GPUAugmentation, ProgressiveAugmentation, Ragged, Settings
from fulltilt.errors import InputError

IMAGES = photo(2, 8, 9, 3)
MASKS = labels(2, 8, 9)
TURNED = {"rotation_degrees": (45.0, 45.0)}


def refused(*words: str):
    """An InputError that says all of these."""
    return pytest.raises(InputError, match="(?s)" + "".join(f"(?=.*{_plain(word)})" for word in words))


def _plain(text: str) -> str:
    return "".join("\\" + c if c in ".^$*+?{}[]\\|()" else c for c in text)


# --- settings ------------------------------------------------------------------------------------------------------

WRONG = [
    ("horizontal_flip_prob", 1.5, "from 0 to 1"),
    ("vertical_flip_prob", -0.1, "from 0 to 1"),
    ("quarter_turn_prob", True, "from 0 to 1"),
    ("rotation_degrees", -5.0, "from 0 to 360"),
    ("rotation_degrees", (30.0, 10.0), "(low, high)"),
    ("rotation_degrees", (-400.0, 0.0), "within -360 to 360"),
    ("rotation_degrees", "15", "from 0 to 360"),
    ("rotation_degrees", float("nan"), "from 0 to 360"),
    ("rotation_degrees", (1.0, 2.0, 3.0), "pair"),
    ("scale", 1.0, "from 0 to 0.99"),
    ("scale", (0.0, 1.0), "within 0.01 to 100"),
    ("translate", 1.5, "from 0 to 1"),
    ("translate", (0.1, -0.1), "within 0 to 1"),
    ("shear_degrees", 90.0, "from 0 to 80"),
    ("perspective", 1.0, "from 0 to 0.9"),
    ("perspective_prob", 2, "from 0 to 1"),
    ("size", 0, "≥ 1"),
    ("size", (5,), "(height, width)"),
    ("size", (5, 0), "≥ 1"),
    ("size", (5.0, 5.0), "whole number"),
    ("size", (1, 2, 3), "(height, width)"),
    ("random_crop", 0, "≥ 1"),
    ("random_crop", (4, -4), "≥ 1"),
    ("random_resized_crop", (0.0, 1.0), "within"),
    ("random_resized_crop", (0.5, 1.5), "within"),
    ("crop_ratio", (0.0, 1.0), "within 0.01 to 100"),
    ("crop_padding", 1.5, "whole number"),
    ("crop_padding", -1, "from 0"),
    ("eval_crop", 0.0, "from 0.01 to 1"),
    ("brightness", -0.1, "from 0 to 10"),
    ("brightness", (-0.5, 1.0), "within 0 to 11"),
    ("brightness", (0, 255), "within 0 to 11"),
    ("contrast", 11, "from 0 to 10"),
    ("contrast_pivot", "median", "'mean'"),
    ("contrast_pivot", 2.0, "from 0 to 1"),
    ("saturation", [1.2, 0.8], "(low, high)"),
    ("hue", 0.6, "from 0 to 0.5"),
    ("hue", (0, 30), "within -0.5 to 0.5"),
    ("gray_prob", None, "from 0 to 1"),
    ("gamma", 1.0, "from 0 to 0.99"),
    ("solarize_threshold", 2, "from 0 to 1"),
    ("posterize_bits", 0, "from 1 to 8"),
    ("posterize_bits", 3.5, "whole number"),
    ("noise_std", -1, "from 0 to 10"),
    ("erase_area", (0.5, 0.1), "(low, high)"),
    ("erase_ratio", 1.0, "pair"),
    ("erase_value", float("inf"), "from -10000 to 10000"),
    ("blur_sigma", (0.0, 1.0), "within 0.01 to 20"),
    ("fill", "mirror", "'reflect' or 'edge'"),
    ("fill", 2.0, "from 0 to 1"),
    ("mask_fill", 0.5, "whole number"),
    ("antialias", 1, "True or False"),
    ("normalize", "coco", "'imagenet'"),
    ("normalize", ((0.5,), (0.0,)), "at least 0.0001"),
    ("normalize", ((0.5, 0.5), (0.5,)), "as many"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), WRONG, ids=str)
def test_a_wrong_setting_is_named_with_what_is_allowed(name, value, allowed):
    with refused(name, allowed):
        plain(**{name: value})
    if name != "normalize":
        with refused(repr(tuple(value) if isinstance(value, list) else value)):
            plain(**{name: value})


def test_every_setting_is_checked():
    """A new option can't be left without a check by mistake."""
    for name in Settings.__dataclass_fields__:
        with refused(name):
            Settings(**{name: object()})


def test_all_that_is_wrong_is_said_at_once():
    with refused("brightness=-1", "hue=3", "size=0"):
        plain(brightness=-1, hue=3, size=0)


def test_an_unknown_setting_gets_a_suggestion():
    with refused("rotation", "did you mean rotation_degrees?"):
        plain(rotation=15)
    with refused("rotation_degree", "did you mean rotation_degrees?", "Allowed:", "horizontal_flip_prob"):
        plain(rotation_degree=3)
    with refused("chanels_last", "did you mean channels_last?"):
        plain(chanels_last=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"random_resized_crop": True}, ("random_resized_crop", "size")),
        ({"random_crop": 4, "size": 8}, ("random_crop", "size")),
        ({"random_crop": 4, "random_resized_crop": True, "size": 4}, ("random_crop", "random_resized_crop")),
        ({"crop_padding": 2}, ("crop_padding", "random_crop")),
        ({"dtype": torch.int32}, ("dtype=torch.int32", "torch.bfloat16")),
        ({"dtype": "bf16"}, ("dtype=bf16", "torch.bfloat16")),
        ({"dtype": torch.uint8, "normalize": "imagenet"}, ("dtype=torch.uint8", "normalize")),
        ({"layout": "NHWC"}, ("layout='NHWC'", "'channels_last'")),
        ({"seed": 1.5}, ("seed=1.5", "whole number")),
        ({"seed": 1 << 63}, ("seed=9223372036854775808", "64 bits")),
        ({"then": [3]}, ("then=[3]", "modules")),
        ({"then": torch.nn.Identity()}, ("then=Identity()", "list")),
    ],
    ids=str,
)
def test_settings_that_contradict_each_other(options, words):
    with refused(*words):
        plain(**options)


def test_lists_do_for_pairs():
    """YAML and JSON know no tuples."""
    assert plain(size=[4, 5], brightness=[0.5, 1.5]).settings == plain(size=(4, 5), brightness=(0.5, 1.5)).settings


@pytest.mark.parametrize("value", [1.5, -0.1, float("nan"), "strong", None])
def test_strength(value):
    aug = plain()
    with refused(f"strength={value!r}", "0 to 1"):
        aug.strength = value
    assert aug.strength == 1.0


@pytest.mark.parametrize("value", [-1, 1.0, "1", None])
def test_epoch(value):
    with refused(f"epoch={value!r}", "≥ 0"):
        plain().set_epoch(value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"switch_epoch": -1}, ("switch_epoch=-1", "≥ 0")),
        ({"ramp_epochs": 0.5}, ("ramp_epochs=0.5", "whole number")),
        ({"minimal": {"fill": 0.1}}, ("fill", "0.1", "minimal", "strong")),
        ({"strong": {"size": 4}}, ("size", "4")),
        ({"minimal": {"contrast_pivot": "mean"}}, ("contrast_pivot", "mean", "0.5")),
        ({"strong": {"sise": 4}}, ("sise", "did you mean size?")),
    ],
    ids=str,
)
def test_progressive(options, words):
    with refused(*words):
        ProgressiveAugmentation(**options)


# --- inputs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (IMAGES[0], ("images", "(8, 9, 3)", "images[None]")),
        (IMAGES.int(), ("images", "torch.int32", "torch.uint8")),
        (IMAGES.bool(), ("images", "torch.bool", "torch.uint8")),
        (IMAGES.to(torch.complex64), ("images", "torch.complex64")),
        (IMAGES.float().to(torch.float8_e4m3fn), ("images", "torch.float8_e4m3fn")),
        (torch.zeros(2, 3, 0, 4), ("images", "(2, 3, 0, 4)", "0")),
        (torch.zeros(2, 0, 3, 4, 4), ("images", "(2, 0, 3, 4, 4)", "0")),
        (torch.zeros(2, 8, 8, 8), ("images", "(8, 8, 8)", "layout='channels_first'")),
        (torch.zeros(2, 3, 8, 3), ("images", "layout=")),
        (IMAGES.numpy(), ("images", "ndarray")),
        ([IMAGES[0].numpy()], ("images", "list of ndarray")),
        ("photo.jpg", ("images", "str")),
        (None, ("images", "NoneType")),
        ([], ("images", "empty")),
        ([IMAGES[0], IMAGES[0].float()], ("images[1]", "torch.float32", "torch.uint8")),
        ([IMAGES[0], IMAGES[0][None]], ("images[1]", "(1, 8, 9, 3)")),
        ([IMAGES[0], IMAGES[0][:, :0]], ("images[1]", "(8, 0, 3)")),
        ([IMAGES[0], photo(8, 9, 4)], ("images[1]", "(8, 9, 4)", "3 channels")),
        ([IMAGES[0], IMAGES[1]], ("size=(height, width)",)),
    ],
    ids=lambda v: str(getattr(v, "shape", ""))[:40],
)
def test_images(images, words):
    with refused(*words):
        plain()(images)


@pytest.mark.parametrize(
    ("images", "masks", "words"),
    [
        (IMAGES, MASKS[:, 1:], ("masks", "(2, 7, 9)", "(2, 8, 9)", "(2, 1, 8, 9)")),
        (IMAGES, MASKS[:1], ("masks", "(1, 8, 9)")),
        (IMAGES, MASKS[:, None].expand(2, 3, 8, 9), ("masks", "(2, 3, 8, 9)")),
        (IMAGES, [MASKS[0], MASKS[1]], ("masks", "tensor", "list")),
        (IMAGES, MASKS.to(torch.complex64), ("masks", "complex")),
        ([*IMAGES], MASKS, ("masks", "list")),
        ([*IMAGES], [MASKS[0]], ("masks", "one per image")),
        ([*IMAGES], [MASKS[0], MASKS[1][:7]], ("masks", "image's size")),
        ([*IMAGES], [MASKS[0].numpy(), MASKS[1].numpy()], ("masks", "ndarray")),
        (Ragged.of([*IMAGES]), [MASKS[0], MASKS[1][:7]], ("masks", "image's size")),
        (Ragged.of([*IMAGES]), Ragged.of([MASKS[0], MASKS[1].T]), ("masks", "image's size")),
    ],
    ids=lambda v: type(v).__name__,
)
def test_masks(images, masks, words):
    with refused(*words):
        plain(size=6)(images, masks)


@pytest.mark.parametrize(
    ("dtype", "value"), [(torch.uint8, 256), (torch.uint8, -1), (torch.bool, 255), (torch.int32, 1 << 40)], ids=str
)
def test_a_fill_that_masks_cant_hold(dtype, value):
    with refused(f"mask_fill={value}", str(dtype)):
        plain(**TURNED, mask_fill=value)(IMAGES, MASKS.to(dtype))
    plain(mask_fill=value)(IMAGES, MASKS.to(dtype))  # nothing is ever outside
    plain(**TURNED, mask_fill=value, fill="edge")(IMAGES, MASKS.to(dtype))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"boxes": torch.zeros(2, 4)}, ("boxes", "N×K×4", "(2, 4)")),
        ({"boxes": torch.zeros(3, 1, 4)}, ("boxes", "N = 2", "(3, 1, 4)")),
        ({"boxes": torch.zeros(2, 1, 4, dtype=torch.int64)}, ("boxes", "torch.int64", "floats")),
        ({"boxes": [[0, 0, 1, 1]]}, ("boxes", "list")),
        ({"keypoints": torch.zeros(2, 1, 3)}, ("keypoints", "N×K×2", "(2, 1, 3)")),
        ({"index": torch.arange(3)}, ("index", "2 whole numbers", "(3,)")),
        ({"index": torch.zeros(2)}, ("index", "torch.float32")),
        ({"index": [0, 1]}, ("index", "tensor", "list")),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else "",
)
def test_other_arguments(arguments, words):
    with refused(*words):
        plain()(IMAGES, **arguments)


def test_normalisation_of_other_channels():
    with refused("normalize", "3 channels", "1"):
        plain(normalize="imagenet")(photo(2, 1, 8, 9))


@pytest.mark.parametrize("bad", [float("nan"), 1.5, -0.5, 200.0, float("inf")])
def test_values_are_looked_at_when_asked(bad):
    images = torch.full((1, 3, 4, 5), 0.5)
    images[0, 1, 2, 3] = bad
    with refused("[0, 1]", "NaN"):
        plain(check_inputs=True)(images)
    plain(check_inputs=True)(images.clamp(0, 1).nan_to_num())


def test_otherwise_they_are_cut_and_nan_is_black(path):
    values = torch.tensor([-1.0, 2.0, 0.5, 0.5, float("nan"), 0.5, 0.5])
    out = path(plain(brightness=(1.0, 1.0)), values.view(1, 1, 1, 7).expand(1, 3, 2, 7))[0, 0, 0]
    assert not bool(out.isnan().any())
    out[3] = 0.5  # a neighbour is as black as the NaN beside it
    assert torch.equal(out, torch.tensor([0.0, 1.0, 0.5, 0.5, 0.0, 0.5, 0.5]))


@pytest.mark.parametrize("masks", [None, torch.zeros(0, 8, 9, dtype=torch.int64), torch.zeros(0, 1, 8, 9)])
def test_an_empty_batch_is_a_batch(path, masks):
    aug = GPUAugmentation(size=(4, 6), dtype=torch.bfloat16, blur_prob=0.5, contrast_pivot="mean")
    call = {} if masks is None else {"masks": masks}
    out = path(aug, torch.zeros(0, 3, 8, 9), boxes=torch.zeros(0, 2, 4), keypoints=torch.zeros(0, 5, 2), **call)
    assert out[0].shape == (0, 3, 4, 6)
    assert out[0].dtype == torch.bfloat16
    assert out[-2].shape == (0, 2, 4)
    assert out[-1].shape == (0, 5, 2)
    if masks is not None:
        assert out[1].shape == (*masks.shape[:-2], 4, 6)
        assert out[1].dtype == masks.dtype
