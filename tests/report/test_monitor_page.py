"""The monitor's page as a document: what it says, and that nothing breaks out of it."""

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from fulltilt.machine.sample import CpuSample, GpuSample, ProcessSample, Sample
from fulltilt.monitor.summary import summarize
from fulltilt.monitor.verdict import THRESHOLDS
from fulltilt.report import monitor_page

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</title></script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\x00\ud800"


class Outline(HTMLParser):
    """The elements as a browser would nest them; an unbalanced tag is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.open, self.seen, self.words = [], [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.append((tag, dict(attrs)))

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open[-1:]):
            self.words.append(data)


def read(page):
    """Parsed both ways: as HTML, where every element must be closed by its own end, and as XML."""
    outline = Outline()
    outline.feed(page)
    outline.close()
    assert outline.open == []
    tree = ElementTree.fromstring(page)
    assert [element.tag.removeprefix(SVG) for element in tree.iter()] == [
        {"viewbox": "viewBox"}.get(tag, tag) for tag, _ in outline.seen
    ]
    return tree, " ".join(" ".join(outline.words).replace("\u00a0", " ").split())


def by_class(tree, name):
    return [element for element in tree.iter() if name in (element.get("class") or "").split()]


def lines(tree, colour):
    return [path.get("d") for path in by_class(tree, "line") if colour in path.get("class").split()]


def test_the_page_says_what_the_summary_says(record):
    samples = record("bursty")
    summary = summarize(samples)
    (gpu,) = summary.gpus
    _, words = read(monitor_page(samples, summary, title="bursty.jsonl"))
    assert gpu.verdict.name == "bursty"
    for part in (
        "bursty.jsonl",
        "NVIDIA H200",
        "301 samples, one every 1 s",
        "5 min 0 s",
        f"{gpu.util.mean:.1f} ± {gpu.util.std:.1f} %",
        f"p5 to p95 {gpu.util.p5:.0f} – {gpu.util.p95:.0f} %",
        f"Time below 10 % {100 * gpu.util.below_10:.1f} %",
        f"Cycle {gpu.cycle_seconds:.1f} s",
        f"SM activity {gpu.sm.mean:.1f} ± {gpu.sm.std:.1f} %",
        "Peak memory 40.0 of 140 GiB",
        f"Peak temperature {gpu.temp_peak:.0f} °C",
        f"Mean power {gpu.power_mean_w:.0f} of 700 W",
        f"Tensor cores {gpu.tensor.mean:.1f} %",
        f"DRAM {gpu.dram.mean:.1f} %",
        f"Occupancy {gpu.occupancy.mean:.1f} %",
        f"Rule: {gpu.verdict.rule}",
        gpu.verdict.evidence[1:],
        f"All cores {summary.cpu.util.mean:.1f} ± {summary.cpu.util.std:.1f} %",
        f"Busiest core {summary.cpu.busiest.mean:.1f} %",
        f"iowait {summary.cpu.iowait.mean:.1f} %",
        "only says that some kernel ran",
        gpu.next_step.partition("  (")[0],
    ):
        assert part in words, part


@pytest.mark.parametrize(
    ("shape", "verdict"), [("idle", "idle"), ("starved", "starved"), ("bursty", "bursty"), ("fed", "healthy")]
)
def test_every_verdict_has_its_headline(record, draw_page, shape, verdict):
    tree, _ = read(draw_page(record(shape, seconds=60)))
    (word,) = by_class(tree, "word")
    assert "".join(word.itertext()) == verdict


def test_flags_are_explained_with_their_evidence(record):
    samples = record("starved", seconds=120)
    summary = summarize(samples)
    flags = summary.gpus[0].flags
    assert [flag.name for flag in flags] == ["cpu-bound"]
    _, words = read(monitor_page(samples, summary, title="x"))
    assert f"cpu-bound {flags[0].evidence}" in words
    assert "loading runs in a single process" in words


def test_hostile_names_stay_words():
    hostile = [
        Sample(t=t, gpus=(GpuSample(index=0, name=HOSTILE, util=50, lost=HOSTILE),), cpu=CpuSample(util=5))
        for t in range(5)
    ]
    hostile = [replace(item, process=ProcessSample(pid=7, name=HOSTILE, cpu=100)) for item in hostile]
    page = monitor_page(hostile, summarize(hostile), title=HOSTILE)
    page.encode("utf-8")
    tree, words = read(page)
    assert len(list(tree.iter("script"))) == 1
    assert list(tree.iter("img")) == []
    assert words.count("<script>alert(1)</script><img src=x onerror=alert(2)>\"'&\ufffd\ufffd") == 6
    assert "\x00" not in page


def test_the_page_names_no_place_to_load_from(record, draw_page):
    tree, _ = read(draw_page(record("fed", "idle", seconds=20)))
    for element in tree.iter():
        assert element.tag.removeprefix(SVG) not in {"link", "img", "image", "iframe", "object", "use", "video"}
        assert not {"src", "srcset", "onload", "onerror"} & set(element.keys())
        assert (element.get("href") or "#").startswith("#")
    for style in tree.iter("style"):
        assert "url(" not in style.text
        assert "@import" not in style.text
    (policy,) = [meta for meta in tree.iter("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert policy.get("content").startswith("default-src 'none'")


def test_gaps_are_gaps_in_the_line(record, draw_page):
    samples = [sample for sample in record("fed", seconds=60) if not 20 < sample.t < 40]
    tree, words = read(draw_page(samples))
    util = lines(tree, "blue")[0]
    assert util.count("M") == 2
    assert all(float(y) < 10 for y in re.findall(r"[\d.]+ ([\d.]+)", util))  # all near 100 %: none fell to zero
    assert by_class(tree, "hole")
    assert "no reading" in words


def test_a_lost_gpu_ends_its_line_and_says_so(record, lose, draw_page):
    tree, words = read(draw_page(lose(record("fed", "fed", seconds=100), index=1, after=50)))
    assert "lost This GPU could not be read any more at 50" in words
    ends = {}
    for part in tree.iter("section"):
        if (part.get("id") or "").startswith("gpu-"):
            ends[part.get("id")] = float(re.findall(r"([\d.]+) [\d.]+$", lines(part, "blue")[0])[0])
    assert ends == {"gpu-0": 1000, "gpu-1": pytest.approx(490, abs=10)}


def test_absent_figures_are_absent():
    samples = [Sample(t=t, gpus=(GpuSample(index=0, util=90 + t % 3),)) for t in range(30)]
    tree, words = read(monitor_page(samples, summarize(samples), title="bare"))
    for absent in ("Peak memory", "Peak temperature", "Mean power", "Tensor", "All cores", "Cycle", "nan"):
        assert absent not in words, absent
    assert not re.search(r"\bNone\b(?!: this GPU)", words)
    assert "This recording has no SM activity" in words
    assert len(by_class(tree, "plot")) == 1


def test_a_gpu_whose_utilisation_was_never_read_has_no_verdict():
    samples = [Sample(t=t, gpus=(GpuSample(index=0, name="old", temp=40),)) for t in range(30)]
    _, words = read(monitor_page(samples, summarize(samples), title="x"))
    assert "no verdict" in words
    assert summarize(samples).gpus[0].why[1:] in words
    assert "Peak temperature 40 °C" in words


@pytest.mark.parametrize("shapes", [(), ("fed",), ("fed", "bursty", "starved", "idle", "fed", "idle", "fed", "bursty")])
@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_few_samples_and_any_number_of_gpus_make_a_page(record, draw_page, shapes, count):
    tree, words = read(draw_page(record(*shapes, seconds=10)[:count]))
    assert ("No samples" in words) == (count == 0)
    assert ("No GPU" in words) == (count > 0 and not shapes)
    assert ("All GPUs" in words) == (count > 0 and len(shapes) > 1)
    assert len(by_class(tree, "verdict")) == (len(shapes) if count else 0)
    assert ("too few for charts" in words) == (count == 1)
    assert bool(by_class(tree, "plot")) == (count > 1)
    assert "nan" not in words


def test_slices_of_a_gpu_are_told_apart(draw_page):
    samples = [
        Sample(t=t, gpus=tuple(GpuSample(index=0, slice=part, util=20.0 + 70 * part) for part in (0, 1)))
        for t in range(20)
    ]
    tree, words = read(draw_page(samples))
    assert "GPU 0:0" in words
    assert "GPU 0:1" in words
    assert {"gpu-0-0", "gpu-0-1"} <= {element.get("id") for element in tree.iter()}
    targets = {element.get("href") for element in tree.iter("a")}
    assert targets == {"#gpu-0-0", "#gpu-0-1"}


def test_the_thresholds_are_drawn_where_the_table_puts_them(record, draw_page):
    tree, _ = read(draw_page(record("bursty", seconds=60)))
    drawn = {path.get("d") for path in by_class(tree, "guide")}
    for name in ("idle", "starved", "underused"):
        assert f"M0 {100 - THRESHOLDS[name].value:g}H1000" in drawn


def test_a_long_recording_stays_small_and_keeps_its_spike(record):
    samples = record("idle", seconds=20_000, cores=8)
    samples[14_000] = replace(samples[14_000], gpus=(replace(samples[14_000].gpus[0], util=100.0, sm=77.0),))
    page = monitor_page(samples, summarize(samples), title="long")
    assert len(page.encode()) < 500_000
    tree, words = read(page)
    (plot,) = [plot for plot in by_class(tree, "plot") if "Utilisation" in plot[0].get("aria-label")]
    util, sm = (path.get("d") for path in by_class(plot, "band"))
    assert [float(x) for x, y in re.findall(r"([\d.]+) ([\d.]+)", util) if y == "0"] == [pytest.approx(700, abs=2)]
    assert [float(x) for x, y in re.findall(r"([\d.]+) ([\d.]+)", sm) if y == "23"] == [pytest.approx(700, abs=2)]
    assert "the shade reaches from the lowest reading to the highest" in words
    assert "20,001 samples" in words


def test_eight_gpus_for_a_day_stay_below_two_megabytes(record, draw_page):
    day = record(*["bursty", "starved"] * 4, seconds=86_400, interval=40, cores=128)
    page = draw_page(day)
    assert len(page.encode()) < 2_000_000
    tree, _ = read(page)
    for path in by_class(tree, "line"):
        assert len(re.findall(r"[\d.]+ [\d.]+", path.get("d"))) <= 500


def test_every_picture_has_words_for_those_who_cannot_see_it(record, draw_page):
    tree, _ = read(draw_page(record("fed", "idle", seconds=30)))
    for picture in tree.iter(f"{SVG}svg"):
        if picture.get("aria-hidden") != "true":
            assert picture.get("role") == "img"
            assert len(picture.get("aria-label")) > 10
    assert tree.get("lang") == "en"


def test_coordinates_are_numbers(record, lose, draw_page):
    samples = lose(record("bursty", "idle", seconds=40), index=0, after=20)
    samples[3] = replace(samples[3], cpu=CpuSample(util=math.nan, cores=(math.nan, math.inf, 50.0)))
    tree, _ = read(draw_page(samples))
    paths = list(tree.iter(f"{SVG}path"))
    assert paths
    for path in paths:
        assert re.fullmatch(r"[MLHVAhvz\d. ]*", path.get("d")), path.get("d")[:200]


def test_fewer_samples_than_were_counted(record):
    samples = record("fed", seconds=100)
    _, words = read(monitor_page(samples[::4], summarize(samples), title="thinned"))
    assert "101 samples, one every 0.99 s" in words


def test_clocks_held_down_are_told_with_the_power(draw_page):
    samples = [
        Sample(t=t, gpus=(GpuSample(index=0, util=99, power_w=690, power_limit_w=700, throttle=("power cap",)),))
        for t in range(20)
    ]
    _, words = read(draw_page(samples))
    assert "Clocks were held down at times: power cap." in words


def test_many_cores_for_a_long_time_stay_small():
    samples = [
        Sample(t=t, cpu=CpuSample(util=50, cores=tuple((7 * t + c) % 100 for c in range(256)))) for t in range(999)
    ]
    page = monitor_page(samples, summarize(samples), title="256 cores")
    assert len(page.encode()) < 700_000
    tree, words = read(page)
    (heat,) = by_class(tree, "heat-map")
    width, height = map(int, heat[0].get("viewBox").split()[2:])
    assert (width * height <= 40_000, height) == (True, 256)
    assert "Each cell is the mean of" in words
