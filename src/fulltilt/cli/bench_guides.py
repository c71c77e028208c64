"""`fulltilt bench guides`, `scaling` and `simulate`: whole trainings, their curves, and many GPUs from one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fulltilt.errors import InputError


def guides(
    *,
    only: Annotated[
        str, typer.Option(help="Workloads to run; the others stay in the --json file.")
    ] = "segmentation,classification,forecast,video",
    small: Annotated[bool, typer.Option("--small", help="The sizes that two CPU cores can train.")] = False,
    seconds: Annotated[
        float | None, typer.Option(help="For all contestants of a workload.", show_default="120, small 240")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
    chart_file: Annotated[Path | None, typer.Option("--chart", help="Draw them against their limits (SVG).")] = None,
) -> None:
    """The guides' workloads before and after, and with Lightning and Accelerate, each in a process of its own."""
    import json
    from dataclasses import replace

    from fulltilt.machine.files import check_writable, write_whole

    if seconds is not None and not 10 <= seconds <= 3600:
        raise InputError(f"--seconds: expected 10 to 3600, found {seconds:g}")
    for file, option in ((json_file, "--json"), (chart_file, "--chart")):
        if file is not None:
            check_writable(file, option=option)

    from fulltilt.bench.ground import joined
    from fulltilt.bench.guides.chart import chart
    from fulltilt.bench.guides.claims import WORKLOADS
    from fulltilt.bench.guides.figures import GuidesBench
    from fulltilt.bench.guides.run import FEW, FULL, measure, parts_of
    from fulltilt.bench.guides.table import show
    from fulltilt.cli.bench import _say

    def keep(found: GuidesBench) -> None:
        result = joined(json_file, found.to_json(), by="workload", order=WORKLOADS)
        if json_file is not None:
            write_whole(json_file, json.dumps(result, indent=2, ensure_ascii=False) + "\n")
        if chart_file is not None and (drawn := chart(result)) is not None:
            write_whole(chart_file, drawn)

    scale = FEW if small else FULL
    if seconds is not None:
        scale = replace(scale, workload_seconds=seconds)
    show(measure(only=parts_of(only), small=small, scale=scale, say=_say, keep=keep))
