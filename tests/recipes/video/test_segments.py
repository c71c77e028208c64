"""Labels to segments and back; candidates and what soft-NMS leaves of them."""

from __future__ import annotations

from itertools import groupby

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fulltilt.recipes.video.segments import Segments, decode, soft_nms, spans, tiou, true_segments

labels_of = st.integers(1, 40).flatmap(lambda n: arrays("int64", n, elements=st.integers(0, 3)))


@given(labels_of)
def test_spans_are_the_runs_of_equal_labels(labels):
    expected, at = [], 0
    for _, run in groupby(labels.tolist()):
        length = len(list(run))
        expected += [(at, at + length)] * length
        at += length
    starts, ends = spans(torch.from_numpy(labels))
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == expected
    batch = spans(torch.from_numpy(labels).expand(2, 3, -1))
    assert all(torch.equal(part[1, 2], whole) for part, whole in zip(batch, (starts, ends), strict=True))


@given(labels_of)
def test_true_segments_say_what_the_labels_say(labels):
    bounds, classes, scores = true_segments(torch.from_numpy(labels))
    painted = torch.zeros(len(labels), dtype=torch.int64)
    for (start, end), kind in zip(bounds.long().tolist(), classes.tolist(), strict=True):
        painted[start:end] = kind + 1
    assert painted.tolist() == labels.tolist()
    assert len(bounds) == sum(kind > 0 for kind, _ in groupby(labels.tolist()))
    assert bool((scores == 1).all())


def test_tiou():
    some = torch.tensor([[0.0, 10.0], [5.0, 5.0]])
    others = torch.tensor([[0.0, 10.0], [5.0, 15.0], [20.0, 30.0]])
    torch.testing.assert_close(tiou(some, others), torch.tensor([[1.0, 1 / 3, 0.0], [0.0, 0.0, 0.0]]))


def test_soft_nms_lowers_what_overlaps_and_leaves_other_classes_alone():
    bounds = torch.tensor([[0.0, 10.0], [0.0, 10.0], [0.0, 10.0], [50.0, 60.0]])
    found = soft_nms(
        Segments(bounds, torch.tensor([0, 0, 1, 0]), torch.tensor([0.9, 0.8, 0.7, 0.1])), sigma=0.5, keep=9
    )
    assert found.classes.tolist() == [0, 1, 0, 0]
    torch.testing.assert_close(found.scores, torch.tensor([0.9, 0.7, 0.8 * torch.e**-2, 0.1]))
    assert soft_nms(found, sigma=0.5, keep=2).scores.tolist() == found.scores.tolist()[:2]


def test_decoding_what_is_known_gives_it_back():
    labels = torch.tensor([0] * 5 + [2] * 20 + [0] * 4 + [1] * 11 + [3] * 9 + [0] * 3)
    starts, ends = spans(labels)
    middle = torch.arange(len(labels)) + 0.5
    sure = 8 * torch.nn.functional.one_hot(labels, 4).float()
    found = decode(torch.cat([sure, (middle - starts)[:, None], (ends - middle)[:, None]], 1))
    known = true_segments(labels)
    order = found.bounds[:3, 0].argsort()
    torch.testing.assert_close(found.bounds[:3][order], known.bounds, atol=1e-4, rtol=0)
    assert found.classes[:3][order].tolist() == known.classes.tolist()
    assert found.scores[2] > 0.9
    assert found.scores[3:].max() < 0.2, "the same segment again, from other frames"


@pytest.mark.parametrize("frames", [1, 3])
def test_a_detector_that_sees_nothing(frames):
    outputs = torch.zeros(frames, 5)
    outputs[:, 0] = 20.0
    assert len(decode(outputs).scores) == 0
