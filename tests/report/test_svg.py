"""The shapes: where they are drawn, and that words can't break out of the markup."""

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulltilt.report import svg
from fulltilt.report.markup import Markup, join, tag, text
from fulltilt.report.series import runs
from fulltilt.report.style import DARK, HEAT_DARK, HEAT_LIGHT, LIGHT, SERIES_COLOURS
from fulltilt.report.svg import PERCENT, Scale, heat_map, line, moment, ticks, time_ticks


@given(st.text())
def test_any_text_comes_back_as_text(words):
    element = ElementTree.fromstring(tag("p", words, title=words))
    assert not list(element)
    assert (element.text or "").count("<") == words.count("<")
    tag("p", words).encode("utf-8")


def test_markup_is_not_escaped_twice_and_none_is_left_out():
    assert tag("p", Markup("<b>x</b>"), "<", None, class_="a", id_=None) == '<p class="a"><b>x</b>&lt;</p>'
    assert join("a", "b", separator="&") == "a&amp;b"
    assert text("\x00\ud800") == "\ufffd\ufffd"


def test_a_scale_keeps_values_inside():
    scale = Scale(low=20, high=120)
    assert [scale(value) for value in (20, 70, 120, 900, -5)] == [0, 0.5, 1, 1, 0]
    assert (scale.x(70), scale.y(20), scale.y(120), scale.percent(45)) == ("500", "100", "0", "25%")
    assert Scale(low=1, high=1)(1) == 0.5


def test_ticks_are_round():
    assert ticks(PERCENT) == [0, 25, 50, 75, 100]
    assert ticks(Scale(low=0, high=140.4)) == [0, 50, 100]
    assert ticks(Scale(low=0, high=700)) == [0, 200, 400, 600]


@given(st.floats(-1e6, 1e6), st.floats(0.01, 1e7))
def test_ticks_are_few_and_inside(low, span):
    scale = Scale(low=low, high=low + span)
    for found, most, slack in ((ticks(scale), 7, 1e-6), (time_ticks(scale), 10, 0.0101)):
        assert len(found) <= most
        assert all(scale.low - span * slack <= mark <= scale.high + span * slack for mark in found)


def test_a_time_axis_that_starts_a_little_late_still_shows_zero():
    assert time_ticks(Scale(low=0.02, high=299.9)) == [0, 60, 120, 180, 240, 300]


@pytest.mark.parametrize(
    ("seconds", "span", "written"),
    [(40, 60, "40 s"), (2.5, 4, "2.5 s"), (150, 300, "2:30"), (3900, 9000, "1:05:00")],
)
def test_moments_are_written_for_their_axis(seconds, span, written):
    assert moment(seconds, span=span) == written


def test_a_gap_is_a_new_stroke_and_a_lone_point_a_dot():
    time = Scale(low=0, high=10)
    shape = line(runs([0, 1, 2, 9, 10], [0, 50, None, 100, None]), time, PERCENT, class_="blue")
    assert re.findall(r'class="([^"]*)" d="([^"]*)"', shape) == [
        ("line blue", "M0 100 100 50"),
        ("line dot blue", "M900 0h0"),
    ]


def test_a_band_only_where_points_stand_for_slices():
    time = Scale(low=0, high=2999)
    many = runs([float(t) for t in range(3000)], [float(t % 100) for t in range(3000)])
    assert svg.band(runs([0, 1], [1, 2]), time, PERCENT, class_="blue") is None
    assert svg.band(many, time, PERCENT, class_="blue").count("M") == 1


def test_the_heat_map_joins_equal_neighbours_and_leaves_holes():
    picture = ElementTree.fromstring(heat_map([[0, 5, 95, None], [100, 100, 100, 130]], label="cores"))
    paths = {path.get("class"): path.get("d") for path in picture}
    assert paths == {"heat h0": "M0 0.5h2", "heat h9": "M2 0.5h1M0 1.5h4"}
    assert picture.get("viewBox") == "0 0 4 2"
    assert picture.get("aria-label") == "cores"


def luminance(colour):
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_the_palette_is_readable(theme):
    for ground in ("paper", "card", "hole"):
        for words in ("ink", "soft", "good", "warn", "bad", "quiet"):
            assert contrast(theme[words], theme[ground]) >= 4.5, (words, ground)
        for stroke in SERIES_COLOURS:
            assert contrast(theme[stroke], theme[ground]) >= 3, (stroke, ground)


@pytest.mark.parametrize(("heat", "theme"), [(HEAT_LIGHT, LIGHT), (HEAT_DARK, DARK)], ids=["light", "dark"])
def test_more_heat_is_more_contrast(heat, theme):
    assert len(heat) == svg.HEAT_LEVELS
    steps = [contrast(colour, theme["card"]) for colour in heat]
    assert steps == sorted(steps)
    assert steps[-1] > 7
