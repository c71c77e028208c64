"""From a benchmark's JSON to the rows of its table: one function for each."""

from __future__ import annotations

from typing import Any

from fulltilt.bench.commands import side_by_side
from fulltilt.bench.feed.figures import Figure, in_words
from fulltilt.bench.guides.claims import WORKLOADS
from fulltilt.bench.guides.figures import ANOTHER_RUN
from fulltilt.bench.scaling.figures import PARTS, SERIES, TITLES
from fulltilt.bench.scaling.figures import rows as curve_rows
from fulltilt.bench.tables import Row
from fulltilt.words import amount

_MUCH = 0.05


def wanted(one: dict[str, Any]) -> str:
    """The targets of a case, and whether one was missed."""
    targets = one.get("targets") or ()
    missed = any(target.get("met") is False for target in targets)
    return ", ".join(target["words"] for target in targets) + ", missed" * missed


QUALITY_COLUMNS = ("", "batch size", "steps", "metric with each seed")


def quality_rows(result: dict[str, Any], recipe: str | None = None) -> list[Row]:
    """Of one recipe, or of all with their names. What was not trained has no batches and no steps."""
    sides: dict[tuple[str, str, int | None], list[dict[str, Any]]] = {}
    for case in result["cases"]:
        longer = case.get("times_longer", 1)
        side = case["key"] if longer == 1 else f"{case['key']}, {longer} times as long"
        sides.setdefault((case["workload"], side, case.get("batch_size")), []).append(case)
    return [
        (
            side if recipe else f"{workload}: {side}",
            "" if size is None else str(size),
            "" if size is None else f"{cases[0]['steps']:,}",
            ", ".join(f"{case['metric']:.3f}" for case in cases),
        )
        for (workload, side, size), cases in sides.items()
        if recipe in (None, workload)
    ]


def monitor_rows(result: dict[str, Any]) -> list[Row]:
    costs: list[Row] = [
        (
            f"CPU of the monitor, a sample every {cost['interval_seconds']:g} s"
            + (", live view" if cost["live_view"] else ", no view"),
            f"{cost['core_percent']:.2f} % of one core",
            wanted(cost),
        )
        for cost in result["costs"]
    ]
    loads = {"idle": "an idle card", "fed": "one bf16 matrix product after another"}
    readings: list[Row] = [
        (f"SM activity read from {loads[one['load']]}", f"{one['sm']:.1f} %", wanted(one)) for one in result["readings"]
    ]
    return costs + readings


def augment_rows(result: dict[str, Any]) -> list[Row]:
    def ms(one: dict[str, Any], figure: str) -> str:
        return f"{one[figure]:.3f} ms" if figure in one else ""

    ours: list[Row] = [
        (
            f"fulltilt, {case['title']}",
            ms(case, "gpu_ms"),
            ms(case, "wall_ms"),
            "",
            wanted(case),
        )
        for case in result["cases"]
    ]
    others: list[Row] = [
        (
            peer["name"] + ("" if peer["masks"] or "images only" in peer["name"] else " (no masks)"),
            ms(peer, "gpu_ms"),
            ms(peer, "wall_ms"),
            f"{amount(peer['speedup'])}×",
            "",
        )
        for peer in result["peers"]
        if "speedup" in peer
    ]
    failed: list[Row] = [(peer["name"], "", "", peer["problem"], "") for peer in result["peers"] if "problem" in peer]
    return ours + others + failed


def feed_rows(result: dict[str, Any]) -> list[Row]:
    rows: list[Row] = []
    for case in result["cases"]:
        if case["part"] == "grid" and "targets" not in case:
            continue  # of a grid's many settings, only what is compared with the best of them
        if "samples_per_second" not in case:
            rows.append((case["title"], "", case.get("problem", ""), ""))
            continue
        figures: tuple[Figure, ...] = ("share", "times_loader", "of_best", "of_own", "of_alone")
        against = ", ".join([in_words(name, case[name]) for name in figures if name in case] + _same_step(case, result))
        rows.append((case["title"], f"{case['samples_per_second']:,.0f}/s", against, wanted(case)))
    return rows


def _same_step(case: dict[str, Any], result: dict[str, Any]) -> list[str]:
    """Of windows on the device as a CUDA graph: against the loader that feeds the same step."""
    loader = next((one for one in result["cases"] if one["key"] == "windows_loader_graphed"), {})
    if case["key"] != "windows_feed_graphed" or "samples_per_second" not in loader:
        return []
    return [f"{case['samples_per_second'] / loader['samples_per_second']:.2f}× the DataLoader with the same step"]


def train_rows(result: dict[str, Any]) -> list[Row]:
    titles = {(case["workload"], case["key"]): case["title"] for case in result["cases"]}
    rows: list[Row] = []
    for case in result["cases"]:
        title = f"{result['workloads'][case['workload']]}: {case['title']}"
        if "samples_per_second" not in case:
            rows.append((title, "", case.get("problem", ""), ""))
            continue
        against = titles.get((case["workload"], case.get("against")), "the fastest by hand")
        share = case.get("share")
        rows.append(
            (
                title,
                f"{case['samples_per_second']:,.0f}/s" + _spread(case),
                "" if share is None else f"{_share(share)} of {against}",
                wanted(case),
            )
        )
    return rows


def _spread(case: dict[str, Any]) -> str:
    """How far apart the rounds were, where that is much."""
    return f" (rounds {100 * case['spread']:.0f} % apart)" if case.get("spread", 0.0) >= _MUCH else ""


def _share(value: float) -> str:
    return f"{value:.3g} times" if value >= 2 else f"{100 * value:.3g} %"


GUIDE_COLUMNS = ("", "samples", "against before", "of the limit", "GPU utilisation", "waits", "GPU memory", "metric")


def guides_rows(result: dict[str, Any]) -> list[Row]:
    """Contestants by workload, and under them what the guide claims and what was wanted."""
    rows: list[Row] = []
    for name in sorted(result["workloads"], key=WORKLOADS.index):
        about, cases = result["workloads"][name], [case for case in result["cases"] if case["workload"] == name]
        titled = [(f"{name}: {case['title']}{ANOTHER_RUN if 'another_run' in case else ''}", case) for case in cases]
        rows += [_contestant(title, case) for title, case in titled if "samples_per_second" in case]
        rows += [(title, case["problem"], *[""] * 6) for title, case in titled if "problem" in case]
        if claim := about.get("claim"):
            rows.append((f"*{name}: guide {claim['guides']} claims*", "", claim["speed"], "", claim["utilisation"],
                         "", "", ""))  # fmt: skip
        targets = [target for case in cases for target in case.get("targets", ())]
        if targets:
            met = sum(target.get("met") is True for target in targets)
            said = [f"{met} of {len(targets)} targets met"]
            for word, outcome in (("missed", False), ("not measured", None)):
                said += [f"{word}: {target['words']}" for target in targets if target.get("met") is outcome]
            rows.append((f"*{name}: {'; '.join(said)}*", *[""] * 7))
    return rows


def _contestant(title: str, case: dict[str, Any]) -> Row:
    def shown(key: str, form: str, scale: float = 1.0) -> str:
        return form.format(scale * case[key]) if key in case else ""

    spread = shown("gpu_util_std", " ± {:.0f}")
    return (
        f"**{title}**" if case["key"] == "after" else title,
        f"{amount(case['samples_per_second'])}/s",
        shown("speed_up", "{:.2f}×"),
        shown("share", "{:.1f} %", 100),
        shown("gpu_util", "{:.0f}") + (f"{spread} %" if spread else ""),
        shown("wait_share", "{:.0f} %", 100),
        shown("peak_memory_bytes", "{:.1f} GiB", 2**-30),
        shown("metric", "{:.3f}"),
    )


def scaling_rows(result: dict[str, Any]) -> list[Row]:
    """All series have a column, whether a part has them or not."""
    rows: list[Row] = []
    for part in PARTS:
        cases = [case for case in result["cases"] if case["part"] == part]
        there = [name for name in SERIES if any(case["series"] == name for case in cases)]
        for x, *rates in curve_rows(result, part):
            by_series = dict(zip(there, rates, strict=True))
            rows.append((f"{TITLES[part].lower()} {x}", *(by_series.get(name, "") for name in SERIES)))
    return rows


def scaling_workloads(result: dict[str, Any]) -> str:
    """What each curve is of."""
    return "; ".join(f"{TITLES[part].lower()}: {result['workloads'][part]}" for part in PARTS) + "."


def video_rows(result: dict[str, Any]) -> list[Row]:
    rows: list[Row] = []
    for case in result["cases"]:
        unit = next((unit for unit in ("frames", "clips") if f"{unit}_per_second" in case), None)
        if unit is None:
            rows.append((case["title"], "", case.get("problem", ""), ""))
            continue
        against = f"{case['times']:.2f}×" if "times" in case else ""
        loaders = [value for key, value in case.items() if key.startswith("times_loader")]
        against += f", {min(loaders):.2f}× the fastest DataLoader" if loaders else ""
        rows.append((case["title"], f"{case[f'{unit}_per_second']:,.0f} {unit}/s", against, wanted(case)))
    return rows


def assist_rows(result: dict[str, Any]) -> list[Row]:
    rows: list[Row] = [
        (
            f"{result['workload']}: {case['title']}",
            f"{case['samples_per_second']:,.0f}/s" if "samples_per_second" in case else "",
            f"{100 * case['share']:.1f} %" if "share" in case else "",
            wanted(case),
        )
        for case in result.get("cases", ())
    ]
    if tasks := result.get("tasks"):
        theirs = f"concurrent.futures {tasks['concurrent_futures_tasks_per_second']:,}/s"
        rows.append(("trivial tasks through the queue", f"{tasks['tasks_per_second']:,}/s", theirs, ""))
    if balance := result.get("balance"):
        rows += _balance_rows(balance)
    return rows


def _balance_rows(balance: dict[str, Any]) -> list[Row]:
    before, taken, back, targets = (balance[name] for name in ("before", "taken", "back", "targets"))
    best = max(balance["fixed"].values())

    def row(phase: dict[str, Any], what: str, base: float | None = None, of: str = "", figure: str = "") -> Row:
        title = f"ResNet-50 from image files, {phase['cores']} cores{what}: {100 * phase['gpu_share']:.0f} % by the GPU"
        rate = phase["samples_per_second"]
        against = "" if base is None else f"{100 * rate / base:.1f} % of {of}"
        return title, f"{rate:,.0f}/s", against, wanted({"targets": [t for t in targets if t["figure"] == figure]})

    return [
        row(before, ""),
        row(taken, " when half are taken away", best, "the best fixed share", "taken"),
        row(back, " when they are back", before["samples_per_second"], "before", "back"),
    ]


def observe_rows(result: dict[str, Any]) -> list[Row]:
    return [
        (
            f"steps of {cost['asked_ms']:g} ms",
            f"{cost['added_ms']:.3f} ms, {100 * cost['share']:.2f} %",
            wanted(cost),
        )
        for cost in result["costs"]
    ]


def scripts_rows(result: dict[str, Any]) -> list[Row]:
    def rate(one: dict[str, Any], key: str) -> str:
        return "" if one.get(key) is None else f"{one[key]:,.0f}/s"

    return [
        (
            one["script"], rate(one, "before"), rate(one, "after"), rate(one, "limit"),
            f"{one['after'] / one['before']:.2f}×", wanted(one), one.get("remaining") or "",
        )
        for one in result["cases"]
    ]  # fmt: skip


COMMAND_COLUMNS = (
    "", "time in a known phase", "before", "after", "limit", "after / before", "faster side by side",
    "found in at most", "what held it up", "what is left",
)  # fmt: skip


def commands_rows(result: dict[str, Any]) -> list[Row]:
    def rate(one: dict[str, Any], key: str) -> str:
        return "" if one[key] is None else f"{one[key]:,.0f}/s"

    return [
        (
            f"{one['name']}: `{one['command']}`",
            "" if one["attributed"] is None else f"{100 * one['attributed']:.1f} %",
            rate(one, "before"), rate(one, "after"), rate(one, "limit"),
            "" if one["times"] is None else f"{one['times']:.2f}×",
            "" if (beside := side_by_side(one)) is None else f"{beside:.2f}×",
            f"{one['max_seconds']:.0f} s",
            one["problem"] or one["verdict"], one["remaining"] or "",
        )
        for one in result["cases"]
    ]  # fmt: skip


def predictions_rows(result: dict[str, Any]) -> list[Row]:
    def gain(one: dict[str, Any], key: str) -> str:
        return "" if one[key] is None else f"{100 * one[key]:+,.0f} %"

    return [
        (
            f"`{one['script']}`",
            one["cause"] or "",
            gain(one, "predicted"),
            gain(one, "measured"),
            "" if one["points"] is None else _points(one["points"]),
            wanted(one),
        )
        for one in result["cases"]
    ]


def _points(apart: float) -> str:
    shown = f"{apart:.0f}"
    return f"{shown} point{'s' * (shown != '1')}"
