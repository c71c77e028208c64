"""What the five guides claim, beside what was measured here: docs/guides.md's table.

    benchmarks' JSON ─► figures by name ─► sentences with these names in braces

What was not measured is said in words; a claim is never left out for that, unless a whole result is missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from withheld import read

from fulltilt.bench.tables import markdown
from fulltilt.words import amount

_LEAST_MS = 0.01
_ABSENT = "not measured"
COLUMNS = ("guide", "it claims", "here, on one H200 with 16 cores")
CLAIMS = (
    ("000", "1.2–1.8× faster, GPU +15–25 %", "segmentation {segmentation_times}, GPU {segmentation_gpu}"),
    ("000", "20–35 % of the work on the CPU", "not measured: how much there is depends on the loop; metrics counted "
     "beside the step keep {assist_beside} of its speed"),
    ("001", "65 ± 15 → 92 ± 5 % utilisation, 45 → 62 it/s", "classification {classification_times}, "
     "GPU {classification_gpu}"),
    ("001", "loading 120 → 25 ms a batch", "waits for a batch: {classification_waits}"),
    ("002", "35 → 3 ms a batch for augmentation (A100, batch 32)", "{augment_cpu} with 4, 8 and 16 workers that "
     "augment on the CPU → {augment_task}"),
    ("002", "180 → 150 s an epoch, 65 → 92 % utilisation", "segmentation, as above"),
    ("003", "3–6× overall, 20–30 → 80–95 % utilisation", "forecast {forecast_times}, GPU {forecast_gpu}"),
    ("003", "AMP 1.5–2×, larger batch 2–4×, TF32 1.2–1.5×, DataLoader 1.1–1.3×, compile +10–30 %",
     "not measured one by one; all of them together, above"),
    ("003", "memory −50 %", "not compared: the data set itself is kept on the GPU and takes memory there"),
    ("004", "one GPU: 1.3–1.5×, 30–40 → 70–80 % utilisation", "video {video_times}, GPU {video_gpu}"),
    ("004", "two GPUs: 1.8–1.9×, 50 → 90 %", "not measured: there was one GPU; [computed](scaling.md) from its rates"),
)  # fmt: skip


def claims(results: Path) -> str:
    """The table; nothing where a result is missing."""
    files = {name: results / "h200" / f"{name}.json" for name in ("guides", "augment", "assist")}
    if not all(file.exists() for file in files.values()):
        return ""
    known = defaultdict[str, str](lambda: _ABSENT)
    for name, figures in (("guides", _guides), ("augment", _augment), ("assist", _assist)):
        known |= figures(read(results, f"h200/{name}.json"))
    rows = [(guide, claim, found.format_map(known)) for guide, claim, found in CLAIMS]
    named = ", ".join(f"[{file.name}](../benchmarks/results/h200/{file.name})" for file in files.values())
    return f"{markdown(COLUMNS, rows)}\n\nFrom {named}, by `python scripts/tables.py`.\n"


def _guides(result: Mapping[str, Any]) -> dict[str, str]:
    cases = {(case["workload"], case["key"]): case for case in result["cases"]}
    found = {}
    for name in result["workloads"]:
        before, after = cases.get((name, "before"), {}), cases.get((name, "after"), {})
        found[f"{name}_times"] = f"{amount(after['speed_up'])}×" if "speed_up" in after else _ABSENT
        found[f"{name}_gpu"] = f"{_utilisation(before)} → {_utilisation(after)}"
        found[f"{name}_waits"] = f"{_wait_ms(before)} → {_wait_ms(after)}"
    return found


def _utilisation(case: Mapping[str, Any]) -> str:
    return f"{case['gpu_util']:.0f} ± {case['gpu_util_std']:.0f} %" if "gpu_util" in case else _ABSENT


def _wait_ms(case: Mapping[str, Any]) -> str:
    """For each batch."""
    if "wait_share" not in case:
        return _ABSENT
    waited = 1e3 * case["wait_share"] * case["batch_size"] / case["samples_per_second"]
    return f"{waited:.2g} ms" if waited >= _LEAST_MS else f"less than {_LEAST_MS} ms"


def _augment(result: Mapping[str, Any]) -> dict[str, str]:
    peers = {peer["name"]: peer["wall_ms"] for peer in result["peers"] if "wall_ms" in peer}
    found = {f"augment_{case['key']}": f"{case['wall_ms']:.3f} ms" for case in result["cases"] if "wall_ms" in case}
    cpu = [peers.get(f"CPU, {count} workers") for count in (4, 8, 16)]
    return found | {"augment_cpu": ", ".join(_ABSENT if ms is None else f"{ms:.0f}" for ms in cpu) + " ms"}


def _assist(result: Mapping[str, Any]) -> dict[str, str]:
    return {f"assist_{case['key']}": f"{100 * case['share']:.1f} %" for case in result["cases"] if "share" in case}
