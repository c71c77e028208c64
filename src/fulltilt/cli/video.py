"""`fulltilt video`: what videos are, and how fast their frames come."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fulltilt.cli.cache_view import decoding, say_plan, show_build
from fulltilt.cli.saying import say
from fulltilt.errors import InputError

if TYPE_CHECKING:
    from fulltilt.decode.video.survey import Survey

_NAME, _WIDE = 48, 200
"""Characters of a file's name in a line, and of a table."""

video = typer.Typer(help="Inspect videos for training, and cache them.", no_args_is_help=True)


@video.callback()
def _video() -> None:
    """Inspect videos for training, and cache them."""


@video.command()
def info(
    files: Annotated[list[Path], typer.Argument(help="Video files.")],
    *,
    seconds: Annotated[float, typer.Option(help="How long each is decoded, in order and at random.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Codec, size, rate, key frames, decoding rates of one thread and of the GPU here, and advice.

    Exits with 1 when one of several is no video, or one is damaged.
    """
    import json
    from dataclasses import asdict

    from rich.console import Console
    from rich.progress import track

    from fulltilt.decode.video.survey import survey
    from fulltilt.machine.gpus import read_gpus

    if not 0.05 <= seconds <= 60:
        raise InputError(f"--seconds: expected 0.05 to 60, found {seconds:g}")
    found: list[Survey] = []
    problems: dict[str, str] = {}
    console = Console(stderr=True)
    device = "cuda:0" if read_gpus().gpus and _torch_sees_it() else None
    for path in track(files, "decoding", console=console, transient=True, disable=as_json or not console.is_terminal):
        try:
            found.append(survey(path, seconds=seconds, device=device))
        except InputError as error:
            if len(files) == 1:
                raise
            problems[str(path)] = str(error)
    if as_json:
        print(json.dumps({"videos": [asdict(one) for one in found], "problems": problems}, indent=2))
    else:
        _show(found, problems)
    if problems or any(one.damage is not None for one in found):
        raise typer.Exit(1)


@video.command()
def cache(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A folder of videos, or a CSV with a column path.")],
    folder: Annotated[Path, typer.Argument(metavar="CACHE", help="The cache's folder.")],
    *,
    size: Annotated[int, typer.Option(help="Shorter side of the frames that are kept, in pixels.")] = 224,
    workers: Annotated[int | None, typer.Option(help="Decoders.", show_default="usable cores")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Decode every frame into a cache for VideoClips(cache=…).

    Exits with 1 when some videos are left out. Interrupted in any way, the same command continues.
    """
    from fulltilt.cache.settings import CacheSettings
    from fulltilt.cache.video import build_videos
    from fulltilt.feed.clips.entries import paths_of

    if workers is not None and workers < 1:
        raise InputError(f"--workers: expected 1 or more, found {workers}")
    paths = paths_of(source)
    with decoding() as bar:
        report = build_videos(
            folder,
            paths,
            settings=CacheSettings(size=size),
            workers=workers,
            planned=partial(say_plan, noun="videos"),
            progress=lambda at: bar(at.done, at.total, at.bytes),
            waiting=say,
        )
    show_build(report, report.frames, frames=True, as_json=as_json)


def _torch_sees_it() -> bool:
    import torch

    return torch.cuda.is_available()


def _show(found: list[Survey], problems: dict[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if found:
        table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
        table.add_column("file", overflow="fold", max_width=_NAME)
        for name in ("codec", "size", "rate", "frames", "length", "key frames", "in order", "random clips", "NVDEC"):
            table.add_column(name, justify="right", no_wrap=True)
        for one in found:
            length = "–" if one.duration_seconds is None else f"{one.duration_seconds:.1f} s"
            table.add_row(
                Path(one.path).name,
                one.codec,
                f"{one.width}×{one.height}",
                "–" if one.rate is None else f"{one.rate:.3g}/s",
                f"{one.frames:,}",
                length,
                f"every {one.key_interval:.0f}",
                f"{one.frames_per_second:,.0f}/s",
                f"{one.clip_frames_per_second:,.0f}/s",
                "–" if one.nvdec_frames_per_second is None else f"{one.nvdec_frames_per_second:,.0f}/s",
            )
        needed = console.measure(table, options=console.options.update(max_width=_WIDE)).maximum
        # A narrow terminal breaks lines; to make the table fit, names would have to go.
        Console(width=max(needed, console.width)).print(table)
    for one in found:
        if one.damage is not None:
            console.print(one.damage, style="red", highlight=False, soft_wrap=True)
        if one.nvdec_problem is not None:
            console.print(f"NVDEC: {one.nvdec_problem}", style="dim", highlight=False, soft_wrap=True)
        if one.advice is not None:
            console.print(f"{Path(one.path).name}: {one.advice}", style="yellow", highlight=False, soft_wrap=True)
    for text in problems.values():
        console.print(text, style="red", highlight=False, soft_wrap=True)
