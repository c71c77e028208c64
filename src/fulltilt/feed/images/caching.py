"""`cache="auto"`: from what was measured to a decision, and from that to samples that are kept.

    first measurements ─► how fast are memory and disk? ─► decide ─┬─ memory: decoders keep what they make from now on
                                                                   └─ disk: a build beside training; then they copy

All of it happens on a thread of its own; what the decoders are to do stands in shared memory and counts from their next
task on, so nothing is restarted and no sample is lost.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from fulltilt.cache import Cache, CacheSettings
from fulltilt.cache.policy import DISK_SHARE, RAM_SHARE, Keep, Rates, decide
from fulltilt.cache.predict import existing
from fulltilt.errors import FulltiltError, InputError
from fulltilt.feed.images.catalog import Catalog
from fulltilt.feed.images.kept import Kept, Mode
from fulltilt.feed.images.stages import Room
from fulltilt.machine.decision import Decision
from fulltilt.machine.files import cache_home
from fulltilt.machine.memory import read_memory

log = logging.getLogger("fulltilt.feed")

ENOUGH_SAMPLES = 300
"""Decoded, before anything is decided."""
_STEADY = 0.1
"""Rates of two windows that differ by no more than this agree."""
_MOST_HEARD = 4
_FLOOR_SHARE = 0.125
"""Of the memory that was free: when no more than this is left, nothing more is kept."""
_COPY_BYTES = 1 << 25
_COPIES_AT_ONCE = 4
"""So many cores fill a memory's bandwidth, or nearly."""
_SCRATCH_BYTES = 1 << 26


class AutoCache:
    """Decides once, and does what was decided."""

    def __init__(self, catalog: Catalog, *, settings: CacheSettings, root: Path, ranks: int = 1) -> None:
        """
        Args:
            root: where caches on disk are made, each in a folder of its own.
            ranks: processes on this machine that share its memory.
        """
        self._catalog, self._settings, self._ranks = catalog, settings, ranks
        self.folder = root / _name(catalog, settings)
        self.kept = Kept.create(len(catalog))
        self.decision: Decision[Keep] | None = None
        """What is kept and why, once that is decided."""
        self.settled = False
        """Nothing is being decided or built."""
        self._heard: list[float] = []
        self._thread: threading.Thread | None = None
        self._builder: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        if self._is_complete():
            self._decided(
                Decision(value=Keep.DISK_DECODED, reason=f"{self.folder} has been built for these files before")
            )
            self.kept.begin(Mode.DISK)
            self.settled = True

    @property
    def mode(self) -> Mode:
        """What the decoders do now."""
        return self.kept.mode

    @property
    def waits_for_rates(self) -> bool:
        return self.decision is None and self._thread is None

    def is_steady(self, rate: float) -> bool:
        """Whether training's rate has stopped changing: its first steps compile and warm up, and then nobody waits."""
        self._heard.append(rate)
        before = self._heard[-2] if len(self._heard) > 1 else 0.0
        return abs(rate - before) <= _STEADY * max(rate, before) or len(self._heard) >= _MOST_HEARD

    def consider(self, rates: Callable[[Room], Rates | None], workers: int) -> None:
        """Decide from these rates, given the room that there is; returns at once."""
        self._thread = threading.Thread(
            target=self._run, args=(rates, workers), name="fulltilt-feed-cache", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Break off what is being built or decided. Whose memory it is frees it: decoders may still use it."""
        with self._lock:
            self._closed.set()
            self._send_builder_away()
        thread = self._thread  # which forgets itself when too little was measured
        if thread is not None:
            thread.join()

    def _run(self, rates: Callable[[Room], Rates | None], workers: int) -> None:
        try:
            free = read_memory().available_bytes // self._ranks
            decision = self._decide(rates, free, workers)
            if decision is None:
                self._thread = None  # too little was measured: next time
                return
            self._decided(decision)
            if decision.value is Keep.DISK_DECODED:
                self._build(workers)
            elif decision.value is not Keep.NOTHING:
                mode = Mode.ENCODED if decision.value is Keep.RAM_ENCODED else Mode.DECODED
                self.kept.begin(mode, budget_bytes=int(free * RAM_SHARE), floor_bytes=int(free * _FLOOR_SHARE))
        except (OSError, FulltiltError) as error:
            log.warning("no cache: %s", error)
            self._gave_up(error)
        except Exception as error:  # a mistake of ours: training does not need a cache to go on
            log.warning("no cache: %r", error, exc_info=True)
            self._gave_up(error)
        self.settled = True

    def _gave_up(self, error: Exception) -> None:
        """Nothing is kept that is not kept already, and nothing is built any more."""
        if self.decision is None:
            self.decision = Decision(value=Keep.NOTHING, reason=f"it could not be decided: {error}")
        with self._lock:
            self._send_builder_away()
        if self._builder is not None:
            self._builder.wait()
            if self._builder.stdout is not None:
                self._builder.stdout.close()

    def _send_builder_away(self) -> None:
        """It keeps what it has made, and leaves. To be called with the lock held."""
        if self._builder is not None and self._builder.stdin is not None:
            self._builder.stdin.close()

    def _decide(self, rates: Callable[[Room], Rates | None], free: int, workers: int) -> Decision[Keep] | None:
        """The disk is measured only if it would be chosen were it fast."""
        room = Room(
            ram_bytes=free,
            disk_bytes=_free_disk(self.folder),
            copy_bytes_per_second=copy_speed() * min(workers, _COPIES_AT_ONCE),
            cache_bytes_per_second=float("inf"),
        )
        found = rates(room)
        if found is None:
            return None
        in_question = decide(found).value is Keep.DISK_DECODED
        speed = disk_speed(self.folder) if in_question else None
        return decide(replace(found, cache_bytes_per_second=speed))

    def _decided(self, decision: Decision[Keep]) -> None:
        self.decision = decision
        log.info("cache: %s: %s", decision.value, decision.reason)

    def _is_complete(self) -> bool:
        """Whether an earlier run has built it. Files that have changed since are misses, no reason to build again."""
        try:
            return len(Cache.open(self.folder, self._settings)) >= len(self._catalog)
        except InputError:  # there is none, or it is somebody else's
            return False

    def _build(self, workers: int) -> None:
        """Wait for a build in a process of its own, then have the decoders use it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        options = {
            "catalog": self._catalog.fd,
            "folder": str(self.folder),
            "settings": self._settings.to_json(),
            "workers": workers,
            "budget_bytes": int((_free_disk(self.folder) or 0) * DISK_SHARE),
        }
        with self._lock:
            if self._closed.is_set():
                return
            self._builder = subprocess.Popen(
                # -P: a queue.py or json.py where the trainer was started is not for this process to import.
                [sys.executable, "-P", "-m", "fulltilt.feed.images.builder", json.dumps(options)],
                pass_fds=[self._catalog.fd],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                process_group=0,  # Ctrl-C at the terminal is for the trainer, which closes the pipe
            )
        assert self._builder.stdout is not None
        told = self._builder.stdout.read().decode(errors="replace")
        self._builder.stdout.close()
        status = self._builder.wait()
        with self._lock:
            if self._closed.is_set():
                return
            if self._builder.stdin is not None:
                self._builder.stdin.close()
            if status == 0:
                self.kept.begin(Mode.DISK)
        if status == 0:
            report = json.loads(told)
            log.info("cache: %s is complete after %.0f s; it is used from now on", self.folder, report["seconds"])
        else:
            why = json.loads(told)["error"] if status == 2 and told else f"its process ended with status {status}"
            log.warning("cache: %s could not be built, files are decoded as before: %s", self.folder, why)


def default_root(folder: str | os.PathLike[str] | None = None) -> Path:
    """Where caches are made: as asked for, else FULLTILT_CACHE_DIR, else the user's cache directory."""
    chosen = folder or os.environ.get("FULLTILT_CACHE_DIR")
    if chosen:
        return Path(os.path.abspath(os.path.expanduser(chosen)))
    return cache_home() / "images"


def copy_speed() -> float:
    """Bytes a second, memory to memory, by one core."""
    source, target = np.ones(_COPY_BYTES, np.uint8), np.ones(_COPY_BYTES, np.uint8)
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        target[...] = source
        best = min(best, time.perf_counter() - started)
    return _COPY_BYTES / best


def disk_speed(folder: Path) -> float:
    """Bytes a second from the disk that `folder` will be on: a file is written, dropped from memory and read."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.parent / f".{folder.name}.{os.getpid()}.speed"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        path.unlink()  # whatever happens, nothing is left
        block = os.urandom(1 << 22)
        for at in range(0, _SCRATCH_BYTES, len(block)):
            os.pwrite(fd, block, at)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        started = time.perf_counter()
        for at in range(0, _SCRATCH_BYTES, len(block)):
            os.pread(fd, len(block), at)
        return _SCRATCH_BYTES / (time.perf_counter() - started)
    finally:
        os.close(fd)


def _name(catalog: Catalog, settings: CacheSettings) -> str:
    """A folder for these files and settings; what is in it is checked file by file."""
    hashed = hashlib.blake2b(settings.digest + catalog.digest, digest_size=10)
    if not os.path.isabs(catalog.image(0)):
        hashed.update(os.fsencode(os.getcwd()))
    return hashed.hexdigest()


def _free_disk(folder: Path) -> int | None:
    """Where the folder is or would be; None where it can't be written."""
    place = existing(folder)
    return shutil.disk_usage(place).free if os.access(place, os.W_OK) else None
