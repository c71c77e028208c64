"""What OpenCV's reader gives of the same files: FFmpeg too, as others use it. Only where it is installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fulltilt.bench.video.rates import Crew
from fulltilt.errors import DecodeError


def opencv() -> Any | None:
    """The module, if it can be imported."""
    try:
        return importlib.import_module("cv2")
    except ImportError:
        return None


class Captures(Crew):
    """Decoders of OpenCV in threads: frame after frame as BGR, each over the one before."""

    def __init__(self, cv2: Any, paths: Iterable[Path], *, alone: bool) -> None:
        """
        Args:
            alone: each decodes in its own thread; otherwise FFmpeg starts as many for each as OpenCV thinks best.
        """
        self._videos = [_Capture(cv2, path, alone=alone) for path in paths]

    def _asker(self, video: _Capture) -> Callable[[range], Any]:
        return video.read


class _Capture:
    def __init__(self, cv2: Any, path: Path, *, alone: bool) -> None:
        settings = [cv2.CAP_PROP_N_THREADS, 1] if alone else []
        self._path, self._place = path, cv2.CAP_PROP_POS_FRAMES
        self._file = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG, settings)
        if not self._file.isOpened():
            raise DecodeError(f"{path}: OpenCV does not open it")
        self._frames = int(self._file.get(cv2.CAP_PROP_FRAME_COUNT))
        self._at, self._image = 0, None

    def __len__(self) -> int:
        return self._frames

    def read(self, wanted: range) -> None:
        if self._at != wanted.start:
            self._file.set(self._place, wanted.start)
        for number in wanted:
            there, self._image = self._file.read(self._image)
            if not there:
                raise DecodeError(f"{self._path}: OpenCV gives no frame {number} of {self._frames}")
        self._at = wanted.stop

    def close(self) -> None:
        self._file.release()
