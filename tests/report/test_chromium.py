"""The page in a real browser: it runs without a complaint, asks the network for nothing, and answers the pointer."""

import json
import os
import re
import shutil
import subprocess
import sys
from html import escape
from pathlib import Path
from xml.etree import ElementTree

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

if CHROMIUM is None and os.environ.get("FULLTILT_REQUIRE_CHROMIUM") != "1":
    pytest.skip(
        "Chromium is not installed (FULLTILT_REQUIRE_CHROMIUM=1 turns this into a failure)", allow_module_level=True
    )


class Visit:
    """One page loaded from a file, with everything that the browser said about it."""

    def __init__(self, folder, page, *, width=1280, height=900):
        assert CHROMIUM is not None, "FULLTILT_REQUIRE_CHROMIUM=1, but Chromium is not installed"
        path, log = folder / "page.html", folder / "net.json"
        path.write_text(page, encoding="utf-8")
        command = [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *(f"--user-data-dir={folder / 'profile'}", f"--window-size={width},{height}", "--virtual-time-budget=2000"),
            "--host-resolver-rules=MAP * ~NOTFOUND",  # what the browser itself asks for goes nowhere
            *("--enable-logging=stderr", f"--log-net-log={log}", "--dump-dom", path.as_uri()),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        self.dom = done.stdout
        self.console = re.findall(r"CONSOLE[^\]]*\] (.*)", done.stderr)
        events = [event.get("params") for event in json.loads(log.read_text())["events"]]
        self.requests = {
            params["url"]
            for params in events
            if isinstance(params, dict) and params.get("initiator", "not an origin") != "not an origin"
        }


def with_script(page, code):
    """The page as somebody would see it who does what `code` does."""
    return page.replace("</body>", f"<script>{code}</script></body>")


def test_the_harness_sees_errors_and_requests(tmp_path):
    visit = Visit(
        tmp_path,
        "<!DOCTYPE html><script>console.error('boom'); nothing.here()</script>"
        "<img src='http://nowhere.invalid/x.png'><script>fetch('https://nowhere.invalid/y').catch(() => 0)</script>",
    )
    assert len(visit.console) == 2
    assert visit.requests == {"http://nowhere.invalid/x.png", "https://nowhere.invalid/y"}


@pytest.mark.parametrize("shapes", [(), ("bursty",), ("fed", "bursty", "starved", "idle")])
def test_no_complaint_and_no_request(tmp_path, record, draw_page, shapes):
    visit = Visit(tmp_path, draw_page(record(*shapes, seconds=60)))
    assert visit.console == []
    assert visit.requests == set()
    assert visit.dom.count('class="verdict"') == len(shapes)


def test_hostile_names_run_nothing(tmp_path, record, draw_page):
    attack = "</script><script>document.title='owned'</script><img src='http://nowhere.invalid/x' onerror='alert(1)'>"
    visit = Visit(tmp_path, draw_page(record("fed", seconds=20, name=attack), title=attack))
    assert visit.console == []
    assert visit.requests == set()
    assert "<title>owned" not in visit.dom


@pytest.mark.parametrize("width", [360, 420, 800, 1280])
def test_nothing_sticks_out_sideways(tmp_path, record, draw_page, width):
    page = draw_page(record("bursty", "starved", seconds=60), title="a-name-without-a-place-to-break-" * 6)
    # In a frame, because a window has a least width of its own.
    outer = (
        f'<!DOCTYPE html><body><iframe style="width:{width}px;border:0" srcdoc="{escape(page)}"></iframe><script>'
        "onload = () => { const root = document.querySelector('iframe').contentDocument.documentElement;"
        "document.body.dataset.widths = [root.scrollWidth, root.clientWidth].join() }</script>"
    )
    visit = Visit(tmp_path, outer, width=1400)
    content, room = map(int, re.search(r'data-widths="(\d+),(\d+)"', visit.dom).groups())
    assert content <= room
    assert width - 20 <= room <= width


# A browser without a screen may draw no frame before it is asked for the result: the script's frames come at once.
POINT = """
window.requestAnimationFrame = draw => { draw(); return 0; };
const plot = document.querySelector(".plot"), box = plot.getBoundingClientRect();
const at = { clientX: box.left + box.width * PART, clientY: box.top + 5 };
plot.dispatchEvent(new PointerEvent("pointermove", at));
"""


@pytest.mark.parametrize("samples", [301, 6001])
def test_pointing_shows_the_values_there(tmp_path, record, draw_page, samples):
    recorded = record("bursty", seconds=samples - 1)
    visit = Visit(tmp_path, with_script(draw_page(recorded), POINT.replace("PART", "0.5")))
    assert visit.console == []
    assert visit.dom.count('class="cursor"') == visit.dom.count('class="plot') > 5
    shown = re.search(r'data-colour="blue">([^<]*)</b>', visit.dom).group(1)
    middle = [sample.gpus[0] for sample in recorded[samples // 2 - 6 : samples // 2 + 7]]
    assert 'class="lead">at 2:30<' in visit.dom if samples == 301 else 'class="lead">at 50:00<' in visit.dom
    if samples == 301:
        assert shown == f"{middle[6].util} %"
        assert f">{middle[6].tensor:.1f} %<" in visit.dom
    else:  # a slice of 12 s holds one whole cycle: its mean, its lowest and its highest
        mean, low, high = map(int, re.fullmatch(r"(\d+) \((\d+)–(\d+)\) %", shown).groups())
        assert low <= 6
        assert high >= 93
        assert 40 < mean < 80


def test_leaving_brings_the_figures_back(tmp_path, record, draw_page):
    page = draw_page(record("bursty", seconds=60))
    leave = """
    document.body.dataset.pointed = document.querySelectorAll(".cursor").length;
    plot.dispatchEvent(new PointerEvent("pointerleave"));
    """
    visit = Visit(tmp_path, with_script(page, POINT.replace("PART", "0.3") + leave))
    assert 'data-pointed="7"' in visit.dom
    legend = re.compile(r'class="value"[^>]*>([^<]*)<')
    assert legend.findall(visit.dom) == legend.findall(page)
    assert 'class="cursor"' not in visit.dom


def test_the_heat_map_tells_the_core_pointed_at(tmp_path, record, draw_page):
    page = draw_page(record("starved", seconds=60))
    code = POINT.replace("PART", "0.5").replace('".plot"', '".heat-map"').replace("+ 5", "+ box.height * 3.5 / 16")
    visit = Visit(tmp_path, with_script(page, code))
    assert re.search(r"core 3: (80|90)–(90|100) %", visit.dom)


def test_the_page_reads_the_same_without_its_script(tmp_path, record, draw_page):
    page = draw_page(record("fed", seconds=30))
    bare = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert "<script" not in bare
    assert "".join(ElementTree.fromstring(bare).itertext()) in "".join(ElementTree.fromstring(page).itertext())
    assert Visit(tmp_path, bare).console == []


def test_the_pictures_for_the_readme_are_drawn(tmp_path, record):
    recording = tmp_path / "bursty.jsonl"
    recording.write_text("".join(json.dumps(sample.to_json()) + "\n" for sample in record("bursty")))
    script = Path(__file__).parents[2] / "scripts" / "pictures.py"
    command = [sys.executable, str(script), str(recording), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.count(" bytes") == 2
    terminal = ElementTree.fromstring((tmp_path / "monitor.svg").read_text())
    words = "".join(terminal.itertext())
    assert "NVIDIA H200" in words.replace("\u00a0", " ")
    assert "bursty" in words
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
