"""Files written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from fulltilt.errors import InputError


def check_writable(path: Path, *, option: str) -> None:
    """Raise now what writing `path` would raise at the end of a long run."""
    folder = path.parent
    if path.is_dir():
        raise InputError(f"{option}: {path} is a folder; name a file")
    if not folder.is_dir():
        raise InputError(f"{option}: there is no folder {folder}; create it or name another")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{option}: can't write into {folder} (permission denied); name another folder")


def write_whole(path: Path, content: str | bytes) -> None:
    """Write aside, sync, rename: whatever happens, `path` holds the old content or all of the new."""
    handle, aside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, 0o666 & ~_umask())  # mkstemp gives the owner alone access, which a report need not
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
