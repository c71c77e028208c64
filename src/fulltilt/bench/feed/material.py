"""Photos and masks, made by several processes at once, in a folder that is removed whatever happens. No torch here."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fulltilt.bench.photos import make_photos
from fulltilt.errors import InputError
from fulltilt.recipes.making import in_processes

_IN_MEMORY = Path("/dev/shm")
_PIXEL_BYTES = 3
_SPARE = 1.3
_CLASSES = 4


@contextmanager
def workplace(folder: Path | None, *, needed_bytes: int) -> Iterator[Path]:
    """A new folder for the run: in `folder`, or in memory where there is room, or else where temporary files go."""
    if folder is not None and not folder.is_dir():
        raise InputError(f"--folder: there is no folder {folder}; create it or name another")
    around = folder or choose_folder(needed_bytes)
    free = shutil.disk_usage(around).free
    if free < needed_bytes:
        raise InputError(
            f"{around} has {free / 1e9:.1f} GB free, photos and a cache of them take {needed_bytes / 1e9:.1f} GB: "
            "lower --count or name another --folder"
        )
    try:
        place = tempfile.TemporaryDirectory(prefix="fulltilt-bench-", dir=around)
    except OSError as error:
        raise InputError(f"can't write into {around} ({error.strerror}); name another --folder") from error
    with place as name:
        yield Path(name)


def choose_folder(needed_bytes: int, in_memory: Path = _IN_MEMORY) -> Path:
    try:
        # Twice: memory that is full would slow down what is measured.
        if shutil.disk_usage(in_memory).free > 2 * needed_bytes:
            return in_memory
    except OSError:
        pass  # there is none
    return Path(tempfile.gettempdir())


def bytes_needed(count: int, size: tuple[int, int], file_bytes: int) -> int:
    """Files and decoded pixels together."""
    return int(count * (file_bytes + size[0] * size[1] * _PIXEL_BYTES) * _SPARE)


def make_in_parallel(
    folder: Path,
    count: int,
    *,
    size: tuple[int, int],
    target_bytes: int,
    processes: int,
    vary: float = 0.15,
    masks: bool = False,
) -> tuple[list[str], list[str]]:
    """Paths of `count` photos and, if wanted, of their masks, each made by one of so many processes."""
    parts = max(1, min(processes, count // 32))
    shares = tuple(count // parts + (part < count % parts) for part in range(parts))
    write = partial(_make_part, shares=shares, size=size, target_bytes=target_bytes, vary=vary, masks=masks)
    in_processes(folder, parts, write, parts, lambda _: None)
    return _found(folder, "*.jpg"), _found(folder, "*.png")


def _make_part(
    folder: Path,
    part: int,
    *,
    shares: Sequence[int],
    size: tuple[int, int],
    target_bytes: int,
    vary: float,
    masks: bool,
) -> None:
    home = folder / f"part-{part:03d}"
    made = make_photos(home, shares[part], size=size, target_bytes=target_bytes, seed=part, vary=vary)
    if masks:
        make_masks(made)


def make_masks(images: Sequence[Path]) -> None:
    """A PNG of labels beside each image: a few ellipses, as annotators draw them."""
    from PIL import Image

    for number, path in enumerate(images):
        with Image.open(path) as image:
            width, height = image.size
        Image.fromarray(_labels(height, width, number)).save(path.with_suffix(".png"))


def _labels(height: int, width: int, seed: int) -> NDArray[np.uint8]:
    random = np.random.default_rng((seed, 3))
    labels = np.zeros((height, width), np.uint8)
    rows, columns = np.ogrid[:height, :width]
    for label in range(1, _CLASSES):
        y, x = random.uniform(0, height), random.uniform(0, width)
        half_y, half_x = random.uniform(0.08, 0.3, 2) * (height, width)
        labels[((rows - y) / half_y) ** 2 + ((columns - x) / half_x) ** 2 < 1] = label
    return labels


def _found(folder: Path, pattern: str) -> list[str]:
    return [str(path) for path in sorted(folder.glob(f"*/{pattern}"))]
