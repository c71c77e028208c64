"""A trial's folder among the temporary ones. It goes with the trial; what a killed one has left, the next removes."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from fulltilt.errors import FulltiltError

PREFIX: Final = "fulltilt-"
_LOCK: Final = "lock"
"""Held while the folder is used: the kernel takes it back from one that is killed. It is empty until it is held, and
then names the machine: on one disk for several, the kernel of each may know its own locks alone."""


@contextmanager
def scratch() -> Iterator[Path]:
    """An empty folder."""
    with ExitStack() as held:
        with room_or_told():
            _remove_left()
            folder = tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
            path = Path(held.enter_context(folder))
            lock = held.enter_context(open(path / _LOCK, "wb", buffering=0))
            with suppress(OSError):  # a file system without locks: then nobody else can take it for left, either
                fcntl.flock(lock, fcntl.LOCK_EX)
                lock.write(_machine())
        yield path


@contextmanager
def room_or_told() -> Iterator[None]:
    """What can't be made or written in a temporary folder is a sentence."""
    try:
        yield
    except OSError as error:
        raise FulltiltError(
            f"there is no room for temporary files ({error.strerror or error}); set TMPDIR to a folder that has some"
        ) from None


def _remove_left() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{_LOCK}"):
        with suppress(OSError):
            if path.parent.lstat().st_uid != os.getuid():
                continue
            with path.open("r+b") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if lock.read() == _machine():
                    shutil.rmtree(path.parent, ignore_errors=True)


def _machine() -> bytes:
    return (platform.node() or "this one").encode()
