"""A user's own pictures, looked at."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from PIL import Image

from fulltilt.errors import InputError
from fulltilt.recipes.files import look


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
    assert found.masks == (tmp_path / "masks").resolve()
    with pytest.raises(InputError, match="5 pictures without labels or masks"):
        look(tmp_path / "images")
    (tmp_path / "masks" / "3.png").unlink()
    with pytest.raises(InputError, match="1 images have no mask of their name"):
        look(tmp_path / "images", tmp_path / "masks")


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([["path", "label"], *[[f"{i}.png", 0.5] for i in range(5)]], "labels are numbers like 0.5"),
        ([["path", "label"], *[[f"{i}.png", i - 1] for i in range(5)]], "a label is -1"),
        ([["path", "label"], *[[f"{i}.png", "a"] for i in range(5)]], "all 5 pictures are of one class, a"),
        ([["path", "label"], *[[f"{i}.png", 100 * i] for i in range(5)]], "5 pictures for classes from 0 to 400"),
        ([["path", "label"], *[[f"{i}.png", i % 2] for i in range(4)]], "4 pictures are too few"),
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
    with pytest.raises(InputError, match=r"0\.png can't be opened as a picture"):
        look(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        look(tmp_path / "nowhere")
