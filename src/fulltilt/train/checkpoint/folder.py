"""A folder of checkpoints: their names, how a new one appears in it, what killed writers leave behind.

    .checkpoint-<random>.partial               being written; its writer holds a lock on it
    checkpoint-000012-step-1500.safetensors    whole, a file
    checkpoint-000012-step-1500                whole, a folder of several ranks' files
    .training                                  there and locked while a process trains into it

A name without a dot appears by one rename, after everything under it is on the disk. A lock goes with its process, also
after kill -9, so a partial one that nobody has locked is a leftover, whichever process or machine wrote it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from fulltilt.errors import FulltiltError, InputError
from fulltilt.machine.files import sync
from fulltilt.train.checkpoint.keep import Entry

_NAME: Final = re.compile(r"checkpoint-(\d{6,})-step-(\d+)(\.safetensors)?")
_PARTIAL: Final = ".checkpoint-*.partial"
LOCK: Final = "lock"
"""In a partial folder, the file that its writer has locked."""
_CLAIM: Final = ".training"
_TRIES: Final = 100


def name_of(sequence: int, step: int, *, sharded: bool = False) -> str:
    return f"checkpoint-{sequence:06d}-step-{step}" + ("" if sharded else ".safetensors")


def prepare(folder: Path) -> None:
    """Create the folder, find out by writing whether it can be written, and clean up; InputError when it can't."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = _partial_of(folder)
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        probe.unlink(missing_ok=True)  # another process may have taken it for a leftover already
    except OSError as error:
        # A disk that is full now may have room when the first checkpoint comes, and that one will say so otherwise.
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            reason = error.strerror or error
            raise InputError(f"can't write checkpoints into {folder} ({reason}); name another folder") from None
    clean(folder)


def clean(folder: Path) -> None:
    """Remove what killed writers left."""
    for path in folder.glob(_PARTIAL):
        try:
            with _locked(path / LOCK if path.is_dir() else path):
                discard(path)
        except FileNotFoundError:
            # Gone already; or a partial folder whose writer ended before it could lock it.
            with contextlib.suppress(OSError):
                path.rmdir()
        except OSError:
            continue  # somebody is writing it (or locks do not work here, and it can't be told)


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[bool]:
    """Whether no other process has claimed it. A record lock: processes that are forked meanwhile don't have it."""
    alone, path = True, folder / _CLAIM
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # a full disk, a file system without locks: then nobody can tell
            file = held.enter_context(open(path, "ab"))
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                alone = False
        try:
            yield alone
        finally:
            if alone:
                with contextlib.suppress(OSError):
                    path.unlink()


def entries(folder: Path) -> list[Entry]:
    """All that have a checkpoint's name, without looking into them."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for path in folder.iterdir():
            match = _NAME.fullmatch(path.name)
            if match:
                found.append(Entry(path=path, sequence=int(match[1]), step=int(match[2])))
    return found


def next_sequence(folder: Path) -> int:
    return max((entry.sequence for entry in entries(folder)), default=0) + 1


def add_file(folder: Path, step: int, fill: Callable[[int], None]) -> Path:
    """Have a file filled; it appears under a new name once it is whole and on the disk."""
    partial, descriptor = _new_partial_file(folder)
    try:
        fill(descriptor)
        os.fsync(descriptor)
        path = _give_name(folder, step, lambda path: _rename_file(partial, path), sharded=False)
    except BaseException:
        discard(partial)
        raise
    finally:
        os.close(descriptor)
    return path


def new_partial_folder(folder: Path) -> tuple[Path, int]:
    """An empty folder to fill, and the descriptor that keeps it locked."""
    for _ in range(_TRIES):
        partial = _partial_of(folder)
        partial.mkdir()
        try:
            descriptor = os.open(partial / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            continue  # removed by somebody's clean() while it was still empty
        _try_lock(descriptor)
        if os.fstat(descriptor).st_nlink:
            return partial, descriptor
        os.close(descriptor)
    raise FulltiltError(f"can't write into {folder}: something removes new folders at once")


def add_folder(partial: Path, step: int) -> Path:
    """Give a partial folder, whose files are synced, its name."""
    for inside in partial.iterdir():
        if inside.is_dir():
            sync(inside)
    sync(partial)
    path = _give_name(partial.parent, step, lambda path: os.rename(partial, path), sharded=True)
    (path / LOCK).unlink(missing_ok=True)  # last: without it nobody could tell a leftover from a live one
    return path


def remove(path: Path) -> None:
    """Remove a checkpoint. A folder loses its name first, so that no half of it can be taken for a whole."""
    if path.is_dir():
        doomed = _partial_of(path.parent)
        try:
            (path / LOCK).touch()  # without a lock held on it: if we are killed now, it is a leftover
            os.rename(path, doomed)
        except FileNotFoundError:
            return  # another process was faster
        discard(doomed)
    else:
        path.unlink(missing_ok=True)


def _partial_of(folder: Path) -> Path:
    return folder / f".checkpoint-{secrets.token_hex(8)}.partial"


def _new_partial_file(folder: Path) -> tuple[Path, int]:
    for _ in range(_TRIES):
        partial = _partial_of(folder)
        descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        _try_lock(descriptor)
        if os.fstat(descriptor).st_nlink:
            return partial, descriptor
        os.close(descriptor)  # removed by somebody's clean() in the moment before it was locked
    raise FulltiltError(f"can't write into {folder}: something removes new files at once")


def _give_name(folder: Path, step: int, rename: Callable[[Path], None], *, sharded: bool) -> Path:
    """The next free name: another process that saves the same step at this moment must not be written over."""
    for _ in range(_TRIES):
        path = folder / name_of(next_sequence(folder), step, sharded=sharded)
        try:
            rename(path)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                continue
            raise
        sync(folder)
        return path
    raise FulltiltError(f"can't name a new checkpoint in {folder}: others take every name")


def _rename_file(partial: Path, path: Path) -> None:
    """A rename that replaces nothing: a second name, then the first removed."""
    try:
        os.link(partial, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        os.rename(partial, path)  # a file system without hard links
    else:
        partial.unlink(missing_ok=True)


def discard(path: Path) -> None:
    """Remove a partial file or folder, as far as it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # a file system without locks: then clean() can't lock it either, and leaves it
        fcntl.flock(descriptor, fcntl.LOCK_EX)
