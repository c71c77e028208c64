"""ImageFiles: folders, lists and tables, and what is wrong with them."""

import errno
import os
from pathlib import Path

import pytest

from fulltilt.errors import InputError
from fulltilt.feed import ImageFiles
from fulltilt.feed.listing import files_by_class


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def names(paths: list[str]) -> list[str]:
    return [Path(path).name for path in paths]


def test_subfolders_are_classes(tmp_path):
    touch(tmp_path / "dog/b.jpg", tmp_path / "dog/deep/a.PNG", tmp_path / "cat/c.jpeg", tmp_path / "cat/notes.txt")
    files = ImageFiles(tmp_path)
    assert names(files.paths) == ["c.jpeg", "b.jpg", "a.PNG"]
    assert files.classes == ["cat", "dog"]
    assert files.labels.tolist() == [0, 1, 1]
    assert len(files) == 3


def test_a_flat_folder_has_no_labels(tmp_path):
    touch(tmp_path / "b.jpg", tmp_path / "a.webp")
    files = ImageFiles(str(tmp_path))
    assert names(files.paths) == ["a.webp", "b.jpg"]
    assert files.labels is None


def test_a_table_names_images_labels_and_masks_relative_to_itself(tmp_path):
    table = tmp_path / "train.csv"
    table.write_text("image,label,mask\nx/1.jpg,7,m/1.png\nx/2.jpg,9,m/2.png\n")
    files = ImageFiles(table)
    assert files.paths == [str(tmp_path / "x/1.jpg"), str(tmp_path / "x/2.jpg")]
    assert files.labels.tolist() == [7, 9]
    assert files.masks == [str(tmp_path / "m/1.png"), str(tmp_path / "m/2.png")]


def test_labels_may_be_names_numbers_or_floats(tmp_path):
    paths = ["1.jpg", "2.jpg", "3.jpg"]
    named = ImageFiles(paths, labels=["b", "a", "b"])
    assert named.classes == ["a", "b"]
    assert named.labels.tolist() == [1, 0, 1]
    assert ImageFiles(paths, labels=[0.5, 1, 2]).labels.dtype == "float32"
    table = tmp_path / "mixed.csv"
    table.write_text("path,label\n1.jpg,3\n2.jpg,unknown\n")
    assert ImageFiles(table).classes == ["3", "unknown"]


@pytest.mark.parametrize(
    ("labels", "classes"), [("007 7", ["007", "7"]), ("1_0 10", ["10", "1_0"]), ("00 01", ["00", "01"]), ("0 10", None)]
)
def test_names_that_python_would_read_as_numbers(tmp_path, labels, classes):
    table = tmp_path / "all.csv"
    table.write_text("path,label\n" + "".join(f"{label}.jpg,{label}\n" for label in labels.split()))
    files = ImageFiles(table)
    assert files.classes == classes
    assert files.labels.tolist() == ([0, 10] if classes is None else [classes.index(name) for name in labels.split()])


def test_a_table_in_utf_16_with_an_empty_first_line(tmp_path):
    table = tmp_path / "all.csv"
    table.write_bytes("\n\npath;label\n1.jpg;Kätzchen\n2.jpg;dog\n".encode("utf-16"))
    files = ImageFiles(table)
    assert (names(files.paths), files.classes) == (["1.jpg", "2.jpg"], ["Kätzchen", "dog"])
    table.write_text("\npath,label\n1.jpg,1\n,2\n")
    with pytest.raises(InputError, match="line 4: an empty path"):
        ImageFiles(table)


def test_masks_are_found_by_name(tmp_path):
    touch(tmp_path / "images/1.jpg", tmp_path / "images/2.jpg", tmp_path / "masks/2.png", tmp_path / "masks/1.png")
    files = ImageFiles(tmp_path / "images", masks=tmp_path / "masks")
    assert names(files.masks) == ["1.png", "2.png"]


def test_two_masks_of_one_name_are_not_chosen_from(tmp_path):
    touch(tmp_path / "images/3.jpg", tmp_path / "masks/3.PNG", tmp_path / "masks/3.tif")
    with pytest.raises(InputError, match=r"masks/3\.PNG and .*masks/3\.tif are both masks of 3: leave one of them"):
        ImageFiles(tmp_path / "images", masks=tmp_path / "masks")
    touch(tmp_path / "others/4.jpg", tmp_path / "masks/4.png")
    assert names(ImageFiles(tmp_path / "others", masks=tmp_path / "masks").masks) == ["4.png"], "3 is no image there"


def test_masks_whose_names_all_end_alike_are_found_by_what_comes_before(tmp_path):
    touch(*(tmp_path / f"images/{number}.jpg" for number in (1, 10, 2)))
    touch(*(tmp_path / f"masks/{number}_mask.png" for number in (2, 1, 10)))
    files = ImageFiles(tmp_path / "images", masks=tmp_path / "masks")
    assert names(files.masks) == [f"{Path(path).stem}_mask.png" for path in files.paths]
    touch(*(tmp_path / f"masks/{number}_old.png" for number in (2, 1, 10)))
    with pytest.raises(InputError, match=r"3 of 3 images have no mask of their name .* named like 10?_mask\.png"):
        ImageFiles(tmp_path / "images", masks=tmp_path / "masks")
    (tmp_path / "masks/10_old.png").unlink()
    assert names(ImageFiles(tmp_path / "images", masks=tmp_path / "masks").masks) == names(files.masks)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda t: ImageFiles(t / "nowhere"), "neither a folder nor a .csv"),
        (ImageFiles, "no image files"),
        (lambda t: ImageFiles([]), "no image files"),
        (lambda t: ImageFiles(["a.jpg"], labels=[1, 2]), "2 labels for 1 images"),
        (lambda t: ImageFiles(["a.jpg"], masks=["1", "2"]), "2 masks for 1 images"),
        (lambda t: ImageFiles(["a.jpg"], masks=t), "1 of 1 images have no mask of their name"),
        (lambda t: ImageFiles(["a.jpg"], masks=t / "no"), "the masks' folder .*/no does not exist"),
        (lambda t: ImageFiles(["a.jpg"], masks=__file__), "the masks' folder .*py is not a folder"),
        (lambda t: ImageFiles(["a.jpg"], labels=[object()]), "labels must be"),
        (lambda t: table(t, "name,label\nx,1\n"), "no column named path"),
        (lambda t: table(t, "path,label\nx.jpg,\n"), "line 2: an empty label"),
        (lambda t: table(t, "path,class\n\nx.jpg,a\n,b\n"), "line 4: an empty path"),
        (lambda t: table(t, "path\nx.jpg\n\0\0\n"), "line 3: a zero byte in a path: the table is damaged"),
        (lambda t: table(t, "path,mask\nx.jpg,\0.png\n"), "line 2: a zero byte in a path"),
        (lambda t: table(t, "path,class\n1.jpg,café\n", "latin-1"), r"t\.csv can't be read .* save it as .* UTF-8"),
        (lambda t: ImageFiles(t / "none.csv"), r"none\.csv can't be read \(No such file"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, make, message):
    with pytest.raises(InputError, match=message):
        make(tmp_path)


def table(folder: Path, text: str, encoding: str = "utf-8") -> ImageFiles:
    (folder / "t.csv").write_text(text, encoding)
    return ImageFiles(folder / "t.csv")


def test_where_no_images_are_is_named_plainly(tmp_path):
    with pytest.raises(InputError, match=f"^no image files in {tmp_path};"):
        ImageFiles(tmp_path)


def test_a_column_class_has_labels_unless_there_are_others_or_masks(tmp_path):
    assert table(tmp_path, "path,class\n1.jpg,dog\n2.jpg,cat\n").classes == ["cat", "dog"]
    assert table(tmp_path, "path,class,label\n1.jpg,dog,3\n2.jpg,cat,5\n").labels.tolist() == [3, 5]
    assert table(tmp_path, "path,class,mask\n1.jpg,dog,1.png\n").labels is None, "masks are the target there"


@pytest.mark.parametrize(
    ("labels", "told"),
    [([1, 3, 2, 1], True), ([0, 1, 2, 3], False), ([2, 3, 2, 3], False), ([1, 1, 1, 1], False), ([1.0] * 4, False)],
)
def test_numbers_that_begin_at_1_are_kept_and_told_of(caplog, labels, told):
    assert ImageFiles(["1.jpg", "2.jpg", "3.jpg", "4.jpg"], labels=labels).labels.tolist() == labels
    assert ("labels are 1 to 3 and none is 0" in caplog.text) == told == bool(caplog.records)


def test_images_beside_class_folders_are_told_of_and_hidden_folders_are_no_classes(tmp_path, caplog):
    touch(tmp_path / "dog/b.jpg", tmp_path / ".checkpoints/b.jpg")
    assert ImageFiles(tmp_path).classes == ["dog"]
    assert not caplog.records
    touch(tmp_path / "preview.png")
    assert names(ImageFiles(tmp_path).paths) == ["preview.png"]
    assert "1 images beside 1 subfolders, which are not looked into" in caplog.text


def test_a_label_may_be_a_row_of_numbers():
    rows = [[1, 2], [2, 1]]
    assert ImageFiles(["1.jpg", "2.jpg"], labels=rows).labels.tolist() == rows
    with pytest.raises(InputError, match="labels differ in length"):
        ImageFiles(["1.jpg", "2.jpg"], labels=[[1], [2, 1]])


@pytest.mark.parametrize(
    ("text", "message"),
    [("path,label\n", "names no files"), ("path|label\n1.jpg|2\n", "found path.label. .* with commas, semicolons")],
)
def test_a_table_that_names_nothing_says_why(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        table(tmp_path, text)


def test_columns_are_known_however_they_are_capitalised(tmp_path):
    found = table(tmp_path, "Path, Label ,age\n1.jpg,cat,3\n2.jpg,dog,5\n")
    assert (found.classes, found.labels.tolist()) == (["cat", "dog"], [0, 1])
    assert table(tmp_path, "path,Label,label\n1.jpg,cat,3\n2.jpg,dog,5\n").labels.tolist() == [3, 5]
    with pytest.raises(InputError, match="found Image_ID, Category"):
        table(tmp_path, "Image_ID,Category\n1.jpg,cat\n")


def test_spaces_around_what_a_table_holds_mean_nothing(tmp_path):
    """As headers are read: else "cat" and "cat " are two classes, and " m/1.png" is a file that is missing."""
    found = table(
        tmp_path, 'path, label, mask\n 1.jpg , cat, m/1.png\n"2, b.jpg", "cat ", "m/2, b.png" \n3.jpg,dog ,3.png\n'
    )
    assert names(found.paths) == ["1.jpg", "2, b.jpg", "3.jpg"]
    assert (found.classes, found.labels.tolist()) == (["cat", "dog"], [0, 0, 1])
    assert found.masks == [str(tmp_path / mask) for mask in ("m/1.png", "m/2, b.png", "3.png")]
    with pytest.raises(InputError, match="line 2: an empty label or mask"):
        table(tmp_path, "path,label\n1.jpg, \n")
    with pytest.raises(InputError, match="line 2: an empty path"):
        table(tmp_path, "path,label\n ,cat\n")


@pytest.mark.parametrize("separator", [";", "\t"])
def test_a_table_as_spreadsheets_write_them(tmp_path, separator):
    found = table(tmp_path, f"path{separator}label\n1,5.jpg{separator}3\n2.jpg{separator}5\n")
    assert names(found.paths) == ["1,5.jpg", "2.jpg"]
    assert found.labels.tolist() == [3, 5]


def test_what_begins_with_a_dot_is_not_meant(tmp_path):
    touch(tmp_path / "dog/b.jpg", tmp_path / "dog/._b.jpg", tmp_path / "dog/.ipynb_checkpoints/b.jpg")
    assert names(ImageFiles(tmp_path).paths) == ["b.jpg"]
    assert names(ImageFiles(tmp_path / "dog").paths) == ["b.jpg"]


def test_linked_folders_are_looked_into_and_no_link_leads_round_in_a_circle(tmp_path):
    """Data sets are often put together of links."""
    touch(tmp_path / "disk/more/2.jpg", tmp_path / "data/cat/1.jpg", tmp_path / "data/dog/3.jpg")
    for link, to in (
        ("cat/more", "disk/more"),
        ("cat/again", "disk/more"),
        ("cat/all", "data"),
        ("cat/cat", "data/cat"),
    ):
        (tmp_path / "data" / link).symlink_to(tmp_path / to)
    (tmp_path / "disk/more/round").symlink_to(tmp_path / "disk/more")
    (tmp_path / "data/dog/more").symlink_to(tmp_path / "data/cat")
    files = ImageFiles(tmp_path / "data")
    assert names(files.paths) == ["1.jpg", "2.jpg", "3.jpg"], "each once, and of one class"
    assert files.labels.tolist() == [0, 0, 1]


def test_a_folder_that_can_not_be_looked_into_is_not_passed_over(tmp_path, monkeypatch):
    touch(tmp_path / "cat/a.jpg", tmp_path / "dog/b.jpg")
    scandir = os.scandir

    def refuse(folder):  # the superuser, who may run this, is refused nothing
        if Path(folder).name == "dog":
            raise PermissionError(errno.EACCES, "Permission denied", os.fspath(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    for source in (tmp_path, tmp_path / "dog"):
        with pytest.raises(InputError, match=r"dog can't be looked into \(Permission denied\): make it readable"):
            ImageFiles(source)


def test_a_folder_without_images_is_told_of(tmp_path, caplog):
    touch(tmp_path / "cat/a.jpg", tmp_path / "dog/b.heic")
    assert ImageFiles(tmp_path).classes == ["cat"]
    assert "subfolders without a file to read are no classes: dog" in caplog.text


def test_two_images_do_not_get_one_mask(tmp_path):
    touch(tmp_path / "images/cat/1.jpg", tmp_path / "images/dog/1.jpg", tmp_path / "masks/1.png")
    with pytest.raises(
        InputError, match=r"cat/1.jpg and .*dog/1.jpg would have one mask, .*1.png: pass masks as a list"
    ):
        ImageFiles(tmp_path / "images", masks=tmp_path / "masks")
    again = [tmp_path / "images/cat/1.jpg"] * 2
    assert names(ImageFiles(again, masks=tmp_path / "masks").masks) == ["1.png", "1.png"]


def test_classes_of_the_training_files_keep_their_numbers_in_validation(tmp_path):
    for name in ("cat", "dog", "owl"):
        for part in ("train", "val"):
            if (part, name) != ("val", "cat"):
                (tmp_path / part / name).mkdir(parents=True)
                (tmp_path / part / name / "1.jpg").touch()
    train = ImageFiles(tmp_path / "train")
    held_out = ImageFiles(tmp_path / "val", classes=train.classes)
    assert held_out.labels.tolist() == [1, 2]
    assert held_out.classes == ["cat", "dog", "owl"]
    with pytest.raises(InputError, match="classes has no owl; it has cat, dog"):
        ImageFiles(tmp_path / "val", classes=["cat", "dog"])


def test_many_classes_are_not_compared_with_each_other(tmp_path, monkeypatch):
    """ImageNet-21k has 21,841 of them: what is done for each may not grow with their number."""
    for number in range(60):
        (tmp_path / f"{number:02}" / "inner").mkdir(parents=True)
        (tmp_path / f"{number:02}" / "inner" / "1.jpg").write_bytes(b"")
    asked = []
    compare = type(tmp_path).__eq__
    monkeypatch.setattr(type(tmp_path), "__eq__", lambda one, other: asked.append(1) or compare(one, other))
    monkeypatch.setattr(type(tmp_path), "is_relative_to", lambda *_: asked.append(1) or False)
    found = list(files_by_class(tmp_path, [f"{number:02}" for number in range(60)], (".jpg",)))
    assert len(found) == 60
    assert len(asked) < 60 * 20
