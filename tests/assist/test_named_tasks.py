"""The tasks that ship: metrics against torchmetrics, features against counts made by hand; and tensors handed over."""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict, namedtuple

import pytest
import torch
import torchmetrics.functional as tm

from fulltilt.assist import metrics
from fulltilt.assist.features import extract_features
from fulltilt.assist.handover import Handover
from fulltilt.assist.metrics import compute_metrics
from fulltilt.errors import InputError


def test_classes_against_torchmetrics():
    outputs, targets = torch.randn(40, 5), torch.randint(0, 5, (40,))
    figures = compute_metrics(outputs, targets)
    more = {"task": "multiclass", "num_classes": 5}
    assert figures["accuracy"] == pytest.approx(float(tm.accuracy(outputs, targets, average="micro", **more)))
    assert figures["f1"] == pytest.approx(float(tm.f1_score(outputs, targets, average="macro", **more)))
    assert figures["iou"] == pytest.approx(float(tm.jaccard_index(outputs, targets, average="macro", **more)))


def test_classes_of_pixels_with_some_to_ignore():
    outputs, targets = torch.randn(2, 3, 8, 8), torch.randint(0, 3, (2, 8, 8))
    targets[:, :2] = 255
    figures = compute_metrics(outputs, targets)
    more = {"task": "multiclass", "num_classes": 3, "ignore_index": 255}
    assert figures["accuracy"] == pytest.approx(float(tm.accuracy(outputs, targets, average="micro", **more)))
    assert figures["iou"] == pytest.approx(float(tm.jaccard_index(outputs, targets, average="macro", **more)))


def test_masks_against_torchmetrics():
    outputs, targets = torch.randn(2, 1, 16, 16) * 3, torch.randint(0, 2, (2, 1, 16, 16)).float()
    figures = compute_metrics(outputs, targets)
    ints = targets.int()
    for name, function in {"accuracy": tm.accuracy, "precision": tm.precision, "recall": tm.recall}.items():
        assert figures[name] == pytest.approx(float(function(outputs, ints, task="binary")))
    assert figures["f1"] == pytest.approx(float(tm.f1_score(outputs, ints, task="binary")))
    assert figures["iou"] == pytest.approx(float(tm.jaccard_index(outputs, ints, task="binary")))
    assert figures["dice"] == figures["f1"]


def test_an_empty_mask_that_is_found_empty():
    figures = compute_metrics(-torch.ones(1, 4, 4), torch.zeros(1, 4, 4))
    assert set(figures.values()) == {1.0}


def test_regression_against_torchmetrics():
    outputs, targets = torch.randn(50), torch.randn(50)
    figures = compute_metrics(outputs, targets)
    assert figures["mae"] == pytest.approx(float(tm.mean_absolute_error(outputs, targets)), rel=1e-5)
    assert figures["rmse"] == pytest.approx(float(tm.mean_squared_error(outputs, targets)) ** 0.5, rel=1e-5)
    assert figures["r2"] == pytest.approx(float(tm.r2_score(outputs, targets)), rel=1e-4)
    assert math.isnan(compute_metrics(outputs, torch.full((50,), 3.0))["r2"])


def test_more_metrics_and_a_kind_that_is_said():
    outputs, targets = torch.randn(50), torch.randint(0, 2, (50,)).float()
    figures = compute_metrics(
        outputs, targets, metrics={"auroc": lambda o, t: tm.auroc(o, t.int(), task="binary")}, kind="regression"
    )
    assert set(figures) == {"mae", "rmse", "r2", "auroc"}
    with pytest.raises(InputError, match="kind is 'ranking'; it can be 'auto', 'classes'"):
        compute_metrics(outputs, targets, kind="ranking")


@pytest.mark.parametrize("shape", [(6,), (6, 4, 4)])
def test_one_channel_is_no_class_to_choose_from(shape):
    outputs = torch.randn(shape)
    for targets, kind in ((torch.randint(0, 2, shape), "binary"), (torch.randn(shape), "regression")):
        same = compute_metrics(outputs, targets)
        assert compute_metrics(outputs.unsqueeze(1), targets) == same
        assert compute_metrics(outputs.unsqueeze(1), targets, kind=kind) == same  # and nothing is spread to fit


def test_a_kind_that_the_shapes_are_not_of():
    with pytest.raises(InputError, match=r"kind is 'binary', but outputs of shape \(4, 3\).* are of classes"):
        compute_metrics(torch.randn(4, 3), torch.randint(0, 2, (4,)), kind="binary")
    with pytest.raises(InputError, match=r"kind is 'classes', but .* are of no classes; leave it to 'auto'"):
        compute_metrics(torch.randn(4), torch.randint(0, 2, (4,)), kind="classes")
    with pytest.raises(InputError, match="don't go with"):
        compute_metrics(torch.randn(4, 3), torch.randint(0, 2, (4, 1)), kind="classes")


def test_images_that_have_no_features():
    images = torch.randint(0, 256, (2, 3, 8, 8))
    with pytest.raises(InputError, match=r"torch\.int64 have no known range; uint8 has"):
        extract_features(images)
    with pytest.raises(InputError, match="NaN or infinite"):
        extract_features(torch.full((2, 3, 8, 8), float("nan")))
    for name in ("colour_bins", "orientations", "cells"):
        with pytest.raises(InputError, match=f"{name} is 0; it is a number from 1 on"):
            extract_features(images.byte(), **{name: 0})
    assert torch.equal(extract_features(images.byte().numpy()), extract_features(images.byte()))
    assert extract_features(torch.zeros(0, 3, 8, 8)).shape == (0, 80)


def test_colours_are_counted():
    image = torch.zeros(3, 4, 4, dtype=torch.uint8)
    image[0] = 255
    image[1, :, :2] = 128
    red, green, blue = extract_features(image, colour_bins=4)[:12].view(3, 4)
    assert red.tolist() == [0, 0, 0, 1]
    assert green.tolist() == [0.5, 0, 0.5, 0]
    assert blue.tolist() == [1, 0, 0, 0]


def test_edges_are_found_where_they_are():
    image = torch.zeros(1, 16, 16)
    image[:, :, 12:] = 1  # an upright edge, in the right half
    edges = extract_features(image, colour_bins=2, orientations=4, cells=2)[2:].view(2, 2, 4)
    assert edges[:, 0].abs().max() == 0
    assert edges[:, 1, 0].tolist() == pytest.approx([0.5**0.5] * 2)
    assert edges[:, 1, 1:].abs().max() == 0
    turned = extract_features(image.mT.contiguous(), colour_bins=2, orientations=4, cells=2)[2:].view(2, 2, 4)
    assert turned[1, :, 2].tolist() == pytest.approx([0.5**0.5] * 2)


def test_bytes_and_floats_look_alike():
    images = torch.randint(0, 256, (3, 3, 32, 24), dtype=torch.uint8)
    assert torch.allclose(extract_features(images), extract_features(images.float() / 255), atol=1e-5)


def test_likeness_to_known_images():
    images = torch.rand(4, 3, 32, 32) ** torch.tensor([0.3, 1, 2, 5]).view(4, 1, 1, 1)
    known = extract_features(images)
    likeness = extract_features(images, reference=known)
    assert likeness.shape == (4, 4)
    assert likeness.diagonal().tolist() == pytest.approx([1.0] * 4, abs=1e-5)
    assert torch.equal(likeness.argmax(1), torch.arange(4))
    with pytest.raises(InputError, match="extract it with the same settings"):
        extract_features(images, reference=known[:, :5])
    with pytest.raises(InputError, match=r"images of shape \(4, 4\)"):
        extract_features(torch.zeros(4, 4))


Pair = namedtuple("Pair", "images masks")


def test_values_without_a_graph_are_handed_over_as_they_are():
    given = (Pair(torch.ones(2), [torch.zeros(3)]), {"a": OrderedDict(b=torch.ones(1))}, "text")
    taken, size, ready = Handover().take(given)
    assert taken is given
    assert (size, ready) == (0, None)


def test_graphs_stay_behind():
    weights = torch.ones(3, requires_grad=True)
    outputs = weights * 2
    taken, _, _ = Handover().take(Pair(outputs, OrderedDict(x=[outputs])))
    assert isinstance(taken, Pair)
    assert isinstance(taken.masks, OrderedDict)
    assert not taken.images.requires_grad
    assert not taken.masks["x"][0].requires_grad
    assert taken.images.data_ptr() == outputs.data_ptr()


def test_mappings_keep_what_they_were_told():
    given = defaultdict(list, x=torch.ones(1, requires_grad=True), y=[1])
    taken, _, _ = Handover().take(given)
    assert not taken["x"].requires_grad
    assert given["x"].requires_grad
    assert (taken["y"], taken["z"]) == ([1], [])


def test_probabilities_among_logits_are_told_of_once(caplog):
    metrics._tell_of_probabilities.cache_clear()
    targets = torch.randint(0, 2, (2, 1, 8, 8))
    compute_metrics(torch.randn(2, 1, 8, 8), targets)
    assert "probabilities" not in caplog.text
    for _ in range(2):
        compute_metrics(torch.rand(2, 1, 8, 8), targets)
    assert caplog.text.count("if they are probabilities, pass what the model gives before its sigmoid") == 1
