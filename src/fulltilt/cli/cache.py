"""`fulltilt cache`: decoded pixels kept on disk, made, looked at, checked, taken away."""

from __future__ import annotations

import re
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fulltilt.cli.cache_view import decoding, list_of, print_json, say_plan, show_build
from fulltilt.cli.saying import say
from fulltilt.errors import InputError
from fulltilt.words import disk_size

if TYPE_CHECKING:
    from fulltilt.cache.verify import VerifyReport
    from fulltilt.feed.images.files import ImageFiles

cache = typer.Typer(help="Keep decoded images on disk, so that training reads pixels.", no_args_is_help=True)

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


class QualityName(StrEnum):
    EXACT = "exact"
    FAST = "fast"


Folder = Annotated[Path, typer.Argument(metavar="CACHE", help="The cache's folder.")]
Json = Annotated[bool, typer.Option("--json", help="As JSON on standard output.")]
Masks = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Masks of the same names as the images (1.png or 1_mask.png).")
]
Source = Annotated[Path, typer.Argument(metavar="SOURCE", help="A folder of images, or a CSV with a column path.")]


@cache.callback()
def _cache() -> None:
    pass


@cache.command()
def build(
    source: Source,
    folder: Folder,
    *,
    masks: Masks = None,
    size: Annotated[
        int | None, typer.Option(help="Shorter side in pixels; smaller images stay as they are.", show_default="whole")
    ] = None,
    quality: Annotated[QualityName, typer.Option(help="How JPEG is decoded.")] = QualityName.EXACT,
    channels: Annotated[int, typer.Option(help="1 (grey), 3 (RGB) or 4 (RGBA).")] = 3,
    workers: Annotated[int | None, typer.Option(help="Processes.", show_default="usable cores")] = None,
    budget: Annotated[str | None, typer.Option(help="Most that the cache may take: 500M, 80G, 1.5T.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how large it would be.")] = False,
    as_json: Json = False,
) -> None:
    """Decode every image into the cache.

    Exits with 1 when some are left out. Interrupted in any way, the same command continues.
    """
    from fulltilt.cache.build import build as make
    from fulltilt.cache.build import plan, unique
    from fulltilt.cache.predict import check_room
    from fulltilt.cache.settings import CacheSettings

    settings = CacheSettings(size=size, channels=channels, quality=quality.value)
    budget_bytes = None if budget is None else _bytes(budget)
    files = _files(source, masks)
    if dry_run:
        _, prediction = plan(folder, unique(files.paths, files.masks, settings), settings)
        say_plan(prediction)
        check_room(folder, prediction, budget_bytes)
        if as_json:
            print_json(prediction)
        return
    with decoding() as bar:
        report = make(
            folder,
            files.paths,
            files.masks,
            settings=settings,
            workers=workers,
            budget_bytes=budget_bytes,
            planned=say_plan,
            progress=lambda at: bar(at.done, at.total, at.bytes),
            waiting=say,
        )
    show_build(report, report.made, known=report.known, as_json=as_json)


@cache.command()
def info(
    folder: Folder,
    *,
    source: Annotated[
        Path | None, typer.Option(metavar="SOURCE", help="How much of these images the cache would serve.")
    ] = None,
    masks: Masks = None,
    as_json: Json = False,
) -> None:
    """What the cache holds, how large it is, how it was made."""
    from fulltilt.cache.info import look
    from fulltilt.cli.cache_view import info_table

    files = None if source is None else _files(source, masks)
    found = look(folder, None if files is None else files.paths, None if files is None else files.masks)
    if as_json:
        print_json(found)
    else:
        _print(info_table(folder, found))


@cache.command()
def verify(
    folder: Folder,
    *,
    sources: Annotated[bool, typer.Option(help="Read and hash the images and masks again, too.")] = True,
    drop: Annotated[
        bool, typer.Option("--drop", help="Remove damaged entries; the next build makes them again.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check every byte. Exits with 1 when something is damaged."""
    from fulltilt.cache.verify import verify as check
    from fulltilt.cli.cache_view import Bar

    with Bar("checking") as bar:
        report = check(folder, sources=sources, drop=drop, progress=bar)
    _show_verify(folder, report, as_json=as_json)
    if report.damage:
        raise typer.Exit(1)


@cache.command()
def clear(
    folder: Folder,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
) -> None:
    """Remove the cache's own files and nothing else."""
    from fulltilt.cache.manifest import clear as remove
    from fulltilt.cache.manifest import read_manifest
    from fulltilt.cache.predict import folder_bytes

    read_manifest(folder)
    if not yes:
        if not sys.stdin.isatty():
            raise InputError(f"clearing {folder} asks first, and there is nobody to ask; pass --yes")
        typer.confirm(f"Remove {disk_size(folder_bytes(folder))} of cache in {folder}?", abort=True, err=True)
    say(f"removed {disk_size(remove(folder))} from {folder}")


def _files(source: Path, masks: Path | None) -> ImageFiles:
    from fulltilt.feed.images.files import ImageFiles

    return ImageFiles(source, masks=masks)


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?", text.strip().lower())
    if match is None or not float(match[1]):
        raise InputError(f"--budget: expected a size like 500M, 80G or 1.5T, found {text!r}")
    return round(float(match[1]) * _UNITS[match[2]])


def _show_verify(folder: Path, report: VerifyReport, *, as_json: bool) -> None:
    states = "" if report.sources is None else "; sources: " + _counts(report.sources)
    verdict = f"{len(report.damage):,} damaged" if report.damage else "all sound"
    say(f"{report.entries:,} entries, {verdict}{states}")
    if report.damage:
        list_of([f"{one.path}: {one.what}" for one in report.damage])
        done = "dropped" if report.dropped else f"`fulltilt cache verify --drop {folder}` takes them out"
        say(f"{done}; the next build makes them again")
    if as_json:
        print_json(report)


def _counts(states: Any) -> str:
    return ", ".join(f"{count:,} {state}" for state, count in states.items() if count) or "none"


def _print(renderable: Any) -> None:
    from rich.console import Console

    Console().print(renderable)
