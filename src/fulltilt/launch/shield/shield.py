"""Keeps the user's files as they are: what a script writes, renames or removes goes to an overlay.

Python's own functions are covered here, and libraries that open files by themselves in `natives.py`: torch.save,
safetensors, OpenCV, HDF5, SQLite and others. What neither knows is not (a program that the script starts, say); the
parent compares the folder afterwards and says what has changed nevertheless.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from fulltilt.launch.imports import after_import
from fulltilt.launch.patching import put
from fulltilt.launch.shield import natives
from fulltilt.launch.shield.folders import Entries, Entry, path_of, within
from fulltilt.launch.shield.overlay import Overlay

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
READERS = ("stat", "lstat", "readlink", "access", "chdir", "statvfs", "getxattr", "listxattr", "pathconf")
TEMPORARY = ("mkdtemp", "_mkstemp_inner")
"""The functions of tempfile in which all of its folders and files are made."""
CHANGERS = ("utime", "chmod", "truncate", "chown", "lchown", "setxattr", "removexattr")
_BOTH = (("src", "src_dir_fd"), ("dst", "dst_dir_fd"))
AT: dict[str, tuple[tuple[str, str], ...]] = {
    **dict.fromkeys(("rename", "replace", "link"), _BOTH),
    "symlink": (("src", ""), ("dst", "dir_fd")),
}
"""A function's paths, and which open folder each is relative to; others have one: `path`, and `dir_fd`."""
_SUPPORTS = ("supports_dir_fd", "supports_fd", "supports_follow_symlinks", "supports_effective_ids")


class Shield:
    """The functions that stand in place of `os`'s."""

    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay
        self._here = threading.local()

    def install(self) -> None:
        unlink = os.unlink
        for name in READERS:
            self._put(os, name, self._reader)
        for name in CHANGERS:
            self._put(os, name, self._changer)
        for owner, name, make in (
            (builtins, "open", self._open),
            (io, "open", self._open),
            (os, "open", self._os_open),
            (os, "listdir", self._listdir),
            (os, "scandir", self._scandir),
            (os, "mkdir", self._mkdir),
            (os, "unlink", self._remover(folder=False)),
            (os, "remove", self._remover(folder=False)),
            (os, "rmdir", self._remover(folder=True)),
            (os, "rename", self._mover),
            (os, "replace", self._mover),
            (os, "link", self._linker),
            (os, "symlink", self._linker),
            (os, "fchmod", self._file_changer("chmod")),
            (os, "fchown", self._file_changer("chown")),
            (os, "mkfifo", self._special),
            (os, "mknod", self._special),
            (shutil, "rmtree", self._rmtree),
        ):
            self._put(owner, name, make)
        for module in ("bz2", "lzma"):  # which keep the `open` that they found
            after_import(module, lambda module: self._put(module, "_builtin_open", self._open))
        for function in vars(tempfile._TemporaryFileCloser).values():  # type: ignore[attr-defined]
            if unlink in (getattr(function, "__defaults__", None) or ()):  # as kept there for the interpreter's end
                kept = (os.unlink if one is unlink else one for one in function.__defaults__)
                put(function, "__defaults__", tuple(kept))
        for name in TEMPORARY:
            put(tempfile, name, self._maker(getattr(tempfile, name)))
        put(tempfile, "mktemp", self._namer(tempfile.mktemp))
        natives.install(self._overlay, self._let_through)

    def _put(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return
        here, made = self._here, make(original)
        paths = AT.get(name, (("path", "dir_fd"),))

        @functools.wraps(original)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            # Inside of it all is let through: the overlay's own work, and functions that are made of others.
            if getattr(here, "busy", False):
                return original(*args, **kwargs)
            here.busy = True
            try:
                if kwargs and any(kwargs.get(folder) is not None for _, folder in paths):
                    named = self._named(paths, args, kwargs)
                    if named is None:
                        return original(*args, **kwargs)
                    args, kwargs = named
                return made(*args, **kwargs)
            finally:
                here.busy = False

        put(owner, name, guarded)
        for kind in _SUPPORTS:
            known: set[Any] = getattr(os, kind)
            if original in known:
                known.add(getattr(owner, name))

    def _named(
        self, paths: tuple[tuple[str, str], ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The arguments with whole paths in place of those relative to open folders; None where none is covered."""
        rest = dict(kwargs)
        named = list(args)
        covered = False
        for place, (name, folder) in enumerate(paths):
            if place == len(named) and name in rest:
                named.append(rest.pop(name))
            descriptor = rest.pop(folder, None)
            if place >= len(named):
                return None  # an argument is missing, and the function itself says so
            if descriptor is not None:
                named[place] = within(descriptor, named[place])
                if named[place] is None:
                    return None
            covered = covered or (bool(folder) and self._overlay.listed(named[place]) is not None)
        return (tuple(named), rest) if covered else None

    @contextmanager
    def _let_through(self) -> Iterator[None]:
        before = getattr(self._here, "busy", False)
        self._here.busy = True
        try:
            yield
        finally:
            self._here.busy = before

    # temporary files: made for real, and known to all processes before they are there

    def _maker(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def make(*args: Any, **kwargs: Any) -> Any:
            self._here.making = True
            try:
                return original(*args, **kwargs)
            finally:
                self._here.making = False

        return make

    def _namer(self, original: Callable[..., str]) -> Callable[..., str]:
        @functools.wraps(original)
        def name(*args: Any, **kwargs: Any) -> str:
            drawn = original(*args, **kwargs)
            self._overlay.paths.claim(os.path.abspath(drawn))
            return drawn

        return name

    def _is_temporary(self, path: Any) -> bool:
        """What tempfile is about to make of a name that it has drawn."""
        making = getattr(self._here, "making", False)
        return making and self._overlay.paths.claim(os.path.abspath(os.fsdecode(path)))

    @contextmanager
    def _unless_there(self, path: Any) -> Iterator[None]:
        try:
            yield
        except FileExistsError:
            self._overlay.paths.disclaim(os.path.abspath(os.fsdecode(path)))
            raise

    # one maker for each kind of function

    def _reader(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def read(path: Any, *args: Any, **kwargs: Any) -> Any:
            found = self._overlay.reading(path)  # `readlink` gives what it is given, text or bytes
            return original(os.fsencode(found) if isinstance(path, bytes) else found, *args, **kwargs)

        return read

    def _changer(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def change(path: Any, *args: Any, **kwargs: Any) -> Any:
            overlay = self._overlay
            # A descriptor may be the real file's, where that is open for reading.
            name = path_of(path) if isinstance(path, int) else path
            whole = overlay.held(name)
            if whole is None or not overlay.exists(whole):
                return original(path, *args, **kwargs)  # which says so where it is missing
            over = overlay.writing(name, keep=True)
            if not os.path.lexists(over):
                os.makedirs(over, exist_ok=True)  # a folder's upper layer
            return original(over, *args, **kwargs)

        return change

    def _file_changer(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        change = self._changer(getattr(os, name))

        def make(_: Callable[..., Any]) -> Callable[..., Any]:
            def change_file(fd: int, *args: Any, **kwargs: Any) -> Any:
                return change(fd, *args, **kwargs)

            return change_file

        return make

    def _open(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            overlay = self._overlay
            if kwargs.get("opener") is not None:
                kwargs["opener"] = self._outside(kwargs["opener"])
            if not isinstance(mode, str) or not set(mode) & set("wax+"):
                return original(overlay.reading(file), mode, *args, **kwargs)
            whole = overlay.held(file)
            if whole is None:
                return original(file, mode, *args, **kwargs)
            if "x" in mode and overlay.exists(whole):
                raise FileExistsError(17, os.strerror(17), file)
            if mode.startswith("r") and not overlay.exists(whole):
                raise FileNotFoundError(2, os.strerror(2), file)
            return original(overlay.writing(file, keep="w" not in mode), mode, *args, **kwargs)

        return opened

    def _outside(self, opener: Callable[..., Any]) -> Callable[..., Any]:
        """The caller's own function, called from within ours: it may open something else than it was given, as
        `tempfile` does, and that is covered too."""

        def opened(*args: Any) -> Any:
            self._here.busy = False
            try:
                return opener(*args)
            finally:
                self._here.busy = True

        return opened

    def _os_open(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def opened(path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
            overlay = self._overlay
            if not flags & _WRITES:
                return original(overlay.reading(path), flags, *args, **kwargs)
            if self._is_temporary(path):
                with self._unless_there(path):
                    return original(path, flags, *args, **kwargs)
            whole = overlay.held(path)
            if whole is None:
                return original(path, flags, *args, **kwargs)
            there = overlay.exists(whole)
            if flags & os.O_EXCL and flags & os.O_CREAT and there:
                raise FileExistsError(17, os.strerror(17), path)
            if not flags & os.O_CREAT and not there:
                raise FileNotFoundError(2, os.strerror(2), path)
            return original(overlay.writing(path, keep=not flags & os.O_TRUNC), flags, *args, **kwargs)

        return opened

    def _listdir(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def listdir(path: Any = ".") -> Any:
            overlay = self._overlay
            whole = overlay.listed(path_of(path) if isinstance(path, int) else path) if overlay.used else None
            if whole is None or isinstance(path, bytes) or not _is_folder(overlay, path, whole):
                return original(path if whole is None or isinstance(path, int) else overlay.reading(path))
            return overlay.names(whole)

        return listdir

    def _scandir(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scandir(path: Any = ".") -> Any:
            overlay = self._overlay
            whole = overlay.listed(path_of(path) if isinstance(path, int) else path) if overlay.used else None
            if whole is None or not _is_folder(overlay, path, whole):
                return original(path if whole is None or isinstance(path, int) else overlay.reading(path))
            above = overlay.over_folder(whole)
            below = whole if isinstance(path, int) or overlay.lies_above(path) else path
            names = set(overlay.names(whole))
            entries: dict[str, Any] = {}
            for folder in (above, below if os.path.isdir(below) else None):
                if folder is not None:
                    with original(os.fsencode(folder) if isinstance(path, bytes) else folder) as found:
                        for entry in found:
                            if os.fsdecode(entry.name) in names and entry.name not in entries:
                                as_asked = folder is path and not isinstance(path, int)
                                entries[entry.name] = entry if as_asked else Entry(entry, path)
            return Entries(entries.values())

        return scandir

    def _mkdir(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def mkdir(path: Any, mode: int = 0o777, **kwargs: Any) -> None:
            if self._is_temporary(path):
                with self._unless_there(path):
                    original(path, mode, **kwargs)
                return
            whole = self._overlay.real(path)
            if whole is None:
                original(path, mode, **kwargs)
            else:
                self._overlay.make_folder(path, whole, mode)

        return mkdir

    def _remover(self, *, folder: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def remove(path: Any, **kwargs: Any) -> None:
                whole = self._overlay.held(path)
                if whole is None:
                    original(path, **kwargs)
                else:
                    self._overlay.remove(path, whole, folder=folder)

            return remove

        return make

    def _mover(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def move(src: Any, dst: Any, **kwargs: Any) -> None:
            overlay = self._overlay
            if overlay.held(src) is None and overlay.held(dst) is None:
                original(src, dst, **kwargs)
            else:
                overlay.move(src, dst)

        return move

    def _linker(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def link(src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
            overlay = self._overlay
            named = overlay.real(dst)
            if named is None:
                original(src, dst, *args, **kwargs)
                return
            if overlay.exists(named):
                raise FileExistsError(17, os.strerror(17), src, None, dst)
            over = overlay.writing(dst, keep=False)
            if original.__name__ == "link":
                overlay.copy(overlay.reading(src), over)
            else:
                beside = os.path.join(os.path.dirname(over), os.fsdecode(src))
                whole = os.path.join(os.path.dirname(os.path.abspath(os.fsdecode(dst))), os.fsdecode(src))
                there = overlay.reading(whole) if overlay.real(whole) and overlay.exists(whole) else whole
                original(src if os.path.lexists(beside) else there, over, *args, **kwargs)

        return link

    def _special(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Makes a pipe, say, for real: programs wait at its other end. Not in a folder that is not there for them."""

        usual = 0o600 if original.__name__ == "mknod" else 0o666

        def make(path: Any, mode: int = usual, *args: Any, **kwargs: Any) -> None:
            whole = self._overlay.real(path)
            if whole is not None and self._overlay.exists(whole):
                raise FileExistsError(17, os.strerror(17), path)
            plain = original.__name__ == "mknod" and stat.S_IFMT(mode) in (0, stat.S_IFREG)
            if whole is not None and (plain or not os.path.isdir(os.path.dirname(whole))):
                path = self._overlay.writing(path, keep=False)
            original(path, mode, *args, **kwargs)

        return make

    def _rmtree(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def rmtree(path: Any, ignore_errors: bool = False, *args: Any, **kwargs: Any) -> None:
            whole = self._overlay.listed(path)
            if whole is None:
                original(path, ignore_errors, *args, **kwargs)
            elif self._overlay.exists(whole) or not ignore_errors:
                self._overlay.remove_tree(path, whole)

        return rmtree


def _is_folder(overlay: Overlay, path: Any, whole: str) -> bool:
    """An open folder stays one when it is removed: it has no entries then."""
    return os.path.isdir(path) if isinstance(path, int) else overlay.is_folder(whole)


def raise_shield(folder: str, *, guarded: Iterable[str], free: Iterable[str]) -> None:
    """From now on, in this process and those that it forks."""
    Shield(Overlay(folder, guarded=guarded, free=free)).install()
