"""`fulltilt augment`: what an augmentation does, to look at."""

from __future__ import annotations

import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fulltilt.errors import InputError, UnavailableError

if TYPE_CHECKING:
    from fulltilt.augment import GPUAugmentation

augment = typer.Typer(help="See what an augmentation does.", no_args_is_help=True)

_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
_QUIET_SECONDS = 2.0


class Preset(StrEnum):
    MINIMAL = "minimal"
    DEFAULT = "default"
    STRONG = "strong"


@augment.callback()
def _augment() -> None:
    pass


@augment.command()
def preview(
    images: Annotated[
        Path, typer.Argument(metavar="IMAGE_OR_FOLDER", help="An image, or a folder: its first images in sorted order.")
    ],
    *,
    mask: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE_OR_FOLDER", help="The mask, or a folder of masks of the same names (1.png or 1_mask.png)."
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML with a section gpu_augmentation.")] = None,
    preset: Annotated[Preset | None, typer.Option(help="Instead of --config.", show_default="default")] = None,
    columns: Annotated[int, typer.Option("--columns", "-n", help="Samples side by side.")] = 5,
    size: Annotated[int, typer.Option(help="Pixels of one picture's longer side in the grid.")] = 192,
    seed: Annotated[int, typer.Option(help="Seed of the random draws.")] = 0,
    device: Annotated[str, typer.Option(help="cpu, or cuda to see what the kernels do; draws are the same.")] = "cpu",
    output: Annotated[Path, typer.Option("--output", "-o", help="The picture to write.")] = Path("augment-preview.png"),
) -> None:
    """Draw a labelled grid: the input, each setting alone with the value that was drawn, and all of them together."""
    from io import BytesIO

    from fulltilt.augment.preview import CELL_PIXELS, COLUMNS, find_pictures, read_picture, working_pixels
    from fulltilt.augment.preview import preview as draw
    from fulltilt.machine.files import check_writable, write_whole

    for option, value, (least, most) in (("--columns", columns, COLUMNS), ("--size", size, CELL_PIXELS)):
        if not least <= value <= most:
            raise InputError(f"{option}: expected {least} to {most}, found {value}")
    if output.suffix.lower() not in _FORMATS:
        raise InputError(f"--output: expected a name ending in {', '.join(_FORMATS)}, found {output.name}")
    check_writable(output, option="--output")
    _check_device(device)
    augmentation = _augmentation(config, preset)
    settings = augmentation.settings
    channels = None if settings.mean_std is None else len(settings.mean_std[0])
    if channels not in (None, 1, 3):
        raise InputError(f"normalize has {channels} channels; a picture file has 1 or 3")
    pictures = [
        read_picture(path, labels, channels=channels, most=working_pixels(settings))
        for path, labels in find_pictures(images, mask, most=columns)
    ]
    with _Progress() as progress:
        sheet = draw(
            pictures,
            settings,
            seed=seed,
            columns=columns,
            cell_pixels=size,
            title=f"fulltilt augment preview · {_source(config, preset)} · seed {seed}",
            device=device,
            progress=progress,
        )
    encoded = BytesIO()
    sheet.save(encoded, format=_FORMATS[output.suffix.lower()])
    write_whole(output, encoded.getvalue())
    print(f"fulltilt: wrote {output} ({sheet.width}x{sheet.height})", file=sys.stderr)


def _augmentation(config: Path | None, preset: Preset | None) -> GPUAugmentation:
    from fulltilt.augment.config import read_augmentation
    from fulltilt.augment.module import PRESETS

    if config is not None:
        if preset is not None:
            raise InputError(f"--config and --preset {preset} both say what to do; leave one of them out")
        return read_augmentation(config)
    return PRESETS[preset or Preset.DEFAULT]()


def _source(config: Path | None, preset: Preset | None) -> str:
    return config.name if config is not None else f"preset {preset or Preset.DEFAULT}"


def _check_device(device: str) -> None:
    import torch

    if device not in ("cpu", "cuda"):
        raise InputError(f"--device: expected cpu or cuda, found {device}")
    if device == "cuda" and not torch.cuda.is_available():
        raise UnavailableError("--device cuda: torch sees no GPU here; the CPU draws the same (leave --device out)")


class _Progress:
    """A bar on a terminal, for previews that take longer than a moment."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> _Progress:
        return self

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            if time.monotonic() - self._started < _QUIET_SECONDS or not sys.stderr.isatty():
                return
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._bar.start()
            self._bar.add_task("drawing", total=total)
        self._bar.update(self._bar.task_ids[0], completed=done)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
