"""Segment mAP against a second implementation, written for clearness alone."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fulltilt.assist.beside import MetricsBeside
from fulltilt.errors import InputError
from fulltilt.recipes.video.metric import SegmentMap, average_precision
from fulltilt.recipes.video.segments import Segments, spans

Video = tuple[list[tuple[int, float, float, float]], list[tuple[int, float, float]]]
"""Detections (class, start, end, score) and actions (class, start, end)."""


def slow_map(videos: list[Video], classes: int, thresholds: list[float]) -> float:
    """All detections of a class over all videos, one after another in falling order of score; no tensors."""
    found = []
    for kind in range(classes):
        actions = [(v, s, e) for v, (_, known) in enumerate(videos) for k, s, e in known if k == kind]
        if not actions:
            continue
        detections = [(p, v, s, e) for v, (made, _) in enumerate(videos) for k, s, e, p in made if k == kind]
        detections.sort(key=lambda detection: -detection[0])
        for threshold in thresholds:
            taken: set[int] = set()
            curve = []
            for count, (_, video, start, end) in enumerate(detections, start=1):
                best, of = 0.0, None
                for number, (home, s, e) in enumerate(actions):
                    if home == video and number not in taken:
                        shared = max(0.0, min(end, e) - max(start, s))
                        overlap = shared / (end - start + e - s - shared)
                        if overlap > best:
                            best, of = overlap, number
                if of is not None and best >= threshold:
                    taken.add(of)
                curve.append((len(taken) / len(actions), len(taken) / count))
            area, recall = 0.0, 0.0
            for at, (reached, _) in enumerate(curve):
                if reached > recall:
                    area += (reached - recall) * max(precision for _, precision in curve[at:])
                    recall = reached
            found.append(area)
    return math.fsum(found) / len(found) if found else 0.0


def made_up(seed: int, count: int) -> list[Video]:
    """Actions, and detections that are these moved about, misjudged, or out of the blue; no two scores are equal."""
    draw = random.Random(seed)
    videos: list[Video] = []
    for _ in range(count):
        known = [(draw.randrange(3), at, at + draw.uniform(4, 20)) for at in range(0, 120, 30) if draw.random() < 0.8]
        made = [
            (
                k if draw.random() < 0.8 else draw.randrange(3),
                s + draw.uniform(-4, 4),
                e + draw.uniform(-1, 6),
                draw.random(),
            )
            for k, s, e in known * draw.randrange(3)
        ]
        made += [(draw.randrange(3), s, s + draw.uniform(1, 30), draw.random()) for s in range(draw.randrange(4))]
        videos.append((made, known))
    return videos


def noted(metric: SegmentMap, videos: list[Video]) -> SegmentMap:
    for made, known in videos:
        rows, truth = torch.tensor(made, dtype=torch.float64).view(-1, 4), torch.tensor(known).view(-1, 3)
        metric.note(
            Segments(rows[:, 1:3], rows[:, 0].long(), rows[:, 3]),
            Segments(truth[:, 1:].double(), truth[:, 0].long(), torch.ones(len(truth))),
        )
    metric._update_count = 1  # as `update` would have noted
    return metric


@given(st.integers(0, 10_000), st.integers(1, 6))
def test_it_is_what_the_slow_one_says(seed, count):
    videos, thresholds = made_up(seed, count), [0.3, 0.4, 0.5, 0.6, 0.7]
    expected = slow_map(videos, 3, thresholds)
    assert float(noted(SegmentMap(3, thresholds), videos).compute()) == pytest.approx(expected, abs=1e-6)


def test_made_up_videos_are_neither_all_right_nor_all_wrong():
    values = [slow_map(made_up(seed, 5), 3, [0.5]) for seed in range(30)]
    assert min(values) < 0.3
    assert max(values) > 0.6


def test_precision_is_the_highest_at_this_recall_or_a_greater_one():
    right = torch.tensor([0.0, 1.0, 1.0, 0.0])
    assert float(average_precision(right, 4)) == pytest.approx((2 / 3 + 2 / 3) / 4)
    assert float(average_precision(torch.zeros(0), 4)) == 0


def test_ranks_have_only_to_join_their_rows():
    videos = made_up(11, 6)
    one, other = noted(SegmentMap(3), videos[:2]), noted(SegmentMap(3), videos[2:])
    whole = noted(SegmentMap(3), videos)
    one.rows, one.actions = [torch.cat([*one.rows, *other.rows])], one.actions + other.actions
    assert float(one.compute()) == float(whole.compute())


def judged(labels: torch.Tensor, classes: int) -> torch.Tensor:
    """Outputs of a detector that is right."""
    starts, ends = spans(labels)
    middle = torch.arange(labels.shape[-1]) + 0.5
    sure = 9 * torch.nn.functional.one_hot(labels, classes + 1).float()
    return torch.cat([sure, (middle - starts)[..., None], (ends - middle)[..., None]], -1)


def test_beside_the_step_as_alone():
    """Through the loop's own threads, in batches of different sizes."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (7, 6), generator=draw).repeat_interleave(9, 1)
    outputs = judged(labels, 3)
    assert float(SegmentMap(3)(outputs, labels)) > 0.999
    outputs += 4 * torch.randn(outputs.shape, generator=draw)
    outputs[..., -2:].clamp_(min=0)
    alone = SegmentMap(3, 0.5)
    beside = MetricsBeside({"map50": SegmentMap(3, 0.5)}, torch.device("cpu"), prefix="val_")
    for part in (slice(0, 4), slice(4, 6), slice(6, 7)):
        alone.update(outputs[part], labels[part])
        beside.add(outputs[part], labels[part])
    assert beside.compute() == {"val_map50": float(alone.compute())}
    assert 0.1 < float(alone.compute()) < 0.99
    beside.close()


def test_nothing_to_find():
    metric = SegmentMap(2)
    metric.update(judged(torch.zeros(1, 9, dtype=torch.int64), 2), torch.zeros(1, 9, dtype=torch.int64))
    assert float(metric.compute()) == 0


def test_what_is_wrong_is_named():
    with pytest.raises(InputError, match="up to 1"):
        SegmentMap(3, [0.5, 1.5])
    with pytest.raises(ValueError, match="expected \\(1, 9, 6\\)"):
        SegmentMap(3).update(torch.zeros(1, 9, 5), torch.zeros(1, 9, dtype=torch.int64))
