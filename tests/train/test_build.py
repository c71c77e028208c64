"""From a configuration to a Trainer: data of every kind, models, optimizers, schedulers."""

from __future__ import annotations

import csv
import shutil
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from PIL import Image
from tests.train.helpers import EXACT, samples
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from fulltilt.errors import DecodeError, InputError
from fulltilt.feed import ImageFiles
from fulltilt.train import models
from fulltilt.train.build import make_scheduler, make_trainer
from fulltilt.train.config.config import TrainingConfig
from fulltilt.train.config.data import make_feeds, set_aside
from fulltilt.train.config.file import dump_config, make_config, parse_config
from fulltilt.train.shapes import shapes


class Squares(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.full((8,), float(index)), index % 2


class Endless(IterableDataset):
    def __iter__(self):
        return iter([(torch.zeros(8), 1)] * 10)


class TwoInputs(torch.nn.Conv2d):
    """A logit for each pixel, of the picture and of numbers that go with it."""

    def __init__(self) -> None:
        super().__init__(3, 1, 1)

    def forward(self, images, features):
        return super().forward(images) + features.mean()


def given(kind: str):
    """What a `package.module:callable` may return."""
    inputs, labels = samples(20)
    return {
        "tensors": lambda: (inputs, labels),
        "arrays": lambda: (inputs.numpy(), labels.numpy()),
        "data set": Squares,
        "iterable": Endless,
        "loader": lambda: DataLoader(TensorDataset(inputs, labels), 4),
        "batches": lambda: iter([(inputs[:5], labels[:5])] * 3),
    }[kind]()


def trainer(**sections):
    data = {"batch_size": 4, "num_workers": 0, **sections.pop("data", {})}
    training = {"epochs": 1, "device": "cpu", **EXACT, **sections.pop("training", {})}
    model = sections.pop("model", {"name": "mlp", "args": {"inputs": 8, "outputs": 2}})
    return make_trainer(make_config({"data": data, "training": training, "model": model, **sections}))


@pytest.mark.parametrize(
    ("kind", "count"),
    [("tensors", 5), ("arrays", 5), ("data set", 5), ("iterable", 3), ("loader", 5), ("batches", 3)],
)
def test_a_callable_may_give_anything_that_has_samples_or_batches(kind, count):
    made = trainer(data={"source": "tests.train.test_build:given", "args": {"kind": kind}})
    assert len(made.fit().losses) == count


@pytest.fixture
def folder(tmp_path):
    images, masks = shapes(20, 12, target="mask")
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    with (tmp_path / "list.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label"])
        for number in range(20):
            Image.fromarray(images[number].permute(1, 2, 0).numpy()).save(tmp_path / "images" / f"{number}.png")
            Image.fromarray(masks[number, 0].byte().numpy()).save(tmp_path / "masks" / f"{number}.png")
            rows.writerow([f"images/{number}.png", number % 3])
    return tmp_path


def test_images_with_masks(folder):
    made = trainer(
        data={
            "source": str(folder / "images"), "masks": str(folder / "masks"), "size": 16, "val_share": 0.2,
            "num_workers": 1,
        },
        model={"name": "small_unet", "args": {"width": 4}},
        metrics={"iou": {"name": "BinaryJaccardIndex"}},
        gpu_augmentation={"preset": "strong"},
    )  # fmt: skip
    history = made.fit()
    assert history.last["samples"] == 16
    assert 0 <= history.last["val_iou"] <= 1


@pytest.mark.parametrize("has", ["a column label", "folders of images"])
def test_labels_beside_masks_are_no_input_of_the_model(folder, has):
    """The masks are the target; folders part the images, and validation may have others than training."""
    rows = [["path", "mask", "label"]]
    for number in range(20):
        image, part = folder / "images" / f"{number}.png", "abcd"[number % 2 + 2 * (number >= 14)]
        image.parent.joinpath(part).mkdir(exist_ok=True)
        image.rename(image.parent / part / image.name)
        rows.append([f"images/{part}/{image.name}", f"masks/{image.name}", part])
    for name, some in (("train", rows[:15]), ("val", [rows[0], *rows[15:]])):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(some)
    data = {"source": str(folder / "train.csv"), "val_source": str(folder / "val.csv")}
    if has == "folders of images":
        data = {"source": str(folder / "images"), "masks": str(folder / "masks"), "val_share": 0.3}
    made = trainer(
        data=data | {"size": 16, "num_workers": 1, "features": "fulltilt.assist:extract_features"},
        model={"name": "tests.train.test_build:TwoInputs"},
    )
    history = made.fit()
    assert history.last["samples"] == 14
    assert "val_loss" in history.last


def test_a_csv_with_labels_without_augmentation(folder):
    made = trainer(
        data={"source": str(folder / "list.csv"), "size": [16, 20], "num_workers": 1, "channels": 1},
        model={"name": "small_cnn", "args": {"classes": 3, "channels": 1, "width": 4}},
        training={"use_gpu_augmentation": False, "eval_interval": 1},
        gpu_augmentation={"normalize": [[0.5], [0.2]]},
    )
    (images, _), *_ = list(made._training.source)
    assert images.shape == (4, 1, 16, 20)
    assert float(images.min()) < 0, "normalised all the same"
    made._training.source.close()


def test_a_class_that_validation_lacks_does_not_shift_the_others(folder, tmp_path):
    picture = ImageFiles(folder / "list.csv").paths[0]
    for part, name in (("train", "cat"), ("train", "dog"), ("val", "dog")):
        (tmp_path / part / name).mkdir(parents=True)
        shutil.copy(picture, tmp_path / part / name)
    sources = {"source": str(tmp_path / "train"), "val_source": str(tmp_path / "val")}
    made = trainer(
        data=sources | {"size": [16, 16], "num_workers": 1},
        model={"name": "small_cnn", "args": {"classes": 2, "width": 4}},
    )
    ((_, labels),) = list(made._validation.source)
    assert labels.tolist() == [1]
    made._validation.source.close()
    made._training.source.close()


@pytest.mark.parametrize("kind", [tuple, list, lambda parts: parts[0], lambda parts: TensorDataset(*parts)])
def test_windows_of_one_recording_are_not_set_aside_at_random(kind):
    """Each would have neighbours on the other side, all but one of its hours with them."""
    windows = torch.arange(100.0).unfold(0, 8, 1)
    with pytest.raises(InputError, match=r"data\.val_share: samples overlap .* give data\.val_source"):
        set_aside(kind((windows, torch.zeros(len(windows)))), 0.25, seed=1)
    _, val = set_aside(kind((windows[::8], torch.zeros(len(windows[::8])))), 0.25, seed=1)
    assert len(val if kind not in (tuple, list) else val[0]) == 3


def cut(of: str, *, first: int = 0, count: int = 20):
    inputs, labels = samples(first + count)
    return inputs[first:] if of == "inputs" else (inputs[first:], labels[first:])


@pytest.mark.parametrize(
    ("val_source", "val_args", "count"),
    [
        ("cut", {"first": 8}, 8),
        ("cut", {"first": 8, "count": 12}, 12),
        ("given", {"kind": "tensors"}, 20),
    ],
    ids=["what is not said holds for both", "what is said wins", "another callable has its own"],
)
def test_arguments_of_one_callable_hold_for_validation(val_source, val_args, count):
    """They say how samples are cut: two ways of cutting would have some in both parts."""
    data = {"source": f"{__name__}:cut", "args": {"of": "both", "count": 8}}
    data |= {"val_source": f"{__name__}:{val_source}", "val_args": val_args}
    content = {"data": data, "model": {"name": "mlp", "args": {"inputs": 8, "outputs": 2}}}
    for config in (make_config(content), parse_config(dump_config(make_config(content)), look_up=True)):
        train, val, _ = make_feeds(config, torch.device("cpu"))
        assert (train.order.length, val.order.length) == (8, count)


def test_validating_with_the_samples_of_training_is_said(caplog):
    caplog.set_level("INFO", "fulltilt.train")
    data = {"source": f"{__name__}:given", "args": {"kind": "tensors"}, "val_source": f"{__name__}:given"}
    for val_args, said in (({}, True), ({"kind": "tensors"}, True), ({"kind": "arrays"}, False)):
        caplog.clear()
        make_feeds(make_config({"data": data | {"val_args": val_args}}), torch.device("cpu"))
        assert ("validation has the samples of training" in caplog.text) is said
        assert ("data.val_args: kind='tensors' from data.args" in caplog.text) is (not val_args)


def test_samples_set_aside_are_the_same_for_a_seed_and_never_trained_with(folder):
    files = ImageFiles(folder / "list.csv")
    train, val = set_aside(files, 0.25, seed=1)
    again, _ = set_aside(files, 0.25, seed=1)
    other, _ = set_aside(files, 0.25, seed=2)
    assert (len(train), len(val)) == (15, 5)
    assert train.paths == again.paths != other.paths
    assert sorted(train.paths + val.paths) == sorted(files.paths)
    by_path = dict(zip(files.paths, files.labels.tolist(), strict=True))
    assert [by_path[path] for path in val.paths] == val.labels.tolist()

    twice = ImageFiles([*files.paths, *files.paths[:10]], labels=[0] * 30)  # of several labels, or joined tables
    train, val = set_aside(twice, 0.25, seed=1)
    assert set(train.paths) | set(val.paths) == set(files.paths)
    assert not set(train.paths) & set(val.paths)
    assert len(train) + len(val) == 30
    assert len(set(val.paths)) == 5

    inputs, held = set_aside((torch.arange(10), np.arange(10)), 0.3, seed=1)
    assert sorted([*inputs[0].tolist(), *held[0].tolist()]) == list(range(10))
    assert inputs[0].tolist() == inputs[1].tolist()
    rest, some = set_aside(Squares(), 0.5, seed=1)
    assert len(rest) == len(some) == 10


@pytest.mark.parametrize(
    ("source", "share", "says"),
    [
        (Endless(), 0.5, "samples of a Endless can't be set aside"),
        (DataLoader(Squares()), 0.5, "samples of a DataLoader can't be set aside"),
        (ImageFiles(["a.png"] * 9), 0.5, "0.5 of 1 samples is 0; both parts must have some"),
        (torch.zeros(3), 0.01, "0.01 of 3 samples is 0; both parts must have some"),
    ],
)
def test_samples_that_can_not_be_set_aside(source, share, says):
    with pytest.raises(InputError, match=f"data.val_share: {says}"):
        set_aside(source, share, seed=0)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"source": "tests.train.test_build:Squares", "masks": "m"}, "masks belong to folders of images"),
        ({"source": "tests.train.test_build:Squares", "quality": "fast"}, r"data\.quality: only for image files"),
        (
            {"source": "tests.train.test_build:Squares", "features": "math:sqrt"},
            r"data\.features: only for image files",
        ),
        ({"source": "tests.train.test_build:Squares", "on_error": "skip"}, r"data\.on_error: only for image files"),
        ({"source": "nowhere", "args": {"a": 1}}, "read as a folder or .csv file, which takes no args"),
    ],
)
def test_data_that_contradict_each_other(config, says):
    with pytest.raises(InputError, match=says):
        trainer(data=config)


def test_a_configuration_that_was_written_with_every_key_trains_again():
    config = make_config({"data": {"source": "tests.train.test_build:Squares", "batch_size": 4}})
    assert len(make_feeds(parse_config(dump_config(config)), torch.device("cpu"))[0]) == 5


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_clips_of_a_callable_are_left_out_as_the_section_says(tmp_path, on_error):
    bad = tmp_path / "bad.mp4"
    bad.write_bytes(b"no video" * 100)
    args = {"source": [str(bad)], "length": 2, "size": [32, 32]}
    data = {"source": "fulltilt.feed:VideoClips", "args": args, "num_workers": 0, "batch_size": 1, "on_error": on_error}
    batches, *_ = make_feeds(make_config({"data": data}), torch.device("cpu"))
    with batches, nullcontext() if on_error == "skip" else pytest.raises(DecodeError, match=r"bad\.mp4"):
        assert not list(batches)


@pytest.mark.parametrize("name", ["cosine", "step", "onecycle", "linear", "plateau"])
def test_schedulers_take_their_length_from_the_run(name):
    made = trainer(
        data={"source": "tests.train.test_build:Squares"},
        training={"epochs": 3, "scheduler": name, "lr": 0.1, "optimizer": "sgd", "accumulate": 2},
    )
    history = made.fit()
    rates = [record["lr"] for record in history.epochs]
    end = made.stepper.optimizers[0].param_groups[0]["lr"]
    if name in ("cosine", "linear", "onecycle"):
        assert end < 0.02
    assert rates[-1] <= 0.1
    assert made.step == 15


def test_a_plateau_is_looked_for_the_way_the_monitored_figure_gets_better():
    accuracy = {"accuracy": {"name": "MulticlassAccuracy", "args": {"num_classes": 2}}}
    data = {"source": "tests.train.test_build:Squares"}
    settings = {"epochs": 1, "scheduler": "plateau", "monitor": "train_accuracy"}
    (plateau,) = trainer(data=data, training=settings, metrics=accuracy)._schedules.all
    assert plateau.mode == "max"
    (plateau,) = trainer(data=data, training={"epochs": 1, "scheduler": "plateau"})._schedules.all
    assert plateau.mode == "min"
    wrong = {**settings, "scheduler_args": {"mode": "min"}}
    with pytest.raises(InputError, match="has mode='min', but train_accuracy, which it is told, is better when larger"):
        trainer(data=data, training=wrong, metrics=accuracy)


def test_a_scheduler_whose_length_nobody_knows():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    config = TrainingConfig(scheduler="onecycle")
    with pytest.raises(InputError, match=r"onecycle has to know the number of steps; set training\.max_steps"):
        make_scheduler(optimizer, config, None)
    assert make_scheduler(optimizer, TrainingConfig(scheduler="onecycle", max_steps=9), None).total_steps == 10
    accumulating = TrainingConfig(scheduler="onecycle", max_steps=9, accumulate=4)
    assert make_scheduler(optimizer, accumulating, None).total_steps == 4, "steps of the optimizer, not batches"


def test_the_seed_makes_runs_alike():
    def losses(seed):
        made = trainer(data={"source": "tests.train.test_build:Squares"}, training={"seed": seed})
        return list(made.fit().losses)

    assert losses(1) == losses(1) != losses(2)


@pytest.mark.parametrize(
    ("model", "shape", "out"),
    [
        (models.Mlp(12, 3, layers=1, dropout=0.1), (2, 3, 4), (2, 3)),
        (models.SmallCnn(5, width=4), (2, 3, 33, 20), (2, 5)),
        (models.SmallUnet(2, channels=1, width=4), (2, 1, 16, 24), (2, 2, 16, 24)),
    ],
)
def test_the_small_models(model, shape, out):
    assert model(torch.zeros(shape)).shape == out


def test_shapes_can_be_told_apart_and_are_the_same_for_a_seed():
    images, kinds = shapes(40, 16, seed=3)
    assert images.dtype == torch.uint8
    assert images.shape == (40, 3, 16, 16)
    assert set(kinds.tolist()) == {0, 1, 2, 3}
    _, masks = shapes(40, 16, seed=3, target="mask")
    inside = images.float().mean(1, keepdim=True)[masks.bool()].mean()
    outside = images.float().mean(1, keepdim=True)[~masks.bool()].mean()
    assert float(inside) > float(outside) + 50
    assert torch.equal(images, shapes(40, 16, seed=3)[0])
