"""The README's pictures of the monitor, drawn from a recording, and of a script's page.

    python scripts/pictures.py tests/monitor/recordings/bursty.jsonl

writes docs/images/monitor.svg (the live view, as a terminal shows it) and docs/images/report.png (the HTML page, as
Chromium shows it);

    make demo && python scripts/pictures.py runs/demo/report.html

writes docs/images/diagnosis.png.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median

from terminal_svg import terminal_svg

from fulltilt.machine.sample import Sample
from fulltilt.monitor.frame import ViewState, draw
from fulltilt.monitor.recording import read_recording
from fulltilt.monitor.summary import summarize
from fulltilt.report import monitor_page

IMAGES = Path(__file__).parent.parent / "docs" / "images"
TERMINAL = (118, 40)
PAGE_WIDTH = 1200
MOST_BYTES = 300_000
MEASURE = """
const part = document.querySelector("section[id^=gpu]") || document.querySelectorAll("section")[1];
document.body.dataset.end = Math.ceil(part.getBoundingClientRect().bottom);
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a recording, or a page of fulltilt run or diagnose (.html)")
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder for the pictures (default: docs/images)")
    parser.add_argument("--until", type=float, help="the live view's moment, in seconds (default: the end)")
    parser.add_argument("--dark", action="store_true", help="the page as it looks at night")
    given = parser.parse_args()

    given.out.mkdir(parents=True, exist_ok=True)
    if given.source.suffix == ".html":
        report = given.out / "diagnosis.png"
        screenshot(given.source.read_text(encoding="utf-8"), report, dark=given.dark)
        pictures = [report]
    else:
        pictures = of_recording(given.source, given.out, until=given.until, dark=given.dark)
    for picture in pictures:
        size = picture.stat().st_size
        print(f"{picture}: {size:,} bytes")
        if size > MOST_BYTES:
            sys.exit(f"{picture} has {size:,} bytes; a README's picture has at most {MOST_BYTES:,}")


def of_recording(recording: Path, folder: Path, *, until: float | None, dark: bool) -> list[Path]:
    """The live view and the page."""
    samples = read_recording(recording).samples
    moment = samples[-1].t if until is None else until
    terminal, report = folder / "monitor.svg", folder / "report.png"
    terminal.write_text(live_view([sample for sample in samples if sample.t <= moment]), encoding="utf-8")
    screenshot(monitor_page(samples, summarize(samples), title=recording.name), report, dark=dark)
    return [terminal, report]


def live_view(samples: list[Sample]) -> str:
    """The terminal's picture after these samples, as SVG."""
    width, height = TERMINAL
    steps = [after.t - before.t for before, after in pairwise(samples)]
    state = ViewState(title=f"every {median(steps):.2g} s" if steps else "")
    for sample in samples:
        state.add(sample)
    return terminal_svg(draw(state, width, height), columns=width, title="fulltilt monitor")


def screenshot(page: str, target: Path, *, dark: bool) -> None:
    """The page as Chromium draws it, at twice the resolution: to the end of the first GPU, or of the second part."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        sys.exit("Chromium is not installed: the page can't be pictured; install chromium and run this again")
    with tempfile.TemporaryDirectory() as folder:
        path, taken = Path(folder) / "page.html", Path(folder) / "page.png"
        command = [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
            *(f"--user-data-dir={folder}/profile", "--host-resolver-rules=MAP * ~NOTFOUND"),
            *(["--blink-settings=preferredColorScheme=0"] if dark else []),
        ]

        def run(*more: str) -> str:
            return subprocess.run(
                [*command, *more, path.as_uri()], check=True, capture_output=True, text=True, timeout=120
            ).stdout

        path.write_text(page.replace("</body>", f"<script>{MEASURE}</script></body>"), encoding="utf-8")
        found = re.search(r'data-end="(\d+)"', run(f"--window-size={PAGE_WIDTH},1000", "--dump-dom"))
        height = int(found.group(1)) + 12 if found else 1000
        path.write_text(page, encoding="utf-8")
        run(f"--window-size={PAGE_WIDTH},{height}", "--force-device-scale-factor=2", f"--screenshot={taken}")
        shrink(taken, target)


def shrink(source: Path, target: Path) -> None:
    """A picture of few colours needs no more than 256 of them: a third of the bytes."""
    from PIL import Image

    with Image.open(source) as picture:
        few = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        few.save(target, optimize=True)


if __name__ == "__main__":
    main()
