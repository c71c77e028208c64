"""Frames per second of decoders side by side, as RGB in their own size."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fulltilt.decode.video import open_video
from fulltilt.errors import UnavailableError, WorkerError

CHUNK = 16
"""Frames that are asked for at once."""
_SHARE_SECONDS = 60.0
"""How long the other process may take to start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What a crew of decoders gave."""

    frames: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.frames / self.seconds


class Crew:
    """Decoders in threads of this process; all open before any is timed."""

    def __init__(self, paths: Iterable[Path], *, device: str | None) -> None:
        """UnavailableError where `device` is given and its engines don't decode these files."""
        paths = list(paths)
        with open_video(paths[0]) as first:
            known = first.known
        self._videos: list[Any] = []
        for path in paths:
            video = open_video(path, known=known, device=device) if device else open_video(path, known=known)
            self._videos.append(video)
            decision = getattr(video, "decision", None)
            if decision is not None and decision.value != "nvdec":
                self.close()
                raise UnavailableError(decision.reason)
        self._device = device

    def count(self, seconds: float) -> Counted:
        """All of them from their beginnings on, again and again."""
        total, lock, errors = 0, threading.Lock(), []
        ready = threading.Barrier(len(self._videos) + 1)
        end = [0.0]

        def work(video: Any) -> None:
            nonlocal total
            try:
                ask = self._asker(video)
                ask(range(min(CHUNK, len(video))))
                ready.wait()
                done = at = 0
                while time.perf_counter() < end[0]:
                    wanted = range(at, min(at + CHUNK, len(video)))
                    ask(wanted)
                    done, at = done + len(wanted), wanted.stop % len(video)
                with lock:
                    total += done
            except BaseException as error:
                ready.abort()
                errors.append(error)

        threads = [threading.Thread(target=work, args=(video,)) for video in self._videos]
        for thread in threads:
            thread.start()
        end[0] = time.perf_counter() + 1e9
        with contextlib.suppress(threading.BrokenBarrierError):  # whoever broke it left its error
            ready.wait()
        began = time.perf_counter()
        end[0] = began + seconds
        for thread in threads:
            thread.join()
        if errors:
            first = next((one for one in errors if not isinstance(one, threading.BrokenBarrierError)), errors[0])
            raise first
        return Counted(frames=total, seconds=time.perf_counter() - began)

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


def beside(paths: list[Path], crew: Crew, seconds: float) -> tuple[Counted, Counted]:
    """The CPU's decoders in a process of their own, as a feed's workers are, and a crew here, at the same time."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_other, args=(theirs, [str(path) for path in paths], seconds), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(_SHARE_SECONDS):
            raise WorkerError(f"the CPU's decoders were not ready after {_SHARE_SECONDS:g} s")
        ours.recv()
        ours.send("go")
        here = crew.count(seconds)
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


def _other(pipe: Any, paths: list[str], seconds: float) -> None:
    crew = Crew([Path(path) for path in paths], device=None)
    pipe.send("ready")
    pipe.recv()
    pipe.send(crew.count(seconds))
    crew.close()
