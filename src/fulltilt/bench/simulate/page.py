"""docs/scaling.md, the parts that are figures: measured, assumed, what comes out, and the model beside measurements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fulltilt.bench.curves import Curve, Panel, draw
from fulltilt.bench.simulate.model import Fleet, Workload, one_machine, simulate
from fulltilt.bench.simulate.rates import workloads
from fulltilt.bench.simulate.scenes import GPUS, scenes
from fulltilt.bench.tables import Row, markdown

_HELD = (("fast", 16, False), ("cores_8_cpu", 8, False), ("cores_8", 8, True), ("cores_4", 4, True))
"""Cases with their cores, and whether the GPU decodes a share."""


def page(result: Mapping[str, Any]) -> str:
    """The generated part of the page, as Markdown."""
    fleet = Fleet()
    works, sources = workloads(result)
    parts = [
        "### Measured, on one GPU",
        markdown(
            ("workload", "figure", "value", "cases in h200/feed.json"),
            [(s.workload, s.figure, s.value, ", ".join(f"`{key}`" for key in s.cases) or "–") for s in sources],
        ),
        "### Assumed, of every machine",
        markdown(("what", "value"), assumptions(fleet)),
        "### What comes out",
        "Rate as a share of the ideal, which is the number of GPUs × the limit of one, and what saturates first. The "
        "picture leaves out the U-Net:",
        markdown(("GPUs", *map(str, GPUS)), outcome_rows(works, fleet)),
        "### The model beside measurements",
        "The same arithmetic for one GPU with fewer cores, where it was measured, too:",
        markdown(("feed", "model", "measured", "measured / model"), held_against(result, works)),
    ]
    return "\n".join(f"{part}\n" for part in parts)


def assumptions(fleet: Fleet) -> list[Row]:
    return [
        ("GPUs in a machine", f"{fleet.gpus_per_machine}"),
        ("cores in a machine", f"{fleet.cores_per_machine}"),
        ("of them, for launching the steps' kernels", f"{fleet.launch_cores_per_gpu:g} for each GPU"),
        ("bus to each GPU", f"{fleet.bus_bytes_per_second / 1e9:g} GB/s"),
        ("disks of a machine, read anew each epoch", f"{fleet.disk_bytes_per_second / 1e9:g} GB/s")
        if fleet.storage_bytes_per_second is None
        else ("one storage for all machines", f"{fleet.storage_bytes_per_second / 1e9:g} GB/s"),
        (
            "between GPUs of a machine",
            f"{fleet.local_bytes_per_second / 1e9:g} GB/s, {1e6 * fleet.local_latency_seconds:g} µs a hop",
        ),
        (
            "between machines",
            f"{fleet.network_bytes_per_second * 8 / 1e9:g} Gbit/s, {1e6 * fleet.network_latency_seconds:g} µs a hop",
        ),
    ]


def outcome_rows(works: Mapping[str, Workload], fleet: Fleet) -> list[Row]:
    """A row for each scene, a column for each number of GPUs."""
    return [
        (
            scene.title,
            *(f"{100 * one.efficiency:.0f} %, {one.saturated}" for one in scene.outcomes(works)),
        )
        for scene in scenes(fleet)
    ]


def held_against(result: Mapping[str, Any], works: Mapping[str, Workload]) -> list[Row]:
    """Cases of the result that no figure of the model was taken from."""
    cases = {case["key"]: case for case in result["cases"]}
    rows: list[Row] = []
    for key, cores, shared in _HELD:
        measured = cases.get(key, {}).get("samples_per_second")
        if measured is None:
            continue
        expected = simulate(works["jpeg"], one_machine(cores=cores, gpu_decoding=shared), 1).samples_per_second
        way = "the GPU decodes a share" if shared else "cores alone"
        title = f"{cores} cores, {way} (`{key}`)"
        rows.append((title, f"{expected:,.0f}/s", f"{measured:,.0f}/s", f"{measured / expected:.2f}"))
    return rows


def chart(result: Mapping[str, Any]) -> str:
    """Share of the limit over the number of GPUs, a line for each scene."""
    works, _ = workloads(result)
    curves = tuple(
        Curve(
            label=scene.title,
            points=tuple((float(one.gpus), 100 * one.efficiency) for one in scene.outcomes(works)),
            dashed=at == 0,  # the ample fleet, which others lie on until something runs out
        )
        for at, scene in enumerate(scenes())
        if scene.drawn
    )
    panel = Panel(title="Share of ideal scaling, percent", x_label="GPUs", curves=curves, y_top=100.0)
    return draw("Simulated from rates measured on one H200", [panel], width=560)
