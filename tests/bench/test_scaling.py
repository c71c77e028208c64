"""Curves: their arithmetic and picture from canned points, and a few points for real."""

from __future__ import annotations

import colorsys
import io
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import combinations
from xml.etree import ElementTree

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from fulltilt.bench.curves import Curve, Panel, draw
from fulltilt.bench.feed import loader
from fulltilt.bench.feed.measure import confined
from fulltilt.bench.results import parts_of
from fulltilt.bench.scaling import run
from fulltilt.bench.scaling.figures import PARTS, Point, ScalingBench, chart, panels, rows
from fulltilt.bench.scaling.table import show
from fulltilt.cli.bench import bench
from fulltilt.errors import InputError

SVG = "{http://www.w3.org/2000/svg}"


def canned():
    points = [
        Point(part="cores", series="limit", x=1, samples_per_second=6000.0),
        Point(part="cores", series="limit", x=16, samples_per_second=6000.0),
        Point(part="cores", series="feed", x=16, samples_per_second=5900.0, wait_share=0.01),
        Point(part="cores", series="feed", x=1, samples_per_second=600.0),
        Point(part="batch", series="limit", x=8, problem="OutOfMemoryError"),
    ]
    return ScalingBench(
        machine={"gpus": ["NVIDIA H200"], "cores": 16, "torchvision": None}, date="2026-11-15T12:00:00+00:00",
        workloads={"cores": "ResNet-50", "batch": "ResNet-50"}, cases=tuple(points), seconds=10.0,
    )  # fmt: skip


def test_rows_have_a_column_for_each_series_and_a_dash_for_what_is_absent():
    flat = canned().to_json()
    assert rows(flat, "cores") == [("1", "6,000", "600"), ("16", "6,000", "5,900")]
    assert rows(flat, "batch") == [("8", "–")]
    assert "null" not in json.dumps(flat)


def test_curves_are_in_order_of_x_and_without_what_failed():
    (panel,) = panels(canned().to_json())
    assert [(curve.dashed, curve.points) for curve in panel.curves] == [
        (True, ((1, 6000.0), (16, 6000.0))),
        (False, ((1, 600.0), (16, 5900.0))),
    ]
    assert chart({"cases": []}) is None
    words = [one.text for one in ElementTree.fromstring(chart(canned().to_json())).iter(f"{SVG}text")]
    assert {"Samples/s by cores", "6,000"} <= set(words)


def test_the_picture_is_to_scale():
    panel = Panel(
        title="t", x_label="x", y_top=100.0,
        curves=(Curve(label="a < b", points=((1.0, 0.0), (4.0, 100.0), (16.0, 50.0))),),
    )  # fmt: skip
    root = ElementTree.fromstring(draw("title", [panel, panel]))
    path = next(one for one in root.iter(f"{SVG}path") if one.get("class") == "curve c0")
    values = [float(value) for value in path.get("d").removeprefix("M").split()]
    xs, ys = values[::2], values[1::2]
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2)  # 1, 4, 16: as far apart
    assert ys[2] == pytest.approx((ys[0] + ys[1]) / 2, abs=0.2)  # half as high
    assert "a < b" in [one.text for one in root.iter(f"{SVG}text")]


def test_a_dashed_curve_is_drawn_over_what_it_lies_on():
    one, two = (Curve(label=name, points=((1.0, 1.0), (2.0, 1.0)), dashed=name == "limit") for name in ("limit", "b"))
    root = ElementTree.fromstring(draw("", [Panel(title="", x_label="", curves=(one, two))]))
    kinds = [path.get("class") for path in root.iter(f"{SVG}path") if "curve" in path.get("class")]
    assert kinds[:2] == ["curve c1", "curve c0 dashed"]
    assert kinds[2:] == ["curve c0 dashed", "curve c1"], "the legend keeps its order"


def test_seven_curves_have_colours_that_keep_apart():
    drawn = draw("", [Panel(title="", x_label="", curves=(Curve(label="", points=((1, 1),)),))])
    for theme in drawn.split("@media"):
        found = dict(re.findall(r"\.(c\d) \{ stroke: #(\w+)", theme))
        parts = [tuple(int(found[f"c{at}"][i : i + 2], 16) / 255 for i in (0, 2, 4)) for at in range(7)]
        hues = [hue for hue, _, saturation in (colorsys.rgb_to_hls(*rgb) for rgb in parts) if saturation > 0.2]
        assert len(hues) >= 6, "one may be gray"
        assert all(min((a - b) % 1, (b - a) % 1) > 0.06 for a, b in combinations(hues, 2))


def test_the_table_says_what_failed():
    shown = io.StringIO()
    show(canned(), Console(file=shown, width=110))
    assert "5,900" in shown.getvalue()
    assert "OutOfMemoryError" in shown.getvalue()


def test_points_are_measured_and_each_is_kept():
    scale = replace(run.ON_CPU, photos=16, cores=(1,), batches=(4,), sides=(16,), seconds=0.02)
    kept = []
    found = run.measure_scaling(only=("cores", "batch"), scale=scale, say=lambda _: None, keep=kept.append)
    assert [(point.part, point.series, point.x) for point in found.cases] == [
        ("cores", "limit", 1),
        ("cores", "feed", 1),
        ("batch", "limit", 4),
        ("batch", "feed", 4),
    ]
    assert all(point.problem is None and point.samples_per_second > 0 for point in found.cases)
    assert [len(one.cases) for one in kept] == [1, 2, 3, 4]


def test_a_point_that_fails_is_a_line(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("out of memory")

    curves = run._Curves(None, run.ON_CPU, cores=1, say=lambda _: None)
    assert curves._point("size", "feed", 16, fail) == Point(
        part="size", series="feed", x=16, problem="RuntimeError: out of memory"
    )


def test_a_part_that_can_not_begin_is_a_line_and_the_next_goes_on(monkeypatch):
    def fail(curves, *, compiled):
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(run._Curves, "_step", fail)
    scale = replace(run.ON_CPU, photos=16, cores=(1,), batches=(4,), sides=(16,), seconds=0.02)
    found = run.measure_scaling(only=("batch", "size"), scale=scale, say=lambda _: None)
    assert [(point.part, point.problem) for point in found.cases] == [
        ("batch", "RuntimeError: no kernel image"),
        ("size", "RuntimeError: no kernel image"),
    ]


def test_a_limit_that_could_not_be_taken_says_so_at_every_number_of_cores(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("out of memory")

    curves = run._Curves(None, replace(run.ON_CPU, cores=(1, 2)), cores=2, say=lambda _: None)
    monkeypatch.setattr(curves, "_feed", fail)
    assert [(point.x, point.problem) for point in curves.cores() if point.series == "limit"] == [
        (1, "RuntimeError: out of memory"),
        (2, "RuntimeError: out of memory"),
    ]


def test_unknown_parts_are_named():
    assert parts_of("size,cores", PARTS) == ("cores", "size")
    assert set(parts_of(",".join(PARTS), PARTS)) == set(PARTS)
    with pytest.raises(InputError, match="colour"):
        parts_of("colour", PARTS)
    assert isinstance(CliRunner().invoke(bench, ["scaling", "--only", "colour"]).exception, InputError)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core only")
def test_workers_have_the_cores_that_the_point_is_for(monkeypatch):
    """Whatever those were that the server which forks them was started with."""
    asked = []
    monkeypatch.setattr(loader, "DataLoader", lambda *_, **options: asked.append(options) or [])
    with confined(1), loader.loading([], batch=2, workers=1, device="cpu"):
        pass

    def begin():
        asked[0]["worker_init_fn"](0)
        return len(os.sched_getaffinity(0))

    with ThreadPoolExecutor(1) as worker:
        assert worker.submit(begin).result() == 1
    assert len(os.sched_getaffinity(0)) > 1


def test_with_fewer_cores_torch_has_fewer_threads():
    """On one core two threads wait for each other at every operation: a point took minutes."""
    threads, cores = torch.get_num_threads(), os.sched_getaffinity(0)
    torch.set_num_threads(2)
    try:
        with confined(1):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        assert os.sched_getaffinity(0) == cores
    finally:
        torch.set_num_threads(threads)
