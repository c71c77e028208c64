"""The preview: what is shown is what the module does, what is written is what was drawn, and files of every kind."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fulltilt.recipes
from fulltilt.augment import GPUAugmentation, MinimalGPUAugmentation, Settings, StrongGPUAugmentation
from fulltilt.augment.config import read_augmentation, read_options
from fulltilt.augment.preview import Picture, find_pictures, preview, read_picture, working_pixels
from fulltilt.augment.preview.effects import _MANNERS, EFFECTS, draw
from fulltilt.augment.preview.grid import _ignore, _Shown
from fulltilt.augment.preview.overlay import colour_of, overlay
from fulltilt.augment.preview.sheet import Cell, Row, Sheet
from fulltilt.errors import InputError

CONFIGS = Path(fulltilt.recipes.__file__).parent / "configs"
EVERYTHING = {
    "horizontal_flip_prob": 0.5, "vertical_flip_prob": 0.5, "quarter_turn_prob": 0.5, "rotation_degrees": 20,
    "scale": 0.2, "translate": (0.1, 0.2), "shear_degrees": (8, 4), "perspective": 0.3, "brightness": 0.3,
    "contrast": 0.3, "saturation": 0.5, "hue": 0.1, "gray_prob": 0.5, "invert_prob": 0.5, "gamma": 0.3,
    "solarize_prob": 0.5, "posterize_prob": 0.5, "noise_std": 0.05, "erase_prob": 0.5, "blur_prob": 0.5,
}  # fmt: skip
BY_NAME = {effect.name: effect for effect in EFFECTS}


def picture(height: int = 40, width: int = 56, channels: int = 3, mask: bool = False) -> Picture:
    pixels = torch.randint(
        0, 256, (height, width, channels), dtype=torch.uint8, generator=torch.Generator().manual_seed(4)
    )
    labels = torch.zeros(height, width, dtype=torch.int64)
    labels[8:20, 10:30] = 1
    labels[25:, :] = 2
    return Picture(name="some.png", image=pixels, mask=labels if mask else None)


def shown(settings: Settings, *pictures: Picture, seed: int = 0) -> _Shown:
    return _Shown(
        pictures=list(pictures),
        settings=settings,
        seed=seed,
        device=torch.device("cpu"),
        ignore=None,
        progress=None,
        total=0,
    )


# --- what is shown and what is written ------------------------------------------------------------------------------


def test_every_setting_that_can_be_on_has_a_row():
    """A new option must either be an effect, or say how one is done, or hold for everything."""
    named = {"size", "eval_crop", *_MANNERS}
    for effect in EFFECTS:
        named |= {effect.name, *effect.how, *((effect.prob,) if effect.prob else ())}
    assert named == {f.name for f in fields(Settings)}


def test_a_full_draw_is_what_the_module_gives():
    settings = Settings(**EVERYTHING, mask_fill=255)
    one = picture(mask=True)
    rows = list(shown(settings, one, one, one, seed=7).full(2))
    assert len(rows) == 2
    assert all(row.cells for row in rows)
    module = GPUAugmentation(seed=7, layout="channels_last", mask_fill=255, **EVERYTHING)
    for epoch, row in enumerate(rows):
        module.set_epoch(epoch)
        for index, cell in enumerate(row.cells):
            image, mask = module(one.image[None], one.mask[None], index=torch.tensor([index]))
            expected = (image[0] * 255).round().to(torch.uint8).permute(1, 2, 0)
            assert np.array_equal(cell.image, expected.numpy())
            assert np.array_equal(cell.labels, mask[0].numpy())


def test_normalisation_is_taken_back_and_erased_boxes_are_the_mean():
    plain = shown(Settings(brightness=0.3), picture()).full(1)[0].cells[0].image
    normal = shown(Settings(brightness=0.3, normalize="imagenet"), picture()).full(1)[0].cells[0].image
    assert np.abs(plain.astype(int) - normal).max() <= 1
    erased = shown(Settings(erase_prob=1.0, normalize="imagenet"), picture()).alone()[0].cells[0].image
    mean = np.round(np.array([0.485, 0.456, 0.406]) * 255)
    assert (np.abs(erased - mean).max(-1) <= 1).mean() >= 0.02


def test_each_alone_leaves_the_rest_out():
    rows = {row.name: row for row in shown(Settings(**EVERYTHING), picture(mask=True)).alone()}
    assert set(rows) == set(EVERYTHING)
    original = picture(mask=True)
    flipped = rows["horizontal_flip_prob"].cells[0]
    assert np.array_equal(flipped.image, original.image.flip(1).numpy())
    assert np.array_equal(flipped.labels, original.mask.flip(1).numpy())
    inverted = rows["invert_prob"].cells[0]
    assert np.array_equal(inverted.image, 255 - original.image.numpy())
    assert np.array_equal(inverted.labels, original.mask.numpy())
    for name, row in rows.items():
        still = np.array_equal(row.cells[0].labels, original.mask.numpy())
        assert still == (not BY_NAME[name].moves), f"{name}: masks move if and only if pixels do"
        assert row.cells[0].captions, f"{name} says what was drawn"


def measured_angle(settings: Settings, index: int) -> float:
    """From the pixels: a dot right of the centre, and where it went."""
    dots = torch.zeros(201, 201, 1, dtype=torch.uint8)
    dots[98:103, 178:183] = 255
    module = GPUAugmentation(0, settings.rotation_degrees, 0, 0, seed=3, layout="channels_last")
    out = module(dots[None], index=torch.tensor([index]))[0, 0]
    ys, xs = torch.meshgrid(torch.arange(201.0), torch.arange(201.0), indexing="ij")
    x, y = (out * xs).sum() / out.sum() - 100, (out * ys).sum() / out.sum() - 100
    return math.degrees(math.atan2(y, x))


@pytest.mark.parametrize("index", range(4))
def test_the_angle_that_is_written_is_the_angle_that_is_seen(index):
    settings = Settings(rotation_degrees=40)
    text = draw(BY_NAME["rotation_degrees"], settings, key=(3, 0, index), in_size=(201, 201), out_size=(201, 201))
    assert float(text.rstrip("°")) == pytest.approx(measured_angle(settings, index), abs=0.2)


def test_factors_and_boxes_that_are_written_are_those_that_are_seen():
    gray = Picture(name="", image=torch.full((32, 32, 3), 100, dtype=torch.uint8))
    settings = Settings(brightness=0.4, erase_prob=1.0, noise_std=0.0)
    rows = {row.name: row for row in shown(settings, gray, gray, gray).alone()}
    assert rows["brightness"].cells
    assert rows["erase_prob"].cells
    for cell in rows["brightness"].cells:
        assert cell.image.mean() / 100 == pytest.approx(float(cell.captions[0].removeprefix("x ")), abs=0.01)
    for cell in rows["erase_prob"].cells:
        width, height = (int(side) for side in cell.captions[0].removesuffix(" px").split(" x "))
        assert (cell.image[:, :, 0] == 0).sum() == width * height


def test_quarter_turns_are_written_clockwise():
    cells = shown(Settings(quarter_turn_prob=1.0), *[picture(24, 24)] * 12).alone()[0].cells
    turned = {cell.captions[0]: cell.image for cell in cells}
    assert set(turned) == {"90°", "180°", "270°"}
    for text, image in turned.items():
        assert np.array_equal(image, np.rot90(picture(24, 24).image.numpy(), -int(text[:-1]) // 90))


def test_crops_are_shown_from_the_input_and_the_rest_from_what_eval_gives():
    settings = Settings(random_resized_crop=(0.2, 0.9), size=(20, 24), invert_prob=0.5)
    crop, invert = shown(settings, picture(90, 120)).alone()
    assert crop.name == "random_resized_crop"
    assert crop.cells[0].image.shape == invert.cells[0].image.shape == (20, 24, 3)
    share = float(crop.cells[0].captions[0].split("%")[0]) / 100
    assert 0.19 <= share <= 0.91
    exact = shown(Settings(random_crop=(30, 32)), picture(90, 120)).alone()[0].cells[0]
    left, top = (int(place) for place in exact.captions[0].removeprefix("from ").split(", "))
    assert np.array_equal(exact.image, picture(90, 120).image[top : top + 30, left : left + 32].numpy())


def test_what_does_not_happen_is_not_written():
    often = [
        draw(BY_NAME["gray_prob"], Settings(gray_prob=0.3), key=(0, 0, k), in_size=(8, 8), out_size=(8, 8))
        for k in range(400)
    ]
    assert 0.22 < sum(text is not None for text in often) / 400 < 0.38


# --- the sheet ------------------------------------------------------------------------------------------------------


def test_the_sheet_has_a_place_for_everything():
    seen = []
    sheet = preview(
        [picture(mask=True)],
        StrongGPUAugmentation().settings,
        columns=3,
        cell_pixels=96,
        progress=lambda *at: seen.append(at),
    )
    assert sheet.width == 24 + 172 + 3 * 96 + 2 * 10 + 24
    assert seen[-1][0] == seen[-1][1]
    assert [done for done, _ in seen] == list(range(1, len(seen) + 1))
    rows = len([effect for effect in EFFECTS if effect.is_on(StrongGPUAugmentation().settings)]) + 4
    assert sheet.height > rows * (96 * 40 / 56)
    pixels = np.asarray(sheet)
    assert (pixels[-8:] == pixels[-1, -1]).all(), "nothing is cut off below"
    assert (pixels[:, -20:] == pixels[-1, -1]).all(), "nothing is cut off at the right"


def test_with_nothing_on_there_is_still_the_input():
    sheet = preview([picture(channels=1)], Settings(), columns=1, cell_pixels=64, full_rows=1)
    assert sheet.height > 2 * 64


def test_small_pictures_are_enlarged_by_whole_pixels():
    sheet = Sheet(title="", rows=[], columns=1, cell_pixels=100)
    tiny = np.random.default_rng(0).integers(0, 255, (20, 32, 3), dtype=np.uint8)
    fitted = np.asarray(sheet.picture(Cell(image=tiny)))
    assert np.array_equal(fitted, tiny.repeat(3, 0).repeat(3, 1))


def test_long_names_and_odd_letters_stay_in_their_columns():
    sheet = Sheet(
        title="ünï 日本", rows=[Row(group="g", name="a_very_" * 9, details=["w" * 90])], columns=1, cell_pixels=64
    )
    for text, size, _, _ in sheet.head_lines(sheet.rows[0]):
        assert sheet.font(size).getlength(text) <= 172 - 14
    assert sheet.draw().width == 24 + 172 + 64 + 24


def test_overlay_colours_contours_and_hatching():
    image = np.full((60, 80, 3), 90, dtype=np.uint8)
    labels = np.zeros((60, 80), dtype=np.int64)
    labels[10:40, 10:50] = 1
    labels[45:, :] = 255
    over = overlay(image, labels, ignore=255)
    assert (over[:8] == 90).all(), "background stays"
    assert tuple(over[10, 20]) == colour_of(1), "the contour is solid"
    inside = over[25, 30].astype(int)
    assert (inside != 90).any()
    assert tuple(inside) != colour_of(1)
    hatched = over[50:, :, :]
    assert (hatched == hatched[..., :1]).all(), "ignored is gray"
    assert np.unique(hatched).size == 2
    bare = overlay(image, labels, ignore=255, fill=False)
    assert (bare[25, 30] == 90).all()
    assert tuple(bare[10, 20]) == colour_of(1)


def test_classes_have_colours_of_their_own():
    assert len({colour_of(label) for label in range(1, 200)}) == 199


def test_255_is_an_object_or_ignored():
    assert _ignore(Settings(), [0, 255]) is None
    assert _ignore(Settings(), [0, 1, 255]) == 255
    assert _ignore(Settings(mask_fill=9), [0, 1]) == 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": 0}, "columns=0 must be from 1 to 16"),
        ({"cell_pixels": 5000}, "cell_pixels=5000 must be from 64 to 1024"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InputError, match=message):
        preview([picture()], Settings(), **options)
    with pytest.raises(InputError, match="nothing to show"):
        preview([], Settings())


def test_large_pictures_are_reduced_unless_pixels_are_counted():
    assert working_pixels(Settings()) == 512
    assert working_pixels(Settings(size=100)) == 200
    assert working_pixels(Settings(size=100, random_resized_crop=True)) == 400
    assert working_pixels(Settings(random_crop=100)) is None


# --- files ----------------------------------------------------------------------------------------------------------


def ramp(height: int = 20, width: int = 30) -> np.ndarray:
    return np.broadcast_to(np.linspace(0, 255, width).astype(np.uint8), (height, width))


def test_gray_colour_transparent_and_deep_files(tmp_path):
    Image.fromarray(ramp()).save(tmp_path / "gray.png")
    Image.fromarray(np.dstack([ramp()] * 3 + [255 - ramp()])).save(tmp_path / "rgba.png")
    Image.fromarray(ramp().astype(np.uint16) * 16).save(tmp_path / "deep.png")
    Image.fromarray(ramp().astype(np.float32) / 255).save(tmp_path / "float.tiff")
    Image.fromarray(ramp() > 127).save(tmp_path / "bits.png")
    Image.fromarray(np.dstack([ramp()] * 4), "CMYK").save(tmp_path / "cmyk.jpg")
    gray = read_picture(tmp_path / "gray.png")
    assert np.array_equal(gray.image[:, :, 0].numpy(), ramp())
    assert read_picture(tmp_path / "gray.png", channels=3).image.shape == (20, 30, 3)
    rgba = read_picture(tmp_path / "rgba.png")
    assert rgba.note == "transparent parts on white"
    assert rgba.image[0, -1].tolist() == [255, 255, 255]
    deep = read_picture(tmp_path / "deep.png")
    assert np.array_equal(deep.image[:, :, 0].numpy(), ramp())
    assert deep.note == "stretched from 0 to 4080"
    assert np.array_equal(read_picture(tmp_path / "float.tiff").image[:, :, 0].numpy(), ramp())
    assert set(read_picture(tmp_path / "bits.png").image.flatten().tolist()) == {0, 255}
    assert read_picture(tmp_path / "cmyk.jpg").image.shape == (20, 30, 3)


def test_the_camera_was_held_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(ramp()).save(tmp_path / "side.png", exif=exif)
    assert np.array_equal(read_picture(tmp_path / "side.png").image[:, :, 0].numpy(), np.rot90(ramp(), -1))


def test_masks_as_numbers_palettes_and_colours(tmp_path):
    labels = np.zeros((20, 30), dtype=np.uint8)
    labels[5:9] = 3
    labels[12:] = 7
    Image.fromarray(np.dstack([ramp()] * 3)).save(tmp_path / "image.png")
    Image.fromarray(labels).save(tmp_path / "numbers.png")
    _with_palette(labels).save(tmp_path / "palette.png")
    Image.fromarray(np.array([[0, 0, 0]] * 3 + [[200, 0, 0]] + [[0, 0, 0]] * 3 + [[0, 200, 0]], np.uint8)[labels]).save(
        tmp_path / "colours.png"
    )
    for name, expected in (("numbers", {0, 3, 7}), ("palette", {0, 3, 7}), ("colours", {0, 1, 2})):
        mask = read_picture(tmp_path / "image.png", tmp_path / f"{name}.png").mask
        assert set(mask.unique().tolist()) == expected
        assert (mask != 0).equal(torch.from_numpy(labels != 0))
    small = read_picture(tmp_path / "image.png", tmp_path / "numbers.png", most=15)
    assert small.size == (10, 15)
    assert small.note == "reduced from 30x20"
    assert np.array_equal(small.mask.numpy(), labels[1::2, 1::2])


def test_masks_that_do_not_fit(tmp_path):
    Image.fromarray(np.dstack([ramp()] * 3)).save(tmp_path / "image.png")
    Image.fromarray(ramp(10, 30)).save(tmp_path / "short.png")
    noise = np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "photo.png")
    with pytest.raises(InputError, match=r"short\.png: the mask is 30x10 and its image image\.png is 30x20"):
        read_picture(tmp_path / "image.png", tmp_path / "short.png")
    with pytest.raises(InputError, match=r"photo\.png: .* colours; a mask holds class numbers"):
        read_picture(tmp_path / "image.png", tmp_path / "photo.png")


def test_files_that_can_not_be_read_are_named(tmp_path):
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    Image.fromarray(np.dstack([ramp()] * 3)).save(tmp_path / "cut.jpg")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "cut.jpg").read_bytes()[:400])
    for name in ("broken.png", "cut.jpg"):
        with pytest.raises(InputError, match=f"{name}: can't be read as an image"):
            read_picture(tmp_path / name)
    with pytest.raises(InputError, match=r"none\.png: no such file"):
        read_picture(tmp_path / "none.png")


def test_folders_in_sorted_order_with_masks_by_name(tmp_path):
    images, masks = tmp_path / "images", tmp_path / "masks"
    images.mkdir()
    masks.mkdir()
    for name in ("c.png", "a.JPG", "b.png"):
        Image.fromarray(np.dstack([ramp()] * 3)).save(images / name)
    (images / "notes.txt").write_text("no image")
    assert [path.name for path, _ in find_pictures(images, None, most=2)] == ["a.JPG", "b.png"]
    for name in ("a.png", "b.png"):
        Image.fromarray(ramp()).save(masks / name)
    assert [mask.name for _, mask in find_pictures(images, masks, most=2)] == ["a.png", "b.png"]
    with pytest.raises(InputError, match=r"no mask named like c\.png"):
        find_pictures(images, masks, most=3)
    with pytest.raises(InputError, match="name a folder of masks"):
        find_pictures(images, masks / "a.png", most=3)
    with pytest.raises(InputError, match=r"no images in this folder.*; name one of .*, such as \S+images"):
        find_pictures(tmp_path, None, most=3)
    with pytest.raises(InputError, match="no such file or folder"):
        find_pictures(tmp_path / "nowhere", None, most=3)
    assert find_pictures(images / "b.png", masks, most=3) == [(images / "b.png", masks / "b.png")]
    for name in ("a", "b"):
        (masks / f"{name}.png").rename(masks / f"{name}_mask.png")
    assert [mask.name for _, mask in find_pictures(images, masks, most=2)] == ["a_mask.png", "b_mask.png"]


# --- the configuration ----------------------------------------------------------------------------------------------


def test_the_guides_form_and_the_bare_one(tmp_path):
    file = tmp_path / "aug.yaml"
    file.write_text("data: {batch_size: 32}\ngpu_augmentation:\n  rotation_degrees: [-5, 15]\n  normalize: imagenet\n")
    assert read_options(file) == {"rotation_degrees": [-5, 15], "normalize": "imagenet"}
    assert GPUAugmentation(**read_options(file)).settings.rotation_degrees == (-5, 15)
    file.write_text("rotation_degrees: 10\n")
    assert read_options(file) == {"rotation_degrees": 10}
    file.write_text("gpu_augmentation:\n  # nothing yet\n")
    assert read_options(file) == {}


def test_a_preset_with_options_of_its_own(tmp_path):
    file = tmp_path / "aug.yaml"
    file.write_text("gpu_augmentation: {preset: minimal, brightness: 0.1}")
    found = read_augmentation(file)
    assert type(found) is MinimalGPUAugmentation
    assert (found.settings.brightness, found.settings.rotation_degrees) == (0.1, 0.0)
    file.write_text("gpu_augmentation: {preset: progressive, switch_epoch: 3, seed: 7}")
    assert read_augmentation(file).switch_epoch == 3
    file.write_text("gpu_augmentation: {preset: stronger}")
    with pytest.raises(InputError, match=r"aug\.yaml: preset: found 'stronger'; allowed: default, minimal, strong"):
        read_augmentation(file)
    file.write_text("gpu_augmentation: {preset: [strong]}")
    with pytest.raises(InputError, match=r"preset: found \['strong'\]"):
        read_augmentation(file)
    file.write_text("gpu_augmentation: {preset: progressive, minimal: [1]}")
    with pytest.raises(InputError, match=r"gpu_augmentation\.minimal=\[1\] must be a section of options"):
        read_augmentation(file)
    file.write_text("gpu_augmentation: {preset: strong, seed: abc}")
    with pytest.raises(InputError, match=r"aug\.yaml: seed"):
        read_augmentation(file)
    file.write_text("gpu_augmentation: {preset: strong, switch_epoch: 3}")
    with pytest.raises(InputError, match=r"gpu_augmentation\.switch_epoch: needs preset: progressive"):
        read_augmentation(file)


@pytest.mark.parametrize("file", [file for file in CONFIGS.glob("*.yaml") if "\ngpu_augmentation:" in file.read_text()])
def test_the_recipes_can_be_looked_at(file):
    """Their sections are those of `fulltilt train`."""
    assert read_augmentation(file).settings


def test_every_problem_is_named_with_its_path(tmp_path):
    file = tmp_path / "aug.yaml"
    file.write_text("gpu_augmentation: {rotation_degres: 5, brightness: -1, hue: big, random_resized_crop: true}")
    with pytest.raises(InputError) as caught:
        read_options(file)
    lines = str(caught.value).splitlines()
    assert lines[0].endswith("aug.yaml: 4 problems")
    assert "gpu_augmentation.rotation_degres is not an option; did you mean rotation_degrees?" in lines[1]
    assert "horizontal_flip_prob" in lines[1]
    assert "gpu_augmentation.brightness=-1 must be a number from 0 to 10" in lines[2]
    assert "gpu_augmentation.hue='big' must be a number from 0 to 0.5" in lines[3]
    assert "gpu_augmentation.random_resized_crop needs size" in lines[4]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", r"aug\.yaml:1:6: not YAML"),
        ("data: {batch_size: 3}\ntraining: {}", "expected a section gpu_augmentation.*found data, training"),
        ("- 1", "found list"),
        ("gpu_augmentation: strong", "must be a mapping of options to values, found 'strong'"),
    ],
)
def test_files_that_are_something_else(tmp_path, text, message):
    file = tmp_path / "aug.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        read_options(file)
    with pytest.raises(InputError, match=r"none\.yaml: can't be read"):
        read_options(tmp_path / "none.yaml")


def _with_palette(labels: np.ndarray) -> Image.Image:
    image = Image.new("P", labels.shape[::-1])
    image.putdata(labels.flatten().tolist())
    image.putpalette([k * 7 % 256 for k in range(768)])
    return image
