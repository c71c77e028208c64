"""Frames per second of decoders side by side, as RGB in their own size."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fulltilt.decode.video import open_video
from fulltilt.decode.video.priority import give_way
from fulltilt.decode.video.reader import Quality
from fulltilt.errors import UnavailableError, WorkerError

CHUNK = 16
"""Frames that are asked for at once."""
_SHARE_SECONDS = 60.0
"""How long other processes may take to start."""
_LEAD_SECONDS = 0.2
"""From the moment that all are at work to the one from which on they are counted."""


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
        quality: Quality = "exact",
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


class Apart:
    """The CPU's decoders in processes of their own, as a feed's workers are: none waits for another's interpreter lock.

    All are at work before any is counted, and what is counted is one and the same time.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        seconds: float,
        *,
        processes: int = 1,
        quality: Quality = "exact",
        threads: int = 1,
        gives_way: bool = False,
    ) -> None:
        """
        Args:
            processes: that share the paths, a decoder each.
            threads: of each decoder.
            gives_way: leaves the cores to others that want them.
        """
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Any] = []
        self._processes: list[Any] = []
        for number in range(processes):
            ours, theirs = context.Pipe()
            share = [str(path) for path in paths[number::processes]]
            given = (theirs, share, seconds, quality, threads, gives_way)
            process = context.Process(target=_decode_apart, args=given, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def begin(self) -> float:
        """The moment from which on they are counted."""
        for pipe in self._pipes:
            self._told(pipe, f"the CPU's decoders were not ready after {_SHARE_SECONDS:g} s")
        start = time.perf_counter() + _LEAD_SECONDS
        for pipe in self._pipes:
            pipe.send(start)
        return start

    def counted(self) -> Counted:
        """Of all of them together, once the time is over."""
        each: list[Counted] = [self._told(pipe, "the CPU's decoders gave no figure") for pipe in self._pipes]
        return Counted(
            frames=sum(one.frames for one in each), seconds=each[0].seconds, cores=math.fsum(one.cores for one in each)
        )

    def _told(self, pipe: Any, otherwise: str) -> Any:
        if not pipe.poll(_SHARE_SECONDS):
            raise WorkerError(otherwise)
        try:
            return pipe.recv()
        except (EOFError, ConnectionResetError):
            raise WorkerError("a process of the CPU's decoders has died") from None

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for process in self._processes if kind is not None else ():
            process.kill()  # nobody asks for its figure any more
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.kill()


def apart(paths: Sequence[Path], seconds: float, *, quality: Quality = "exact", processes: int) -> Counted:
    """The CPU's decoders in so many processes, with nothing beside them."""
    with Apart(paths, seconds, processes=processes, quality=quality) as crew:
        crew.begin()
        return crew.counted()


def beside(
    paths: Sequence[Path],
    crew: Crew,
    seconds: float,
    *,
    threads: int,
    processes: int,
) -> tuple[Counted, Counted]:
    """The CPU's decoders in processes of their own, which give way, and a crew here, at the same time.

    Args:
        threads: of each decoder of the CPU.
    """
    with Apart(paths, seconds, processes=processes, threads=threads, gives_way=True) as there:
        here = crew.count(seconds, begin=there.begin)
        return there.counted(), here


def _decode_apart(pipe: Any, paths: list[str], seconds: float, quality: Quality, threads: int, gives_way: bool) -> None:
    crew = Crew([Path(path) for path in paths], device=None, quality=quality, threads=threads)
    crew.gives_way = gives_way

    def begin() -> float:
        pipe.send("ready")
        start: float = pipe.recv()  # one clock for all processes of a machine
        return start

    pipe.send(crew.count(seconds, begin=begin))
    crew.close()


def _sleep_until(moment: float) -> None:
    while (left := moment - time.perf_counter()) > 0:
        time.sleep(left)
