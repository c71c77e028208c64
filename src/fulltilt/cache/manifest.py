"""The folder of a cache: its manifest, its lock, and taking it away again."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from fulltilt.cache.settings import CacheSettings
from fulltilt.cache.shard import shard_files
from fulltilt.errors import CacheError
from fulltilt.machine.files import write_whole

MANIFEST: Final = "manifest.json"
LOCK: Final = "build.lock"
_FORMAT: Final = "fulltilt cache"
_VERSION: Final = 1


def write_manifest(folder: Path, settings: CacheSettings) -> None:
    found = {"format": _FORMAT, "version": _VERSION, "settings": settings.to_json()}
    write_whole(folder / MANIFEST, json.dumps(found, indent=2) + "\n")


def read_manifest(folder: Path) -> CacheSettings:
    """The settings of the cache in `folder`; CacheError where there is none."""
    path = folder / MANIFEST
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        is_ours = found["format"] == _FORMAT
        version = found["version"]
        settings = found["settings"]
    except (FileNotFoundError, NotADirectoryError):
        raise CacheError(f"{folder} holds no cache (no {MANIFEST}); make one with `fulltilt cache build`") from None
    except OSError as error:
        raise CacheError(f"{path} can't be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        is_ours, version, settings = False, None, {}
    if not is_ours:
        raise CacheError(f"{path} is not the manifest of a fulltilt cache; name the folder of one")
    if version != _VERSION:
        raise CacheError(
            f"{folder} is a cache of format {version}, this fulltilt reads {_VERSION}; build it again in another folder"
        )
    return CacheSettings.from_json(settings)


def check_settings(folder: Path, found: CacheSettings, wanted: CacheSettings) -> None:
    if found != wanted:
        raise CacheError(
            f"the cache in {folder} was built with {found.differences(wanted)}; "
            "ask for what it has, name another folder, or clear it (`fulltilt cache clear`) and build again"
        )


def holds(folder: Path, settings: CacheSettings) -> bool:
    """Whether the folder has a cache; CacheError where it was built with other settings, or other files lie there."""
    if (folder / MANIFEST).exists():
        check_settings(folder, read_manifest(folder), settings)
        return True
    if folder.is_dir() and any(path.name != LOCK for path in folder.iterdir()):
        raise CacheError(f"{folder} holds other files and no cache; name an empty or new folder")
    return False


@contextlib.contextmanager
def locked(folder: Path, *, waiting: Callable[[str], None] | None) -> Iterator[bool]:
    """Hold the folder's lock: one builder at a time. The kernel takes it back from a process that dies.

    With `waiting` it is called with a line to show, and the lock is waited for; without, CacheError when it is held.
    Gives whether it had to wait.
    """
    path = folder / LOCK
    waited = False
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(fd, 64, 0).decode(errors="replace").strip() or "unknown"
                text = f"another build (process {holder}) is at work in {folder}"
                if waiting is None:
                    raise CacheError(f"{text}; wait for it to end, or stop it") from None
                waiting(f"{text}; waiting for it to end")
                waited = True
                fcntl.flock(fd, fcntl.LOCK_EX)
            if not _is_still(path, fd):  # cleared while we waited: the lock of a file that is gone locks nothing
                folder.mkdir(parents=True, exist_ok=True)
                continue
            os.ftruncate(fd, 0)
            with contextlib.suppress(
                OSError
            ):  # the number only helps people; on a full disk the lock holds all the same
                os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
            yield waited
            return
        finally:
            os.close(fd)


def _is_still(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def clear(folder: Path) -> int:
    """Remove the cache's own files, and the folder if nothing else is in it. Returns the bytes that were freed."""
    read_manifest(folder)
    freed = 0
    with locked(folder, waiting=None):
        # The manifest goes last but the lock: whatever interrupts this, the folder is still known as a cache.
        for path in [*shard_files(folder), folder / MANIFEST]:
            freed += path.stat().st_blocks * 512
            path.unlink()
        (folder / LOCK).unlink()
    with contextlib.suppress(OSError):  # something else is in it, or it is not ours to remove
        folder.rmdir()
    return freed
