"""`build`: a cache from files. What is there already stays; a build that was stopped, however, goes on.

    plan (reads only) ─► room enough? ─► lock ─► cut off what is unfinished ─► workers ─► report

Several builders may be started for one folder: one works, the others wait, and then find the work done.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fulltilt.cache.crew import Crew, Outcome
from fulltilt.cache.keys import name_of
from fulltilt.cache.manifest import holds, locked, write_manifest
from fulltilt.cache.predict import Prediction, Sample, check_room, folder_bytes, predict
from fulltilt.cache.settings import CacheSettings
from fulltilt.cache.store import Cache
from fulltilt.cache.writer import SHARD_BYTES, recover
from fulltilt.errors import CacheError, InputError
from fulltilt.machine.cores import read_cores
from fulltilt.words import disk_size

log = logging.getLogger("fulltilt.cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An image or a video that is not in the cache, or not in full, and why."""

    path: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """What a build did."""

    samples: int
    """Of the source, each path counted once."""
    present: int
    """Were in the cache already."""
    made: int
    """Decoded and written."""
    known: int
    """Read and hashed, but not decoded: their content was in the cache under another name or stamp."""
    failures: tuple[Failure, ...]
    bytes: int
    """Of the pixels written."""
    seconds: float


@dataclass(slots=True)
class Progress:
    """A build under way."""

    total: int
    """Samples to be made."""
    made: int = 0
    known: int = 0
    bytes: int = 0
    failures: dict[int, str] = field(default_factory=dict)

    @property
    def done(self) -> int:
        return self.made + self.known + len(self.failures)


def build(
    folder: str | os.PathLike[str],
    images: Sequence[str],
    masks: Sequence[str] | None = None,
    *,
    settings: CacheSettings | None = None,
    workers: int | None = None,
    budget_bytes: int | None = None,
    shard_bytes: int = SHARD_BYTES,
    planned: Callable[[Prediction], None] | None = None,
    progress: Callable[[Progress], None] | None = None,
    waiting: Callable[[str], None] | None = None,
) -> BuildReport:
    """Bring every image (and mask) into the cache in `folder`. CacheError when that can't be; see docs/cache.md.

    `workers`: processes, as many as there are usable cores if not given. `planned` hears the prediction before anything
    is written, `progress` after each sample, `waiting` a line to show when another build is at work.
    """
    started = time.monotonic()
    place = Path(folder)
    settings = settings or CacheSettings()
    workers = read_cores().usable if workers is None else workers
    if workers < 1:
        raise InputError(f"workers is {workers}; allowed: 1 or more processes")
    samples = unique(images, masks, settings)
    try:
        missing, prediction = plan(place, samples, settings)
        check_room(place, prediction, budget_bytes)
        with opened(place, settings, waiting=waiting) as waited:
            if waited:
                missing, prediction = plan(place, samples, settings)
                check_room(place, prediction, budget_bytes)
            if planned is not None:
                planned(prediction)
            counts = _make(place, settings, missing, workers, shard_bytes, progress)
    except OSError as error:
        raise CacheError(f"can't write into {place}: {error.strerror or error}") from error
    return BuildReport(
        samples=len(samples),
        present=prediction.present,
        made=counts.made,
        known=counts.known,
        failures=failures_of([sample.image for sample in missing], counts.failures),
        bytes=counts.bytes,
        seconds=time.monotonic() - started,
    )


@contextmanager
def opened(folder: Path, settings: CacheSettings, *, waiting: Callable[[str], None] | None) -> Iterator[bool]:
    """The folder, made where it is new, locked, and ready to be added to. Gives whether that had to be waited for."""
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, waiting=waiting or log.info) as waited:
        if not holds(folder, settings):
            write_manifest(folder, settings)
        recover(folder, settings.digest)
        yield waited


def plan(folder: Path, samples: Sequence[Sample], settings: CacheSettings) -> tuple[list[Sample], Prediction]:
    """Which samples are not in the cache, and the room that they will take. Writes nothing."""
    missing = list(samples)
    if holds(folder, settings):
        missing = absent(Cache(folder, settings), samples)
    return missing, predict(folder, missing, settings, present=len(samples) - len(missing))


def absent(cache: Cache, samples: Sequence[Sample]) -> list[Sample]:
    """Samples that the cache would not serve."""
    missing = []
    for sample in samples:
        try:
            entry = cache.find(cache.key(sample.image, sample.mask))
        except OSError:  # gone or not readable: the build says so when it gets there
            entry = None
        if entry is None:
            missing.append(sample)
    return missing


def _make(
    folder: Path,
    settings: CacheSettings,
    missing: list[Sample],
    workers: int,
    shard_bytes: int,
    progress: Callable[[Progress], None] | None,
) -> Progress:
    counts = Progress(total=len(missing))
    problem = Crew(
        folder,
        settings,
        missing,
        shard_bytes=shard_bytes,
        done=lambda outcome: _count(counts, outcome, 1, progress),
        undone=lambda outcome: _count(counts, outcome, -1, progress),
    ).run(workers)
    if problem is not None:
        kept = counts.made + counts.known
        left = (len(missing) - counts.done) * (counts.bytes / counts.made if counts.made else 0)
        room = f" for about {disk_size(left)}" if left else ""
        raise CacheError(
            f"{folder} can't be written to any more ({problem}) after {disk_size(folder_bytes(folder))}: {kept:,} of "
            f"{len(missing):,} samples were added and stay. Make room{room}, then "
            "run the same command again: it continues from there"
        )
    return counts


def _count(counts: Progress, outcome: Outcome, sign: int, progress: Callable[[Progress], None] | None) -> None:
    if outcome.state == "failed":
        counts.failures[outcome.number] = outcome.error
    elif outcome.state == "made":
        counts.made += sign
        counts.bytes += sign * outcome.bytes
    else:
        counts.known += sign
    if progress is not None:
        progress(counts)


def failures_of(paths: Sequence[str], failures: Mapping[int, str]) -> tuple[Failure, ...]:
    """In the order of the paths."""
    return tuple(Failure(path=paths[at], error=failures[at]) for at in sorted(failures))


def unique(images: Sequence[str], masks: Sequence[str] | None, settings: CacheSettings) -> list[Sample]:
    """Images with their masks, each once."""
    if masks is not None and len(masks) != len(images):
        raise InputError(f"{len(masks)} masks for {len(images)} images; there must be as many")
    of_each: Sequence[str | None] = masks if masks is not None else [None] * len(images)
    pairs = [Sample(image, mask) for image, mask in zip(images, of_each, strict=True)]
    digest = settings.digest
    return list({name_of(*pair, digest): pair for pair in pairs}.values())
