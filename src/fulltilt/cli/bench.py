"""`fulltilt bench`: every figure that we print, measured here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fulltilt.cli.bench_commands import commands
from fulltilt.cli.bench_guides import guides, scaling, simulate
from fulltilt.cli.bench_outputs import JsonFile, Outputs
from fulltilt.cli.bench_predictions import predictions
from fulltilt.cli.run import LevelName
from fulltilt.cli.saying import say
from fulltilt.errors import InputError

_PHOTO_BYTES = 100_000
"""A photograph and its mask, at most."""

bench = typer.Typer(help="Measure what fulltilt costs and gains on this machine.", no_args_is_help=True)
for command in (guides, scaling, simulate, predictions, commands):
    bench.command()(command)


@bench.callback()
def _tidy(context: typer.Context) -> None:
    from fulltilt.launch.ending import ended_tidily

    context.with_resource(ended_tidily())


@bench.command()
def monitor(
    *,
    seconds: Annotated[float, typer.Option(help="How long each of the six parts is measured.")] = 20.0,
    json_file: JsonFile = None,
) -> None:
    """The monitor's cost on the CPU, and its figures under a known load on the GPU."""
    from fulltilt.bench.monitor import measure, show

    if not 1 <= seconds <= 3600:
        raise InputError(f"--seconds: expected 1 to 3600, found {seconds:g}")
    outputs = Outputs(json_file)
    found = measure(seconds=seconds, say=say)
    show(found)
    outputs.write(found.to_json())


@bench.command()
def augment(
    *,
    batch: Annotated[int, typer.Option(help="Images in a batch.")] = 32,
    size: Annotated[int, typer.Option(help="Height and width of an image.")] = 512,
    images_only: Annotated[bool, typer.Option("--images-only", help="No mask with each image.")] = False,
    quick: Annotated[bool, typer.Option(help="Only what has a target, and the quick peers.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Augmentation against Kornia, torchvision, triton-augment, plain torch and the CPU, whichever are there."""
    for option, value, limit in (("--batch", batch, 4096), ("--size", size, 4096)):
        if not 1 <= value <= limit:
            raise InputError(f"{option}: expected 1 to {limit}, found {value}")
    outputs = Outputs(json_file)

    from fulltilt.bench.augment.run import measure
    from fulltilt.bench.augment.table import show

    found = measure(batch=batch, size=size, masks=not images_only, quick=quick, say=say)
    show(found)
    outputs.write(found.to_json())
    if not found.right:  # a figure of something wrong is no figure
        raise typer.Exit(1)


@bench.command()
def feed(
    *,
    count: Annotated[int, typer.Option(help="Photos to make and feed.")] = 6144,
    folder: Annotated[Path | None, typer.Option(help="Where to put them meanwhile; by default in memory.")] = None,
    only: Annotated[
        str, typer.Option(help="Parts to run; the others stay as they are in the --json file.")
    ] = "ladder,train,cores,unet,windows,grid",
    quick: Annotated[bool, typer.Option(help="A smoke run: few steps, few peers.")] = False,
    json_file: JsonFile = None,
    chart_file: Annotated[Path | None, typer.Option("--chart", help="Draw training against its limit (SVG).")] = None,
) -> None:
    """The feed alone and under training, against the limit (batch on the device already) and DataLoaders."""
    if not 8 <= count <= 1_000_000:
        raise InputError(f"--count: expected 8 to 1000000, found {count}")
    outputs = Outputs(json_file, chart_file)

    from fulltilt.bench.feed.chart import chart
    from fulltilt.bench.feed.figures import FeedBench
    from fulltilt.bench.feed.run import PARTS, measure
    from fulltilt.bench.feed.table import show
    from fulltilt.bench.results import parts_of

    def keep(found: FeedBench) -> None:
        outputs.join(found.to_json(), by="part", order=PARTS, chart=chart)

    show(measure(count=count, folder=folder, quick=quick, only=parts_of(only, PARTS), say=say, keep=keep))


@bench.command()
def train(
    *,
    only: Annotated[
        str, typer.Option(help="Workloads to run; the others stay in the --json file.")
    ] = "resnet50,unet,windows",
    quick: Annotated[bool, typer.Option(help="A smoke run: few rounds, short ones.")] = False,
    json_file: JsonFile = None,
) -> None:
    """The training step with everything at "auto", and the whole Trainer, against steps optimised by hand."""
    outputs = Outputs(json_file)

    from fulltilt.bench.results import parts_of
    from fulltilt.bench.train.figures import TrainBench
    from fulltilt.bench.train.run import WORKLOADS, measure
    from fulltilt.bench.train.table import show

    def keep(found: TrainBench) -> None:
        outputs.join(found.to_json(), by="workload", order=WORKLOADS)

    show(measure(quick=quick, only=parts_of(only, WORKLOADS), say=say, keep=keep))


@bench.command()
def assist(
    *,
    only: Annotated[
        str, typer.Option(help="Parts to run; the others stay in the --json file. balance takes two minutes.")
    ] = "tasks,metrics",
    quick: Annotated[bool, typer.Option(help="A smoke run: few rounds, few tasks.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Metrics beside the step against none and against metrics in the loop; the task queue; cores taken away."""
    outputs = Outputs(json_file)

    from fulltilt.bench.assist.figures import PARTS, AssistBench
    from fulltilt.bench.assist.run import measure
    from fulltilt.bench.assist.table import show
    from fulltilt.bench.results import parts_of, with_parts

    def keep(found: AssistBench) -> None:
        outputs.write(with_parts(json_file, found.to_json(), PARTS))

    show(measure(quick=quick, only=parts_of(only, tuple(PARTS)), say=say, keep=keep))


@bench.command()
def scripts(
    *,
    folder: Annotated[
        Path | None, typer.Option(help="Keep the photographs here for next time; by default they are removed.")
    ] = None,
    script_folder: Annotated[Path, typer.Option("--scripts", help="Where the scripts are.")] = Path(
        "benchmarks/scripts"
    ),
    only: Annotated[
        str, typer.Option(help="Scripts to run; others stay as they are in the --json file.")
    ] = "resnet50_plain,unet_plain",
    count: Annotated[int, typer.Option(help="Photographs to make for each.")] = 2048,
    steps: Annotated[int, typer.Option(help="Steps of the full run.")] = 400,
    level: Annotated[LevelName, typer.Option(help="As in fulltilt run.")] = LevelName.NUMERIC,
    max_seconds: Annotated[float, typer.Option(help="As in fulltilt run.")] = 180.0,
    extra: Annotated[str, typer.Option(help="Arguments for the scripts, such as '--batch-size 16'.")] = "",
    json_file: JsonFile = None,
) -> None:
    """Ordinary training scripts by themselves and under fulltilt run."""
    import shlex
    from contextlib import nullcontext

    from fulltilt.bench.feed.material import workplace
    from fulltilt.bench.results import parts_of
    from fulltilt.bench.scripts import SCRIPTS, measure, show, to_json

    outputs = Outputs(json_file)
    names = parts_of(only, SCRIPTS)
    found = []
    needed = len(names) * count * _PHOTO_BYTES
    with workplace(None, needed_bytes=needed) if folder is None else nullcontext(folder) as place:
        for one in measure(
            place,
            scripts=script_folder,
            only=names,
            count=count,
            steps=steps,
            level=level.value,
            max_seconds=max_seconds,
            extra=shlex.split(extra),
            say=say,
        ):
            found.append(one)
            outputs.join(to_json(found), by="script", order=SCRIPTS)
    if folder is not None:
        say(f"the photographs stay in {folder}")
    show(found)


@bench.command()
def observe(
    *,
    quick: Annotated[bool, typer.Option(help="A smoke run: few and short blocks.")] = False,
    json_file: JsonFile = None,
) -> None:
    """What `fulltilt diagnose` costs a script while it watches: steps of 1, 10 and 100 ms with and without."""
    outputs = Outputs(json_file)

    from fulltilt.bench.observe import measure, show

    found = measure(quick=quick, say=say)
    show(found)
    outputs.write(found.to_json())


@bench.command()
def video(
    *,
    only: Annotated[
        str, typer.Option(help="Parts to run; the others stay as they are in the --json file.")
    ] = "cpu,light,nvdec,both,clips,train,long",
    folder: Annotated[Path | None, typer.Option(help="Where to put the videos meanwhile.")] = None,
    quick: Annotated[bool, typer.Option(help="A smoke run: a short time for each.")] = False,
    seconds: Annotated[
        float | None, typer.Option(help="For each measurement; the searches before it get a multiple of that.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Frames a second of the CPU, of NVDEC and of both; random clips against DataLoaders; training on clips."""
    outputs = Outputs(json_file)
    if folder is not None and not folder.is_dir():
        raise InputError(f"--folder: {folder} is not a folder")
    if seconds is not None and not 0.1 <= seconds <= 60:
        raise InputError(f"--seconds: expected 0.1 to 60, found {seconds:g}")

    from fulltilt.bench.results import parts_of
    from fulltilt.bench.video.figures import PARTS, VideoBench
    from fulltilt.bench.video.run import measure
    from fulltilt.bench.video.table import show

    def keep(found: VideoBench) -> None:
        outputs.join(found.to_json(), by="part", order=PARTS)

    show(measure(quick=quick, seconds=seconds, only=parts_of(only, PARTS), folder=folder, say=say, keep=keep))
