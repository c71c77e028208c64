"""Files written whole or not at all."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

from fulltilt.errors import FulltiltError, InputError


def cache_home() -> Path:
    """Our folder among the user's caches; where there is no home, as of a container's user whom nobody knows, one among
    temporary files."""
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        home = Path(tempfile.gettempdir()) / f"cache-{os.getuid()}"
    return home / "fulltilt"


def check_writable(path: Path, *, option: str) -> None:
    """Raise now what writing `path` would raise at the end of a long run."""
    folder = path.parent
    try:
        if path.is_dir():
            raise InputError(f"{option}: {path} is a folder; name a file")
        if not folder.is_dir():
            raise InputError(f"{option}: there is no folder {folder}; create it or name another")
    except OSError as error:  # a folder on the way that may not be searched, a name that is too long
        raise InputError(f"{option}: can't write {path} ({error.strerror}); name another file") from None
    allowed = os.access(path, os.W_OK) if _special(path) else os.access(folder, os.W_OK | os.X_OK)
    if not allowed:
        raise InputError(f"{option}: can't write into {folder} (permission denied); name another folder")


def write_whole(path: Path, content: str | bytes) -> None:
    """Write aside, sync, rename: whatever happens, `path` holds the old content or all of the new.

    A device or a pipe (/dev/stdout) is written to as it is: a rename would put a file in its place. Names of files that
    are not UTF-8 are written as the bytes that they are.
    """
    data = content.encode(errors="surrogateescape") if isinstance(content, str) else content
    try:
        if _special(path):
            path.write_bytes(data)
        else:
            _replace(path.resolve(), data)
    except OSError as error:
        raise FulltiltError(f"can't write {path} ({error.strerror or error}); name another file") from error


def sync(path: Path) -> None:
    """Names in a folder, or a file's content, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace(path: Path, data: bytes) -> None:
    aside = path.with_name(f".{secrets.token_hex(8)}.aside")
    try:
        with open(aside, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync(path.parent)


def _special(path: Path) -> bool:
    return path.exists() and not path.is_file()
