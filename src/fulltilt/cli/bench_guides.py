"""`fulltilt bench guides`, `scaling` and `simulate`: whole trainings, their curves, and many GPUs from one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fulltilt.cli.bench_outputs import JsonFile, Outputs
from fulltilt.cli.saying import say
from fulltilt.errors import InputError

_OF_THE_REPOSITORY = Path("benchmarks/results/h200/feed.json")
"""What was measured on an H200; an installed package does not have it."""


def guides(
    *,
    only: Annotated[
        str,
        typer.Option(
            help="Workloads to run, or one contestant: segmentation/after; the others stay in the --json file."
        ),
    ] = "segmentation,classification,forecast,video",
    small: Annotated[bool, typer.Option("--small", help="Small sizes, which two CPU cores can train.")] = False,
    max_seconds: Annotated[
        float | None, typer.Option(help="Most for all contestants of a workload.", show_default="700, small 240")
    ] = None,
    json_file: JsonFile = None,
    chart_file: Annotated[Path | None, typer.Option("--chart", help="Draw them against their limits (SVG).")] = None,
) -> None:
    """The guides' workloads before and after, and with Lightning and Accelerate, each in a process of its own."""
    from dataclasses import replace

    if max_seconds is not None and not 10 <= max_seconds <= 3600:
        raise InputError(f"--max-seconds: expected 10 to 3600, found {max_seconds:g}")
    outputs = Outputs(json_file, chart_file)

    from fulltilt.bench.guides.chart import chart
    from fulltilt.bench.guides.claims import WORKLOADS
    from fulltilt.bench.guides.figures import GuidesBench
    from fulltilt.bench.guides.run import FEW, FULL, measure, parts_of
    from fulltilt.bench.guides.table import show
    from fulltilt.bench.results import earlier_in

    def keep(found: GuidesBench) -> None:
        outputs.join(found.to_json(), by="workload", order=WORKLOADS, chart=chart)

    scale = FEW if small else FULL
    if max_seconds is not None:
        scale = replace(scale, workload_seconds=max_seconds)
    show(measure(only=parts_of(only), small=small, scale=scale, say=say, keep=keep, earlier=earlier_in(json_file)))


def scaling(
    *,
    only: Annotated[
        str, typer.Option(help="Parts to run; the others stay as they are in the --json file.")
    ] = "cores,batch,size",
    folder: Annotated[
        Path | None, typer.Option(help="Where to put the photos meanwhile; by default in memory.")
    ] = None,
    json_file: JsonFile = None,
    chart_file: Annotated[Path | None, typer.Option("--chart", help="Draw the curves (SVG).")] = None,
) -> None:
    """Training throughput against cores, batch size and image size, beside the limit."""
    outputs = Outputs(json_file, chart_file)

    from fulltilt.bench.results import parts_of
    from fulltilt.bench.scaling.figures import PARTS, ScalingBench, chart
    from fulltilt.bench.scaling.run import measure_scaling
    from fulltilt.bench.scaling.table import show

    def keep(found: ScalingBench) -> None:
        outputs.join(found.to_json(), by="part", order=PARTS, chart=chart)

    show(measure_scaling(only=parts_of(only, PARTS), folder=folder, say=say, keep=keep))


def simulate(
    *,
    result_file: Annotated[
        Path, typer.Option("--feed", help="A result of `fulltilt bench feed`: the rates that were measured.")
    ] = _OF_THE_REPOSITORY,
    gpus_per_machine: Annotated[int, typer.Option(help="GPUs in a machine.")] = 8,
    cores: Annotated[int, typer.Option(help="Cores in a machine.")] = 96,
    network: Annotated[float, typer.Option(help="Between machines, in Gbit/s.")] = 400.0,
    disk: Annotated[float, typer.Option(help="Disks of a machine, in GB/s.")] = 12.0,
    storage: Annotated[
        float | None, typer.Option(help="One storage for all machines, in GB/s, in place of their own disks.")
    ] = None,
) -> None:
    """1 to 64 GPUs from the rates of one: what saturates first. Arithmetic, with its assumptions; nothing is run."""
    import json
    from dataclasses import replace

    from rich.console import Console

    from fulltilt.bench.simulate.model import Fleet
    from fulltilt.bench.simulate.table import show

    for name, value in (("--cores", cores), ("--gpus-per-machine", gpus_per_machine)):
        if value < 1:
            raise InputError(f"{name}: expected 1 or more, found {value}")
    for name, given in (("--network", network), ("--disk", disk), ("--storage", storage)):
        if given is not None and given <= 0:
            raise InputError(f"{name}: expected more than 0, found {given:g}")
    if result_file == _OF_THE_REPOSITORY and not result_file.exists():
        raise InputError(
            f"--feed: there is no {result_file} here; that is the H200's result, which comes with the repository. Run "
            "this in a clone of it, or measure this machine with `fulltilt bench feed --json feed.json` and give that"
        )
    try:
        result = json.loads(result_file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"--feed: {result_file} can't be read ({error}); `fulltilt bench feed` makes one") from error
    fleet = replace(
        Fleet(), gpus_per_machine=gpus_per_machine, cores_per_machine=cores, network_bytes_per_second=network * 1e9 / 8,
        disk_bytes_per_second=disk * 1e9, storage_bytes_per_second=None if storage is None else storage * 1e9,
    )  # fmt: skip
    try:
        show(result, fleet, Console())
    except InputError as error:  # says nothing yet of which file it is
        raise InputError(f"--feed: {result_file}: {error}") from error
