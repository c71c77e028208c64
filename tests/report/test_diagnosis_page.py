"""The diagnosis page as a document, and in a real browser where there is one."""

from __future__ import annotations

import colorsys
import os
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from fulltilt.diagnose import Diagnosis, Finding, Limits, LossCurves, Outcome, Trial
from fulltilt.measure.observation import Loader, Observation, Place, Stage, Step, Surroundings, Training
from fulltilt.report import diagnosis_page
from fulltilt.report.diagnosis_style import PHASES_DARK, PHASES_LIGHT, RATES_DARK, RATES_LIGHT
from fulltilt.report.phases import MOST_COLUMNS
from fulltilt.report.style import DARK, LIGHT

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None and os.environ.get("FULLTILT_REQUIRE_CHROMIUM") != "1",
    reason="Chromium is not installed (FULLTILT_REQUIRE_CHROMIUM=1 turns this into a failure)",
)
HOSTILE = "</title></script><script>document.title='owned'</script><img src=http://nowhere.invalid/x>\"'&\x00\ud800"


def steps(count, *, wait=0.04, **others):
    phases = {"data wait": wait, "forward": 0.01, "backward": 0.02, "optimizer": 0.001, **others}
    return tuple(
        Step(number=at, started=at * 0.07, seconds=sum(phases.values()), phases=phases, samples=32, loss=1.0 / (at + 1))
        for at in range(count)
    )


@pytest.fixture
def diagnosis():
    stages = (Stage(name="decode", seconds=0.002), Stage(name="read", seconds=0.001, cpu_seconds=0.0002))
    loader = Loader(
        role="train", place=Place(file="train.py", line=31), dataset="Photos", samples=1000, batch_size=32,
        num_workers=2, prefetch_factor=2, persistent_workers=False, pin_memory=False, batch_bytes=1, stages=stages,
    )  # fmt: skip
    training = Training(
        model="ResNet", parameters=25_000_000, dtype="float32", device="cuda:0", images=True, channels_last=False,
        compiled=False, autocast=None, tf32=False, cudnn_benchmark=False, optimizer="Adam", fused=False, foreach=True,
    )  # fmt: skip
    seen = Observation(
        command=("train.py", "--epochs", "3"),
        ended="stable",
        seconds=9.0,
        steps=steps(60),
        attributed=0.97,
        loaders=(loader,),
        training=training,
        surroundings=Surroundings(cores=16, gpu="NVIDIA H200", gpu_share=0.4),
        notes=("its log was kept apart",),
    )
    findings = (
        Finding(
            cause="too-few-workers",
            title="2 workers cannot load as fast",
            evidence=("56 % of each step is spent waiting",),
            gain=1.29,
            fix="DataLoader(…, num_workers=6)",
            place=Place(file="train.py", line=31),
            diff="--- train.py\n+++ train.py\n@@ -1 +1 @@\n-a = <1>\n+a = <2>",
        ),
        Finding(cause="precision", title="float32", evidence=(), gain=0.0, limit_gain=0.8, fix="bf16", about="step"),
        Finding(cause="throttled", title="Clocks are held down", evidence=(), gain=None, fix="cool it", about="step"),
    )
    return Diagnosis(
        observation=seen,
        limits=Limits(step=1032.0, loader=451.0),
        headroom=0.56,
        findings=findings,
        verdict="56 % headroom. 2 workers cannot load as fast.",
    )


class Outline(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.words = [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open[-1:]):
            self.words.append(data)


def words_of(page):
    """Parsed both ways; every element must be closed by its own end."""
    ElementTree.fromstring(page)
    outline = Outline()
    outline.feed(page)
    outline.close()
    assert outline.open == []
    return " ".join(" ".join(outline.words).replace("\u00a0", " ").split())


def test_rates_of_one_rank_are_called_so(diagnosis):
    assert "per rank" not in diagnosis_page(diagnosis)
    page = diagnosis_page(replace(diagnosis, observation=replace(diagnosis.observation, world=4)))
    assert re.search(r"[0-9] samples/s per rank", page)


def test_the_page_says_what_the_diagnosis_says(diagnosis):
    said = words_of(diagnosis_page(diagnosis))
    for part in (
        "train.py --epochs 3",
        "56 % headroom",
        "451 samples/s",
        "1,032 samples/s",
        "data wait 56 % 40 ms",
        "97 % of the time watched lies in a known phase",
        "2.3× predicted",
        "2 workers cannot load as fast train.py:31",
        "+80 % once it is fed",
        "? can't be predicted",
        "+a = <2>",
        "decode",
        "2 ms",
        "The part in orange was waited",
        "NVIDIA H200, 40 % busy",
        "its log was kept apart",
    ):
        assert part in said, part
    assert "What was tried" not in said
    assert "with the plan" not in said


def test_before_and_after_trials_and_losses(diagnosis):
    after = Outcome(
        samples_per_second=980.0,
        settings={},
        observation=replace(diagnosis.observation, steps=steps(20, wait=0.0005, logging=0.0005)),
        before=452.0,
        limit=1100.0,
        verified="Losses of 40 steps stay within the band.",
    )
    trials = [
        Trial(title="6 workers", settings={}, samples_per_second=900.0, kept=True, reason="pays", noise=0.01),
        Trial(title="compile", settings={}, samples_per_second=None, kept=False, reason="it failed"),
    ]
    losses = LossCurves(before=(2.0, float("nan"), 1.0), after=(2.0, 1.5, 1.125), band=(0.1,))
    said = words_of(diagnosis_page(diagnosis, trials=trials, after=after, losses=losses, written_by="fulltilt run"))
    for part in (
        "fulltilt run train.py",
        "2.17× with the plan",
        "limit with the plan",
        "32 ms",
        "6 workers 900 samples/s ± 1.0 % kept pays",
        "compile – not kept it failed",
        "Losses of 40 steps stay within the band.",
        "largest difference 0.125",
    ):
        assert part in said, part
    assert said.index("logging") < said.index("Step by step"), "its bar alone shows that phase"
    same = LossCurves(before=(2.0, 1.0), after=(2.0, 1.0))
    assert "equal to the last bit" in words_of(diagnosis_page(diagnosis, losses=same))


def test_a_diagnosis_with_nothing_in_it_has_a_page():
    seen = Observation(command=("x.py",), ended="script", seconds=1.0)
    empty = Diagnosis(
        observation=seen,
        limits=Limits(step=None, loader=None),
        headroom=None,
        findings=(),
        verdict="Nothing can be said.",
    )
    said = words_of(diagnosis_page(empty, losses=LossCurves(before=(), after=())))
    assert "limit not measured" in said
    assert "No loss could be read." in said


def test_a_recording_brings_the_monitors_charts(diagnosis, record):
    said = words_of(diagnosis_page(diagnosis, recording=record("starved", seconds=30)))
    assert "starved" in said
    assert "Utilisation" in said


def test_a_long_watch_stays_small(diagnosis):
    long = replace(diagnosis, observation=replace(diagnosis.observation, steps=steps(50_000)))
    page = diagnosis_page(long)
    assert len(page.encode()) < 400_000
    columns = re.search(r'data-steps="([^"]*)"', page).group(1).split(";")
    assert MOST_COLUMNS / 2 < len(columns) <= MOST_COLUMNS
    assert "Each column is the mean of about 125.0 steps." in words_of(page)


def test_the_columns_add_up_to_the_step(diagnosis):
    page = diagnosis_page(diagnosis)
    first = re.search(r'data-steps="([^;]*);', page).group(1).split(",")
    assert first[0] == "0"
    assert sum(map(float, first[1:])) == pytest.approx(71.0)


@pytest.mark.parametrize(
    ("colours", "ground"),
    [
        (PHASES_LIGHT, LIGHT["card"]),
        (PHASES_DARK, DARK["card"]),
        (RATES_LIGHT, LIGHT["hole"]),
        (RATES_DARK, DARK["hole"]),
    ],
)
def test_every_bar_stands_out_from_its_ground(colours, ground):
    def light(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    for name, colour in colours.items():
        low, high = sorted([light(colour), light(ground)])
        assert (high + 0.05) / (low + 0.05) >= 3, name


@pytest.mark.parametrize(("rates", "phases"), [(RATES_LIGHT, PHASES_LIGHT), (RATES_DARK, PHASES_DARK)])
def test_a_rate_has_no_phase_s_colour(rates, phases, diagnosis):
    def saturation(colour):
        return colorsys.rgb_to_hsv(*(int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)))[1]

    assert all(saturation(colour) < 0.25 for colour in rates.values())
    assert all(saturation(colour) > 0.3 for phase, colour in phases.items() if phase != "other")
    assert phases["other"] not in rates.values()
    bars = re.findall(r'class="bar ([^"]*)"', diagnosis_page(diagnosis))
    assert bars
    assert set(bars) <= set(rates)


def visit(folder, page, *, width=1280):
    """What the browser made of the page, and its complaints."""
    assert CHROMIUM is not None, "FULLTILT_REQUIRE_CHROMIUM=1, but Chromium is not installed"
    path = folder / "page.html"
    path.write_text(page, encoding="utf-8")
    command = [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
        *(f"--user-data-dir={folder / 'profile'}", f"--window-size={width},900", "--virtual-time-budget=2000"),
        *("--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--dump-dom", path.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, re.findall(r"CONSOLE[^\]]*\] (.*)", done.stderr)


def hostile(diagnosis):
    finding = replace(diagnosis.findings[0], title=HOSTILE, fix=HOSTILE, diff=HOSTILE, evidence=(HOSTILE,))
    seen = replace(diagnosis.observation, command=(HOSTILE,), notes=(HOSTILE,))
    return replace(diagnosis, observation=seen, findings=(finding,), verdict=HOSTILE)


def test_nothing_breaks_out(diagnosis):
    page = diagnosis_page(hostile(diagnosis))
    tree = ElementTree.fromstring(page)
    assert not list(tree.iter("img"))
    assert len(list(tree.iter("script"))) == 1


POINT = """
const plot = document.querySelector(".steps"), box = plot.getBoundingClientRect();
const at = (kind, part) => plot.dispatchEvent(
  new PointerEvent(kind, { clientX: box.left + box.width * part, clientY: box.top + 9 }));
at("pointermove", 0.5);
document.body.dataset.said = document.querySelector(".pointed").textContent;
document.body.dataset.lead = plot.closest("figure").querySelector(".lead").textContent;
at("pointerdown", 0.25); at("pointermove", 0.75); at("pointerup", 0.75);
document.body.dataset.box = plot.querySelector("svg").getAttribute("viewBox");
document.querySelector(".reset").click();
document.body.dataset.all = plot.querySelector("svg").getAttribute("viewBox");
document.body.dataset.columns = [...plot.querySelectorAll("path.column")].filter(p => p.getBBox().height > 1).length;
document.body.dataset.bars = [...document.querySelectorAll(".rates .bar")].filter(b => b.offsetWidth > 9).length;
"""


@needs_chromium
def test_the_browser_draws_it_points_and_zooms(tmp_path, diagnosis):
    page = diagnosis_page(diagnosis, losses=LossCurves(before=(2.0, 1.0), after=(2.0, 1.1)))
    dom, complaints = visit(tmp_path, page.replace("</body>", f"<script>{POINT}</script></body>"))
    assert complaints == []
    told = dict(re.findall(r'data-(said|lead|box|all|columns|bars)="([^"]*)"', dom))
    assert told["said"] == "data wait 40.0 · backward 20.0 · forward 10.0 · optimizer 1.00"
    assert told["lead"] == "step 30: 71.0 ms"
    left, _, width, _ = map(float, told["box"].split())
    assert left == pytest.approx(250, abs=1)
    assert width == pytest.approx(31 / 60 * 1000, abs=1)
    assert [float(part) for part in told["all"].split()] == pytest.approx([0, 0, 1000, 100])
    assert told["columns"] == "4"
    assert told["bars"] == "3"


@needs_chromium
def test_hostile_words_run_nothing(tmp_path, diagnosis):
    dom, complaints = visit(tmp_path, diagnosis_page(hostile(diagnosis)))
    assert complaints == []
    assert "<title>owned" not in dom


@needs_chromium
@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_sticks_out_sideways(tmp_path, diagnosis, width):
    from html import escape

    trials = [Trial(title="t" * 60, settings={}, samples_per_second=900.0, kept=True, reason="r " * 40)]
    seen = replace(diagnosis.observation, steps=steps(60, wait=0.0793))  # 110 ms in the mean
    page = diagnosis_page(replace(diagnosis, observation=seen, verdict="long " * 60), trials=trials)
    outer = (
        f'<!DOCTYPE html><body><iframe style="width:{width}px;border:0" srcdoc="{escape(page)}"></iframe><script>'
        "onload = () => { const root = document.querySelector('iframe').contentDocument.documentElement;"
        "const over = [...root.querySelectorAll('.average b, .rates b')].filter(b => b.scrollWidth > b.clientWidth);"
        "document.body.dataset.over = over.map(b => b.textContent).join();"
        "document.body.dataset.widths = [root.scrollWidth, root.clientWidth].join() }</script>"
    )
    dom, _ = visit(tmp_path, outer, width=1400)
    content, room = map(int, re.search(r'data-widths="(\d+),(\d+)"', dom).groups())
    assert content <= room
    assert 'data-over=""' in dom
