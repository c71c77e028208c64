"""Frames per second of decoders side by side, as RGB in their own size."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fulltilt.decode.video import open_video
from fulltilt.decode.video.priority import give_way
from fulltilt.errors import UnavailableError, WorkerError

CHUNK = 16
"""Frames that are asked for at once."""
_SHARE_SECONDS = 60.0
"""How long the other process may take to start."""
_LEAD_SECONDS = 0.2
"""From the moment that both are at work to the one from which on they are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What a crew of decoders gave."""

    frames: int
    seconds: float
    cores: float
    """CPU time of the whole process, per second."""

    @property
    def per_second(self) -> float:
        return self.frames / self.seconds


class Crew:
    """Decoders in threads of this process; all open before any is timed."""

    gives_way = False
    """They leave the cores to others that want them."""

    def __init__(
        self,
        paths: Iterable[Path],
        *,
        device: str | None,
        quality: Literal["exact", "fast"] = "exact",
        threads: int = 1,
    ) -> None:
        """UnavailableError where `device` is given and its engines don't decode these files.

        Args:
            threads: of each decoder, on the CPU.
        """
        paths = list(paths)
        with open_video(paths[0]) as first:
            known = first.known
        self._videos: list[Any] = []
        for path in paths:
            video = (
                open_video(path, known=known, device=device, quality=quality)
                if device
                else open_video(path, known=known, quality=quality, threads=threads)
            )
            self._videos.append(video)
            decision = getattr(video, "decision", None)
            if decision is not None and decision.value != "nvdec":
                self.close()
                raise UnavailableError(decision.reason)
        self._device = device

    def count(
        self, seconds: float, *, decoders: int | None = None, begin: Callable[[], float] = time.perf_counter
    ) -> Counted:
        """From their beginnings on, again and again; counted are frames that come within so many seconds.

        Args:
            decoders: as many of them; None is all.
            begin: called when all are at work, and says from when on they are counted; they go on meanwhile.
        """
        videos = self._videos[:decoders]
        total, lock, errors = 0, threading.Lock(), []
        ready = threading.Barrier(len(videos) + 1)
        window = [math.inf, math.inf]

        def work(video: Any) -> None:
            nonlocal total
            try:
                if self.gives_way:
                    give_way()
                ask = self._asker(video)
                ask(range(min(CHUNK, len(video))))
                ready.wait()
                counted, at, now = 0, 0, time.perf_counter()
                while now < window[1]:
                    wanted = range(at, min(at + CHUNK, len(video)))
                    ask(wanted)
                    now, at = time.perf_counter(), wanted.stop % len(video)
                    counted += len(wanted) if window[0] <= now < window[1] else 0
                with lock:
                    total += counted
            except BaseException as error:
                ready.abort()
                errors.append(error)

        threads = [threading.Thread(target=work, args=(video,)) for video in videos]
        for thread in threads:
            thread.start()
        cores = 0.0
        try:
            with contextlib.suppress(threading.BrokenBarrierError):  # whoever broke it left its error
                ready.wait()
                start = begin()
                window[:] = start, start + seconds
                _sleep_until(start)
                used = time.process_time()
                _sleep_until(start + seconds)
                cores = (time.process_time() - used) / seconds
        finally:
            window[1] = min(window[1], time.perf_counter())
            for thread in threads:
                thread.join()
        if errors:
            raise next((one for one in errors if not isinstance(one, threading.BrokenBarrierError)), errors[0])
        return Counted(frames=total, seconds=seconds, cores=cores)

    def _asker(self, video: Any) -> Callable[[range], Any]:
        if self._device is None:
            out = np.empty((CHUNK, video.height, video.width, 3), np.uint8)
            return lambda wanted: video.frames(wanted, out=out[: len(wanted)])

        import torch

        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

        def ask(wanted: range) -> None:
            with torch.cuda.stream(stream):
                video.frames(wanted)
            stream.synchronize()

        return ask

    def close(self) -> None:
        for video in self._videos:
            video.close()


def beside(
    paths: list[Path], crew: Crew, seconds: float, *, decoders: int | None = None, threads: int = 1
) -> tuple[Counted, Counted]:
    """The CPU's decoders in a process of their own, as a feed's workers are, and a crew here, at the same time.

    Both are at work before they are counted, and what is counted is one and the same time.

    Args:
        decoders: of the crew; None is all.
        threads: of each decoder of the CPU.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    given = (theirs, [str(path) for path in paths], seconds, threads)
    process = context.Process(target=_other, args=given, daemon=True)
    process.start()
    theirs.close()

    def begin() -> float:
        if not ours.poll(_SHARE_SECONDS):
            raise WorkerError(f"the CPU's decoders were not ready after {_SHARE_SECONDS:g} s")
        ours.recv()
        start = time.perf_counter() + _LEAD_SECONDS
        ours.send(start)
        return start

    try:
        here = crew.count(seconds, decoders=decoders, begin=begin)
        if not ours.poll(_SHARE_SECONDS):
            raise WorkerError("the CPU's decoders gave no figure")
        there = ours.recv()
    except EOFError:
        raise WorkerError("the process of the CPU's decoders has died") from None
    finally:
        ours.close()
        process.join(5)
        if process.is_alive():
            process.kill()
    return there, here


def _other(pipe: Any, paths: list[str], seconds: float, threads: int) -> None:
    crew = Crew([Path(path) for path in paths], device=None, threads=threads)
    crew.gives_way = True

    def begin() -> float:
        pipe.send("ready")
        start: float = pipe.recv()  # one clock for all processes of a machine
        return start

    pipe.send(crew.count(seconds, begin=begin))
    crew.close()


def _sleep_until(moment: float) -> None:
    while (left := moment - time.perf_counter()) > 0:
        time.sleep(left)
