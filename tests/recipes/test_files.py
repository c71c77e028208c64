"""A user's own pictures, looked at."""

from __future__ import annotations

import csv
import shutil

import numpy as np
import pytest
from PIL import Image

from fulltilt.errors import InputError
from fulltilt.recipes.files import look
from fulltilt.recipes.layout import Part


def picture(path, size=(20, 30), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (*size, 3) if mode == "RGB" else size
    Image.fromarray(np.zeros(shape, np.uint8)).save(path)


def table(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def test_a_folder_for_each_class(tmp_path):
    for kind, number in (("cat", 3), ("dog", 4)):
        for i in range(number):
            picture(tmp_path / kind / f"{i}.jpg")
    found = look(tmp_path)
    assert (found.classes, found.count, found.channels) == (("cat", "dog"), 7, 3)
    assert (found.height, found.width) == (20, 30)
    assert found.val is None
    assert str(found) == "7 colour images of 20×30 in 2 classes (cat, dog)"


def test_a_class_of_one_picture_is_told_of(tmp_path):
    for i in range(6):
        picture(tmp_path / ("cat" if i else "dog") / f"{i}.jpg")
    assert str(look(tmp_path)) == "6 colour images of 20×30 in 2 classes (cat, dog); a single image of dog"


def test_a_table_with_numbers_and_grey_pictures(tmp_path):
    rows = [["path", "label"]]
    for i in range(6):
        picture(tmp_path / "all" / f"{i}.png", mode="L")
        rows.append([f"all/{i}.png", i % 3])
    table(tmp_path / "train.csv", rows)
    found = look(tmp_path / "train.csv")
    assert (found.classes, found.channels) == (("0", "1", "2"), 1)


def test_masks(tmp_path):
    for i in range(5):
        picture(tmp_path / "images" / f"{i}.jpg")
        picture(tmp_path / "masks" / f"{i}.png", mode="L")
    found = look(tmp_path / "images", tmp_path / "masks")
    assert found.classes is None
    assert found.train.masks == (tmp_path / "masks").resolve()
    with pytest.raises(InputError, match="5 images without labels or masks"):
        look(tmp_path / "images")
    (tmp_path / "masks" / "3.png").unlink()
    with pytest.raises(InputError, match=r"1 of 5 images have no mask .*; masks there are named like 0\.png"):
        look(tmp_path / "images", tmp_path / "masks")
    (tmp_path / "other").mkdir()
    with pytest.raises(
        InputError, match=r"5 of 5 images have no mask .*; masks there are none, and a \.csv .* may pair any"
    ):
        look(tmp_path / "images", tmp_path / "other")


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([["path", "label"], *[[f"{i}.png", i / 3] for i in range(5)]], "labels are numbers like 0.3333; classes are"),
        ([["path", "label"], *[[f"{i}.png", float(i % 2)] for i in range(5)]], r"like 0\.0; classes are whole numbers"),
        (
            [["path", "label"], *[[f"{i}.png", "NaN" if i == 2 else i % 2] for i in range(5)]],
            r"1 of 5 labels are missing \(nan\), first that of row 3",
        ),
        ([["path", "label"], *[[f"{i}.png", i - 1] for i in range(5)]], "a label is -1"),
        ([["path", "label"], *[[f"{i}.png", "a"] for i in range(5)]], "all 5 images are of one class, a"),
        ([["path", "label"], *[[f"{i}.png", 1] for i in range(5)]], "all 5 images are of one class, 1"),
        ([["path", "label"], *[[f"{i % 4}.png", i % 2] for i in range(9)]], "4 images are too few"),
        ([["path", "label"], *[[f"{i}.png", 100 * i] for i in range(5)]], "5 images for classes from 0 to 400"),
        ([["path", "label"], *[[f"{i}.png", i % 2] for i in range(4)]], "4 images are too few"),
        ([["path", "kind"], *[[f"{i}.png", "a"] for i in range(5)]], r"label, class or mask \(found path, kind\)"),
        ([["path", "label"], *[[f"{i}.png", i % 2] for i in range(7)]], "2 of 7 files are not there, first .*5.png"),
    ],
)
def test_what_can_not_be_trained_on_is_said(rows, says, tmp_path):
    for i in range(5):
        picture(tmp_path / f"{i}.png", mode="L")
    table(tmp_path / "t.csv", rows)
    with pytest.raises(InputError, match=says):
        look(tmp_path / "t.csv")


def test_a_file_that_is_no_picture(tmp_path):
    for i in range(5):
        picture(tmp_path / str(i % 2) / f"{i}.png")
    (tmp_path / "0" / "0.png").write_bytes(b"text")
    with pytest.raises(InputError, match=r"0\.png can't be opened as an image"):
        look(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        look(tmp_path / "nowhere")


def test_folders_for_training_and_validation(tmp_path):
    """They are no classes; what is for testing is left alone."""
    for part, number in (("train", 4), ("val", 3), ("test", 2)):
        for kind in ("cat", "dog"):
            for i in range(number):
                picture(tmp_path / part / kind / f"{i}.jpg")
    found = look(tmp_path)
    assert (found.classes, found.count, found.val_count) == (("cat", "dog"), 8, 6)
    assert found.val is not None
    assert (found.train.source.name, found.val.source.name) == ("train", "val")
    picture(tmp_path / "val" / "emu" / "0.jpg")
    with pytest.raises(InputError, match=r"/val, to validate with: classes has no emu; it has cat, dog"):
        look(tmp_path)


def damaged(folder):
    (folder / "val" / "cat" / "2.jpg").write_bytes(b"")


def without_classes(folder):
    for path in (folder / "val").glob("*/*.jpg"):
        path.rename(folder / "val" / f"{path.parent.name}{path.name}")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (damaged, r"val/cat/2\.jpg can't be opened as an image"),
        (
            without_classes,
            "/val, to validate with: 6 images without labels or masks; have a subfolder for each class",
        ),
    ],
)
def test_what_can_not_be_validated_with_is_said(change, says, tmp_path):
    for part in ("train", "val"):
        for kind in ("cat", "dog"):
            for i in range(3):
                picture(tmp_path / part / kind / f"{i}.jpg")
    look(tmp_path)
    change(tmp_path)
    with pytest.raises(InputError, match=says):
        look(tmp_path)


def coloured(path, number):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((20, 30, 3), number, np.uint8)).save(path)


def in_parts(folder, train=4, val=3):
    for part, first, count in (("train", 0, train), ("val", 100, val)):
        for kind in range(2):
            for i in range(count):
                coloured(folder / part / "ab"[kind] / f"{i}.png", first + 50 * kind + i)


@pytest.mark.parametrize("linked", ["folder", "class", "file"])
def test_links_to_what_is_trained_on_are_no_validation(linked, tmp_path):
    in_parts(tmp_path)
    look(tmp_path)
    val, train = tmp_path / "val", tmp_path / "train"
    if linked == "folder":
        shutil.rmtree(val)
        val.symlink_to(train)
    elif linked == "class":
        shutil.rmtree(val / "b")
        (val / "b").symlink_to(train / "b")
    else:
        (val / "b" / "1.png").unlink()
        (val / "b" / "1.png").symlink_to(train / "b" / "3.png")
    count = {"folder": 8, "class": 4, "file": 1}[linked]
    with pytest.raises(InputError, match=rf"val, to validate with: {count} images are files to train on, too, first"):
        look(tmp_path)


def test_copies_of_what_is_trained_on_are_told_of(tmp_path, monkeypatch):
    in_parts(tmp_path)
    assert str(look(tmp_path)).endswith("to validate with"), "files of one size need not be the same"
    shutil.copy(tmp_path / "train" / "a" / "0.png", tmp_path / "val" / "b" / "copied.png")
    assert str(look(tmp_path)).endswith("; 1 of these are copies of images to train on")
    shutil.rmtree(tmp_path / "val")
    shutil.copytree(tmp_path / "train", tmp_path / "val")
    assert str(look(tmp_path)).endswith("8 in " + str(tmp_path / "val") + " to validate with; 8 of these are copies "
                                        "of images to train on")  # fmt: skip
    monkeypatch.setattr("fulltilt.recipes.shared._COMPARED", 5)
    assert str(look(tmp_path)).endswith("; of 4 of these, which were compared, 4 are copies of images to train on")


def with_splits(folder, values, label=lambda i: "ab"[i % 2]):
    for i in range(len(values)):
        coloured(folder / "all" / f"{i}.png", i)
    table(
        folder / "t.csv", [["path", "label", "Split"], *[[f"all/{i}.png", label(i), v] for i, v in enumerate(values)]]
    )
    return folder / "t.csv"


def test_a_column_that_parts_a_table(tmp_path):
    """A class that is only there to test with is none, and needs no label that can be read."""
    values = [*["train"] * 6, *["Valid"] * 3, "test", " val "]
    source = with_splits(tmp_path, values, label=lambda i: "" if i == 9 else "ab"[i % 2])
    found = look(source)
    assert (found.count, found.val_count, found.classes) == (6, 4, ("a", "b"))
    assert (str(found.train.source), str(found.val.source)) == ("train.csv", "val.csv")
    assert str(found).endswith("classes (a, b); 4 in val.csv to validate with; 1 to test with are left out")
    rows = list(csv.reader(found.tables["val.csv"].splitlines()))
    assert rows[:2] == [["path", "label"], [str(tmp_path / "all" / "6.png"), "a"]]
    found = look(with_splits(tmp_path, [*["train"] * 6, *["test"] * 3]))
    assert (found.count, found.val, list(found.tables)) == (6, None, ["train.csv"])
    found = look(with_splits(tmp_path, ["train"] * 6))
    assert (found.tables, found.note, found.train.source) == ({}, "", source)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (["train", "val", "0", "1", "2", "3", ""], "holds 0, 1, 2, … and is not used"),
        (["train", "val", "val", "", "", ""], "holds nothing and is not used"),
        (["val", "val", "val", "val", "test"], "has no row for train and is not used"),
    ],
)
def test_a_column_that_is_not_used_is_told_of(values, says, tmp_path):
    found = look(with_splits(tmp_path, values))
    assert (found.val, found.tables, found.count) == (None, {}, len(values))
    assert str(found).endswith(f"; its column split {says} (rows are train, val or test)")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda rows: rows[8].__setitem__(0, "all/1.png"), "t.csv, rows to validate with: 1 images are files to tr"),
        (lambda rows: rows[8].__setitem__(1, "emu"), "t.csv, rows to validate with: classes has no emu; it has a, b"),
        (lambda rows: rows[8].__setitem__(1, ""), "t.csv, line 9: an empty label or mask"),
        (lambda rows: rows[8].__setitem__(0, "9.png"), "1 of 3 files are not there, first .*/9.png"),
        (
            lambda rows: [row.__setitem__(1, at - 1) for at, row in enumerate(rows) if at],
            "t.csv, rows to validate with: labels are 6 to 8, and those to train on go up to 5 only",
        ),
        (
            lambda rows: [row.__setitem__(1, at % 2 if at < 8 else 0.5) for at, row in enumerate(rows) if at],
            "t.csv, rows to validate with: labels are numbers like 0.5; classes are whole numbers",
        ),
    ],
)
def test_rows_that_can_not_be_validated_with_are_said(change, says, tmp_path):
    source = with_splits(tmp_path, [*["train"] * 6, *["val"] * 3])
    rows = list(csv.reader(source.read_text().splitlines()))
    change(rows)
    table(source, rows)
    with pytest.raises(InputError, match=says):
        look(source)


def test_a_picture_that_is_listed_twice_is_told_of(tmp_path):
    rows = [[f"{i}.png", "ab"[i % 2]] for i in range(6)] + [["5.png", "b"], ["4.png", "a"], ["4.png", "c"]]
    for i in range(6):
        picture(tmp_path / f"{i}.png", mode="L")
        picture(tmp_path / f"{i}-mask.png", mode="L")
    table(tmp_path / "t.csv", [["path", "label"], *rows])
    found = look(tmp_path / "t.csv")
    assert (found.count, found.repeated, found.contradicting) == (6, 2, 1)
    assert str(found) == (
        "6 grey images of 20×30 in 3 classes (a, b, c); a single image of c; "
        "2 listed more than once, 1 of them with different labels"
    )
    table(tmp_path / "t.csv", [["path", "label"], *rows[:7], ["0.png", "c"], ["0.png", "c"]])
    assert look(tmp_path / "t.csv").alone == ("c",), "once more is not another one"
    table(tmp_path / "t.csv", [["path", "label"], *rows[:7]])
    assert str(look(tmp_path / "t.csv")).endswith("in 2 classes (a, b); 1 listed more than once")
    masked = [[path, path.replace(".png", "-mask.png")] for path, _ in rows[:6]]
    table(tmp_path / "t.csv", [["path", "mask"], *masked, ["0.png", "1-mask.png"]])
    assert str(look(tmp_path / "t.csv")).endswith("; 1 listed more than once, 1 of them with different masks")


def test_a_folder_for_training_alone(tmp_path):
    """It is what is trained on, not the only class that there is."""
    for kind in ("cat", "dog"):
        for i in range(3):
            picture(tmp_path / "train" / kind / f"{i}.jpg")
    found = look(tmp_path)
    assert (found.classes, found.val) == (("cat", "dog"), None)
    assert found.train.source == (tmp_path / "train").resolve()


def test_a_class_called_train_is_a_class(tmp_path):
    for kind in ("bus", "train"):
        for i in range(3):
            picture(tmp_path / kind / f"{i}.jpg")
    assert look(tmp_path).classes == ("bus", "train")


def test_masks_for_training_and_validation(tmp_path):
    for part in ("train", "valid"):
        for i in range(5):
            picture(tmp_path / "images" / part / f"{i}.jpg")
            picture(tmp_path / "masks" / part / f"{i}.png", mode="L")
    found = look(tmp_path / "images", tmp_path / "masks")
    assert found.val is not None
    assert found.val.masks == (tmp_path / "masks" / "valid").resolve()
    both = look(tmp_path)
    assert (both.train, both.val) == (found.train, found.val)


def test_pictures_and_masks_in_each_part(tmp_path):
    for part in ("train", "val"):
        for i in range(5):
            picture(tmp_path / part / "images" / f"{i}.jpg")
            picture(tmp_path / part / "masks" / f"{i}.png", mode="L")
    found = look(tmp_path)
    assert (found.count, found.val_count, found.classes) == (5, 5, None)
    assert found.train.masks == (tmp_path / "train" / "masks").resolve()
    assert found.val == Part(source=(tmp_path / "val/images").resolve(), masks=(tmp_path / "val/masks").resolve())


def test_masks_of_all_parts_in_one_folder(tmp_path):
    """What is for testing is left alone, there as well."""
    for at, part in enumerate(("train", "val", "test")):
        for i in range(10 * at, 10 * at + 5):
            picture(tmp_path / "images" / part / f"{i}.jpg")
            picture(tmp_path / "masks" / f"{i}_mask.png", mode="L")
    found = look(tmp_path / "images", tmp_path / "masks")
    assert (found.count, found.val_count, found.classes) == (5, 5, None)
    assert found.val is not None
    assert found.train.masks == found.val.masks == (tmp_path / "masks").resolve()
    picture(tmp_path / "masks" / "11_mask.png")
    with pytest.raises(InputError, match=r"11_mask\.png: a mask of mode RGB"):
        look(tmp_path / "images", tmp_path / "masks")
    (tmp_path / "images" / "val" / "10.jpg").rename(tmp_path / "images" / "val" / "0.jpg")
    picture(tmp_path / "masks" / "11_mask.png", mode="L")
    with pytest.raises(InputError, match=r"/val, to validate with: 1 images have the names, .* first \S+/0_mask\.png"):
        look(tmp_path / "images", tmp_path / "masks")


def test_a_mask_that_can_not_be_one_is_said(tmp_path):
    for i in range(5):
        picture(tmp_path / "images" / f"{i}.jpg", mode="L")
        picture(tmp_path / "masks" / f"{i}.png", mode="L")
    wrong = tmp_path / "masks" / "2.png"
    Image.fromarray(np.repeat(np.arange(30, dtype=np.uint8)[None], 20, 0) // 10).save(wrong)
    told = str(look(tmp_path / "images", tmp_path / "masks"))
    assert told == "5 grey images of 20×30 with masks that hold 0, 1, 2, of which all but 0 are taken as one"
    picture(wrong, size=(30, 20), mode="L")
    with pytest.raises(InputError, match=r"2\.png: the mask is 30×20, its image 20×30"):
        look(tmp_path / "images", tmp_path / "masks")
    picture(wrong)
    with pytest.raises(InputError, match=r"2\.png: a mask of mode RGB: colours are not labels"):
        look(tmp_path / "images", tmp_path / "masks")
    Image.fromarray(np.full((20, 30), 300, np.uint16)).save(wrong)
    with pytest.raises(InputError, match=r"2\.png: the mask holds 300; save masks with 8 bits"):
        look(tmp_path / "images", tmp_path / "masks")


def test_masks_that_hold_nothing_are_told_of(tmp_path):
    for i in range(5):
        picture(tmp_path / "images" / f"{i}.jpg", mode="L")
        picture(tmp_path / "masks" / f"{i}.png", mode="L")
    told = str(look(tmp_path / "images", tmp_path / "masks"))
    assert told == "5 grey images of 20×30 with masks that hold 0 and nothing to search for"
