"""Make a small data set of JPEG photographs: folders of classes, as ImageFolder reads them.

python examples/make_photos.py photos --count 160
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

KINDS = ("clouds", "dunes", "leaves", "waves")


def photo(kind: int, rng: np.random.Generator, size: tuple[int, int]) -> Image.Image:
    """Soft noise in a kind's own direction and colours: no two alike, and as large as a photograph when compressed."""
    width, height = size
    coarse = rng.normal(size=(height // 8 + 2, width // 8 + 2, 3))
    soft = np.stack(
        [np.asarray(Image.fromarray(plane.astype(np.float32)).resize(size, 3)) for plane in coarse.T.swapaxes(1, 2)], -1
    )
    angle = kind * np.pi / len(KINDS) + rng.normal(0, 0.1)
    y, x = np.mgrid[0:height, 0:width] / 40
    stripes = np.sin((x * np.cos(angle) + y * np.sin(angle)) * rng.uniform(0.8, 1.2) + rng.uniform(0, 6))
    tint = np.array([(70, 110, 170), (190, 150, 90), (60, 130, 60), (40, 120, 150)][kind])
    grain = rng.integers(-9, 10, size=(height, width, 1))
    return Image.fromarray((tint + 28 * soft + 22 * stripes[..., None] + grain).clip(0, 255).astype(np.uint8))


def make(folder: Path, *, count: int, size: tuple[int, int], seed: int = 0) -> None:
    """As many as are missing: a second call does nothing."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        kind = number % len(KINDS)
        path = folder / KINDS[kind] / f"{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image = photo(kind, rng, size)
        if not path.exists():
            image.save(path, quality=88)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=160)
    parser.add_argument("--size", type=int, nargs=2, default=(1024, 768), metavar=("WIDTH", "HEIGHT"))
    given = parser.parse_args()
    make(given.folder, count=given.count, size=tuple(given.size))
    print(f"{given.count} photographs in {given.folder}")
