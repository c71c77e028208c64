"""Sources and builds for the tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image

from fulltilt.cache import Cache, CacheSettings
from fulltilt.cache.make import make

SMALL_SHARDS = 1 << 20
"""So that even a small build has several."""

_DRIVER = """
import json, sys
from fulltilt.cache import CacheSettings
from fulltilt.cache.build import build
options = json.loads(sys.argv[1])
def progress(at):
    print("at", at.done, flush=True)
    if options["led"]: sys.stdin.read(1)
report = build(
    options["folder"], options["images"], options["masks"], settings=CacheSettings(**options["settings"]), workers=2,
    shard_bytes=options["shard_bytes"], waiting=lambda text: print(text, flush=True),
    progress=progress,
)
print("made", report.made, "present", report.present, "known", report.known, "failed", len(report.failures), flush=True)
"""


def make_images(folder: Path, count: int, *, width: int = 320, height: int = 240, seed: int = 0) -> list[str]:
    """JPEGs of blurred noise: quick to make, no two alike."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    paths = []
    for number in range(count):
        coarse = Image.fromarray(random.integers(0, 256, (12, 16, 3), np.uint8))
        pixels = np.asarray(coarse.resize((width + number % 7, height), Image.Resampling.BICUBIC))
        path = folder / f"{number:05d}.jpg"
        path.write_bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality=90))
        paths.append(str(path))
    return paths


def make_masks(folder: Path, images: list[str]) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    masks = []
    for number, image in enumerate(images):
        with Image.open(image) as opened:
            width, height = opened.size
        y, x = np.mgrid[0:height, 0:width]
        path = folder / f"{Path(image).stem}.png"
        Image.fromarray(((x // 9 + y // 7 + number) % 21).astype(np.uint8)).save(path)
        masks.append(str(path))
    return masks


def start(
    folder: Path, images: list[str], masks: list[str] | None = None, *, led: bool = False, **settings: Any
) -> subprocess.Popen[str]:
    """A build in a process (and session) of its own. `led`: after each sample it waits for a letter from us."""
    options = {
        "folder": str(folder),
        "images": images,
        "masks": masks,
        "settings": settings,
        "shard_bytes": SMALL_SHARDS,
        "led": led,
    }
    return subprocess.Popen(
        [sys.executable, "-c", _DRIVER, json.dumps(options)],
        stdin=subprocess.PIPE if led else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def assert_serves(folder: Path, images: list[str], masks: list[str] | None = None) -> None:
    """Every sample is found and is what its files give now."""
    cache = Cache.open(folder)
    for image, mask in zip(images, masks or [None] * len(images), strict=True):
        entry = cache.find(cache.key(image, mask))
        assert entry is not None, image
        assert_is(cache, entry, image, mask, cache.settings)


def assert_is(cache: Cache, entry: Any, image: str, mask: str | None, settings: CacheSettings) -> None:
    pixels, labels = make(Path(image).read_bytes(), None if mask is None else Path(mask).read_bytes(), settings)
    np.testing.assert_array_equal(cache.pixels(entry, check=True), pixels)
    if labels is None:
        assert cache.mask(entry) is None
    else:
        np.testing.assert_array_equal(cache.mask(entry, check=True), labels)
