"""Which transforms can be done on the GPU, by their names and attributes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.launch.apply.transforms_like import al, compose, flip, normalize, to_tensor, tv

from fulltilt.augment import GPUAugmentation
from fulltilt.launch.apply import known_albumentations, known_torchvision
from fulltilt.launch.apply.chains import PLAIN, Chain, chain_of, places

BILINEAR, BICUBIC = SimpleNamespace(value="bilinear"), SimpleNamespace(value="bicubic")
MEAN_STD = ((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
RESIZED = tv("RandomResizedCrop", size=(224, 224), scale=(0.08, 1.0), ratio=(0.75, 4 / 3))
JITTER = tv("ColorJitter", brightness=(0.6, 1.4), contrast=(0.7, 1.3), saturation=None, hue=(-0.1, 0.1))
ROTATION = tv("RandomRotation", degrees=[-10.0, 10.0], expand=False, center=None, fill=0)


def chain(*members: Any) -> Chain | None:
    found = chain_of(members, known_torchvision.known)
    if found is not None:
        for one in found.passes:  # every one of them can be had
            GPUAugmentation(**{**PLAIN, **one.options})
    return found


def test_the_usual_training_transforms_are_one_pass() -> None:
    found = chain(RESIZED, flip(), JITTER, to_tensor(), normalize())
    assert found is not None
    assert found.stay == 0
    (only,) = found.passes
    assert only.options == {
        "size": (224, 224), "random_resized_crop": (0.08, 1.0), "crop_ratio": (0.75, 4 / 3),
        "horizontal_flip_prob": 0.5, "brightness": (0.6, 1.4), "contrast": (0.7, 1.3), "contrast_pivot": "mean",
        "hue": (-0.1, 0.1), "normalize": MEAN_STD,
    }  # fmt: skip
    assert found.floats
    assert "rotation_degrees=0.0" in found.by_hand()


def test_version_2_and_the_small_images_of_cifar() -> None:
    cropped = tv("RandomCrop", size=(32, 32), padding=[4, 4, 4, 4], fill=0, pad_if_needed=False, padding_mode="reflect")
    found = chain(
        tv("ToImage"), cropped, flip(), tv("ToDtype", dtype="torch.float32", scale=True), normalize(),
        tv("ToPureTensor"), tv("RandomErasing", p=0.25, scale=(0.02, 0.33), ratio=(0.3, 3.3), value=0),
    )  # fmt: skip
    assert found is not None
    (only,) = found.passes
    assert only.options["crop_padding"] == 4
    assert only.options["fill"] == "reflect"
    assert only.options["erase_prob"] == 0.25


def test_what_is_not_known_stays_with_all_that_comes_before_it() -> None:
    found = chain(flip(), tv("RandAugment", num_ops=2), flip(), to_tensor(), normalize())
    assert found is not None
    assert found.stay == 2
    assert found.names == ("RandomHorizontalFlip", "ToTensor", "Normalize")
    short_side = tv("Resize", size=256)
    crop = tv("RandomCrop", size=(224, 224), padding=None, fill=0, pad_if_needed=False, padding_mode="constant")
    found = chain(short_side, crop, to_tensor(), normalize())
    assert found is not None
    assert found.stay == 1


def options(found: Chain | None) -> list[set[str]]:
    """Of each pass, those that tell it from the others."""
    assert found is not None
    told = {
        "size", "random_crop", "rotation_degrees", "horizontal_flip_prob", "quarter_turn_prob", "brightness",
        "contrast", "hue", "gray_prob", "invert_prob", "solarize_prob", "blur_prob", "normalize",
    }  # fmt: skip
    return [told & one.options.keys() for one in found.passes]


def test_another_order_or_a_probability_takes_more_passes() -> None:
    found = chain(RESIZED, ROTATION, tv("RandomApply", transforms=[JITTER], p=0.8), to_tensor(), normalize())
    assert found is not None
    assert [one.probability for one in found.passes] == [1.0, 1.0, 0.8, 1.0]
    assert options(found) == [{"size"}, {"rotation_degrees"}, {"brightness", "contrast", "hue"}, {"normalize"}]


CROP = tv("RandomCrop", size=(32, 32), padding=[4], fill=0, pad_if_needed=False, padding_mode="constant")
BRIGHT = tv("ColorJitter", brightness=(0.6, 1.4), contrast=None, saturation=None, hue=None)
CONTRAST = tv("ColorJitter", brightness=None, contrast=(0.6, 1.4), saturation=None, hue=None)
HUE = tv("ColorJitter", brightness=None, contrast=None, saturation=None, hue=(-0.1, 0.1))
ONE_WAY = tv("RandomRotation", degrees=[0.0, 30.0], expand=False, center=None, fill=0)
ZOOM = tv("RandomAffine", degrees=[-9.0, 9.0], translate=None, scale=(0.5, 2.0), shear=None, fill=0, center=None)
WHITE = tv("RandomRotation", degrees=[-9.0, 9.0], expand=False, center=None, fill=255)
BLUR = tv("GaussianBlur", kernel_size=(9, 9), sigma=(0.1, 2.0))
SOLARIZE = tv("RandomSolarize", p=0.2, threshold=128)
INVERT = tv("RandomInvert", p=0.5)
GRAY = tv("RandomGrayscale", p=0.5)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        # A crop that is turned has empty corners, where one pass would show what lies beside it.
        ([RESIZED, ROTATION], [{"size"}, {"rotation_degrees"}]),
        ([CROP, flip(), ROTATION], [{"random_crop", "horizontal_flip_prob"}, {"rotation_degrees"}]),
        ([tv("Resize", size=(64, 64)), ROTATION], [{"size", "rotation_degrees"}]),
        # It is resized smoothly, and zoomed not.
        ([tv("Resize", size=(64, 64)), ZOOM], [{"size"}, {"rotation_degrees"}]),
        # What is filled in before colours change is changed with the picture.
        ([ROTATION, CONTRAST], [{"rotation_degrees"}, {"contrast"}]),
        ([CROP, INVERT], [{"random_crop"}, {"invert_prob"}]),
        ([WHITE, BRIGHT], [{"rotation_degrees"}, {"brightness"}]),
        ([ROTATION, BRIGHT], [{"rotation_degrees", "brightness"}]),  # black stays black
        ([WHITE, HUE], [{"rotation_degrees", "hue"}]),
        ([CONTRAST, ROTATION], [{"contrast", "rotation_degrees"}]),
        # A flip after a turn to one side makes it one to the other.
        ([ONE_WAY, flip()], [{"rotation_degrees"}, {"horizontal_flip_prob"}]),
        ([flip(), ONE_WAY], [{"horizontal_flip_prob", "rotation_degrees"}]),
        ([ROTATION, flip()], [{"rotation_degrees", "horizontal_flip_prob"}]),
        # Colours in the order that a pass has for them.
        ([BRIGHT, GRAY], [{"brightness", "gray_prob"}]),
        ([HUE, GRAY], [{"hue"}, {"gray_prob"}]),
        ([SOLARIZE, CONTRAST], [{"solarize_prob"}, {"contrast"}]),
        ([BLUR, SOLARIZE], [{"blur_prob"}, {"solarize_prob"}]),
    ],
)  # fmt: skip
def test_one_pass_only_where_it_has_the_same_effect(members: list[Any], expected: list[set[str]]) -> None:
    assert options(chain(*members, to_tensor())) == expected


@pytest.mark.parametrize(
    "before", [ROTATION, tv("RandomApply", transforms=[BRIGHT], p=0.8), BLUR], ids=lambda one: type(one).__name__
)
def test_what_is_done_to_images_before_they_are_of_one_size_stays(before: Any) -> None:
    found = chain(before, RESIZED, flip(), to_tensor())
    assert found is not None
    assert found.stay == 1


def test_a_rotation_turns_the_way_that_it_is_told_to() -> None:
    """torchvision's counterclockwise, and its RandomAffine as GPUAugmentation does."""
    move = known_torchvision.known(ONE_WAY)
    assert move is not None
    assert move.options["rotation_degrees"] == (-30.0, 0.0)
    move = known_torchvision.known(
        tv("RandomAffine", degrees=[0.0, 30.0], translate=None, scale=None, shear=None, fill=0, center=None)
    )
    assert move is not None
    assert move.options["rotation_degrees"] == (0.0, 30.0)
    assert known_albumentations.known(al("Rotate", limit=(0, 30), border_mode=0)) is None


@pytest.mark.parametrize(
    "members",
    [
        (tv("Resize", size=(64, 64)), to_tensor(), normalize()),  # an evaluation's: nothing random
        (flip(), normalize()),  # no tensor is made of it
        (flip(), to_tensor(), lambda image: image),
        (flip(), to_tensor(), normalize(), normalize()),
        (flip(), tv("PILToTensor"), normalize()),  # bytes, normalised
        (),
    ],
)
def test_nothing_to_move(members: tuple[Any, ...]) -> None:
    assert chain(*members) is None


@pytest.mark.parametrize(
    "odd",
    [
        tv("RandomRotation", degrees=[-10, 10], expand=True, center=None, fill=0),
        tv("RandomRotation", degrees=[-10, 10], expand=False, center=None, fill=(1, 2, 3)),
        tv("RandomAffine", degrees=[0, 0], translate=None, scale=None, shear=[0.0, 9.0], fill=0, center=None),
        tv("GaussianBlur", kernel_size=(3, 3), sigma=(0.1, 2.0)),
        tv("RandomErasing", p=0.2, scale=(0.02, 0.3), ratio=(0.3, 3.3), value="random"),
        tv("RandomRotation", degrees=[-10, 10], expand=False, center=None, fill=1),  # black or white?
        tv("RandomSolarize", p=0.2, threshold=1),
        tv("RandomRotation", degrees=[-10, 10], expand=False, center=None, fill=0, interpolation=BICUBIC),
        tv("RandomPerspective", distortion_scale=0.5, p=0.5, fill=0, interpolation=BICUBIC),
        tv("RandomResizedCrop", size=(24, 24), scale=(0.1, 1.0), ratio=(0.75, 1.33), interpolation=BICUBIC),
        tv("RandomResizedCrop", size=(24, 24), scale=(0.1, 1.0), ratio=(0.75, 1.33), interpolation=3),
        tv("Resize", size=(24, 24), interpolation=SimpleNamespace(value="nearest")),
        tv("Resize", size=(24, 24), interpolation=BILINEAR, antialias=False),
        tv("ToDtype", dtype="torch.float32", scale=False),
        tv("ColorJitter", brightness=(0.5, 1.5)),  # of a version with other attributes
        tv("RandomSolarizeLater"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_settings_that_the_gpu_has_not(odd: Any) -> None:
    assert known_torchvision.known(odd) is None


def test_filters_that_the_gpu_has() -> None:
    """Turned images are interpolated, where the nearest pixel is torchvision's default."""
    for interpolation in (BILINEAR, SimpleNamespace(value="nearest"), 2, 0):
        turn = tv("RandomRotation", degrees=[-1, 1], expand=False, center=None, fill=0, interpolation=interpolation)
        assert known_torchvision.known(turn) is not None
    resize = known_torchvision.known(tv("Resize", size=(24, 24), interpolation=BILINEAR, antialias=True))
    assert resize is not None
    assert resize.options == {"size": (24, 24)}
    zoom = known_torchvision.known(ZOOM)
    assert zoom is not None
    assert zoom.options["antialias"] is False
    resize = known_albumentations.known(al("Resize", height=24, width=24, interpolation=1))
    assert resize is not None
    assert resize.options == {"size": (24, 24), "antialias": False}
    assert not resize.random


@pytest.mark.parametrize(
    "odd",
    [
        al("Resize", height=24, width=24, interpolation=3),
        al("Resize", height=24, width=24, interpolation=1, area_for_downscale="image"),
        al("RandomResizedCrop", size=(24, 24), scale=(0.1, 1.0), ratio=(0.75, 1.33), interpolation=2),
        al("Rotate", limit=(-9, 9), border_mode=0, fill=0, interpolation=2),
        al("Rotate", limit=(-9, 9), border_mode=0, fill=255, interpolation=1),
        al("ToGray", method="max", num_output_channels=3),
    ],
    ids=lambda one: type(one).__name__,
)
def test_settings_of_albumentations_that_the_gpu_has_not(odd: Any) -> None:
    assert known_albumentations.known(odd) is None


def test_always_means_always_whatever_p_is() -> None:
    always = known_albumentations.known(al("HorizontalFlip", p=0.5, always_apply=True))
    assert always is not None
    assert always.options == {"horizontal_flip_prob": 1.0}
    assert known_albumentations.known(al("RandomCrop", height=3, width=4, p=0.5, always_apply=True)) is not None


def test_erased_before_it_is_normalised_is_another_value() -> None:
    erase = tv("RandomErasing", p=0.25, scale=(0.02, 0.33), ratio=(0.3, 3.3), value=0)
    assert chain(flip(), to_tensor(), erase, normalize()) is None


def test_albumentations() -> None:
    members = [
        al("RandomResizedCrop", size=(160, 192), scale=(0.5, 1.0), ratio=(0.75, 1.33)),
        al("HorizontalFlip", p=0.5),
        al("RandomRotate90", p=0.4),
        al(
            "ShiftScaleRotate", p=0.5, shift_limit_x=(-0.1, 0.1), shift_limit_y=(-0.2, 0.2), scale_limit=(0.9, 1.1),
            rotate_limit=(-15, 15), border_mode=4, value=None,
        ),
        al("Normalize", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), max_pixel_value=255.0),
        al("ToTensorV2"),
    ]  # fmt: skip
    found = chain_of(members, known_albumentations.known)
    assert found is not None
    assert found.stay == 0
    assert found.floats
    assert [one.probability for one in found.passes] == [1.0, 0.5, 1.0]
    first, second, _ = found.passes
    assert first.options["quarter_turn_prob"] == pytest.approx(0.3)
    assert second.options == {
        "translate": (0.1, 0.2), "scale": (0.9, 1.1), "rotation_degrees": (-15.0, 15.0), "fill": "reflect",
        "antialias": False,
    }  # fmt: skip
    assert known_albumentations.known(al("RandomCrop", height=3, width=4, p=0.5)) is None
    rotate = al("Rotate", limit=(-15, 15), border_mode=4)
    turned = chain_of([al("RandomCrop", height=24, width=24), rotate, members[-1]], known_albumentations.known)
    assert options(turned) == [{"random_crop"}, {"rotation_degrees"}], "reflected at the crop's sides"
    for size, expected in (((160, 160), 0), ((160, 192), 1)):  # turned by 90°, the sides are exchanged
        crop = al("RandomResizedCrop", size=size, scale=(0.5, 1.0), ratio=(0.75, 1.33))
        turned = chain_of([al("RandomRotate90", p=0.4), crop, members[-1]], known_albumentations.known)
        assert turned is not None
        assert turned.stay == expected
    boxed = al("Compose", transforms=members, processors={"bboxes": object()})
    assert known_albumentations.members(boxed) is None


class Images:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def __getitem__(self, index: int) -> Any:
        return index


def test_places_in_a_data_set() -> None:
    transform = compose(flip(), to_tensor(), normalize())
    pair = tv("StandardTransform", transform=transform, target_transform=None)
    found = places(Images(dataset=Images(root="x", transform=transform, transforms=pair)))
    assert [(type(place.owner).__name__, place.name) for place in found] == [
        ("Images", "transform"), ("StandardTransform", "transform"),
    ]  # fmt: skip
    other = compose(flip(0.3), to_tensor(), normalize())
    assert places(Images(datasets=[Images(transform=transform), Images(transform=other)])) == ()
    assert places(Images(transform=to_tensor())) == ()
