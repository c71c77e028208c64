"""The one concept of a target: met or not, in words, as JSON, as lines; and every committed result has its shape."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fulltilt.bench.target import Target, in_json, target_lines

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
SHARE = Target(figure="share", wanted=0.97, percent=True, unit=" of the limit")
TIME = Target(figure="gpu_ms", wanted=0.08, at_most=True, what="GPU ms")


@pytest.mark.parametrize(
    ("target", "found", "met"),
    [
        (SHARE, 0.97, True),
        (SHARE, 0.9699, False),
        (SHARE, None, None),
        (TIME, 0.08, True),
        (TIME, 0.0801, False),
        (TIME, None, None),
        (Target(figure="speed_up", wanted=None), 3.0, None),
    ],
)
def test_it_is_met_at_its_bound_and_what_is_not_measured_is_neither(
    target: Target, found: float | None, met: bool | None
) -> None:
    assert target.given(found).met is met


def test_in_words() -> None:
    assert str(SHARE) == "≥ 97 % of the limit"
    assert str(TIME) == "GPU ms ≤ 0.08"
    assert str(Target(figure="frames_per_second", wanted=3000.0, unit=" frames/s")) == "≥ 3,000 frames/s"
    assert str(Target(figure="speed_up", wanted=62 / 45, unit="×")) == "≥ 1.38×"
    assert [TIME.say(value) for value in (999.7, 999.4, 1.23)] == ["1,000", "999", "1.23"]
    assert str(Target(figure="speed_up", wanted=None, what="against before")) == "against before"


def test_as_json_the_bound_says_which_way_it_goes() -> None:
    share = {"figure": "share", "words": "≥ 97 % of the limit", "at_least": 0.97, "found": 0.5, "met": False}
    assert in_json([SHARE.given(0.5)]) == [share]
    time = {"figure": "gpu_ms", "words": "GPU ms ≤ 0.08", "at_most": 0.08, "found": None, "met": None}
    assert in_json([TIME]) == [time]
    assert in_json([]) is None


def test_as_lines_with_how_many_were_met() -> None:
    assert target_lines([("feed", SHARE.given(0.96549)), ("ours", TIME.given(0.06)), ("list", TIME)]) == [
        "missed: feed: ≥ 97 % of the limit, found 96.55 % of the limit",
        "met: ours: GPU ms ≤ 0.08, found 0.06",
        "not measured: list: GPU ms ≤ 0.08",
        "1 of 3 targets met",
    ]
    assert target_lines([]) == []


def targets_in(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield from value.get("targets") or ()
        for inner in value.values():
            yield from targets_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from targets_in(inner)


@pytest.mark.parametrize("file", sorted(RESULTS.rglob("*.json")), ids=lambda file: file.stem)
def test_committed_results_have_targets_of_this_shape_alone(file: Path) -> None:
    text = file.read_text()
    for target in targets_in(json.loads(text)):
        assert {"figure", "words"} <= set(target) <= {"figure", "words", "at_least", "at_most", "found", "met"}
        bounds = [name for name in ("at_least", "at_most") if name in target]
        assert len(bounds) <= 1
        if bounds and "found" in target:
            wanted = Target(figure="", wanted=target[bounds[0]], found=target["found"], at_most=bounds == ["at_most"])
            assert target["met"] is wanted.met
    for older in ('"target"', '"holds"', '"allowed"', '"wanted"', '"target_percent"'):
        assert older not in text
