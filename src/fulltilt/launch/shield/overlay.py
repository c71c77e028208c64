"""A folder laid over the file system: what is written goes there, what is read is looked for there first.

    /home/me/run/best.pt  written ─► OVERLAY/files/home/me/run/best.pt
    /home/me/run/old.pt   removed ─► OVERLAY/gone/home/me/run/old.pt     (an empty file that says so)

Which paths it lies over is paths.py's. Several processes share it: all that is known stands on disk. It uses `os` and
`shutil` as they are; the shield, which puts others in their place, lets through what comes from here.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable
from typing import Any

from fulltilt.launch.job import NO_ROOM
from fulltilt.launch.shield.paths import Paths, tree

_lstat = os.lstat
"""As it was before the shield: it is called for every file that a script opens."""
MOST_OF_FREE = 0.5


class Overlay:
    """Which paths are kept from being written, and what stands in their place."""

    def __init__(self, folder: str, *, guarded: Iterable[str], free: Iterable[str] = ()) -> None:
        """`guarded` folders are covered wherever they lie, in a cache, too; within them, and elsewhere, `free` ones and
        caches never are. All others are, with few exceptions: see paths.py."""
        self._files = os.path.join(folder, "files")
        self._gone = os.path.join(folder, "gone")
        # By the name that we gave it, and as the system spells it where it names an open folder.
        self._layers = tuple(dict.fromkeys((tree(self._files), tree(os.path.realpath(self._files)))))
        self._used = False
        self.paths = Paths(folder, guarded=guarded, free=free)

    def real(self, path: Any) -> str | None:
        """The absolute path where it is covered; None for all that is left alone (file descriptors too)."""
        if isinstance(path, int) or path is None:
            return None
        whole = self._whole(path)
        return whole if self.paths.covers(whole) else None

    def held(self, path: Any) -> str | None:
        """The same for a path that is to be written or removed. Pipes, sockets and devices hold nothing to lose, and
        who waits at their other end waits there."""
        whole = self.real(path)
        if whole is None or _lexists(self._over(whole)) or not _is_special(whole):
            return whole
        return None

    def listed(self, path: Any) -> str | None:
        """The same for a folder whose entries are meant: a temporary one is left alone itself, not what is in it."""
        if isinstance(path, int) or path is None:
            return None
        whole = self._whole(path)
        return whole if self.paths.is_temporary_folder(whole) or self.paths.covers(whole) else None

    @property
    def used(self) -> bool:
        """Anything was written or removed so far, by any process."""
        self._used = self._used or _lexists(self._files) or _lexists(self._gone)
        return self._used

    def reading(self, path: Any) -> Any:
        """Where to read `path` from. Raises FileNotFoundError where the script has removed it."""
        if not self.used or (whole := self.real(path)) is None:
            return path
        over = self._over(whole)
        if _lexists(over):
            return over
        if self._is_gone(whole):
            raise _missing(path)
        return whole if self.lies_above(path) else path

    def writing(self, path: Any, *, keep: bool) -> Any:
        """Where to write `path`; with `keep` what it holds is there already."""
        whole = self.held(path)
        if whole is None:
            return path
        over = self._over(whole)
        parent = os.path.dirname(whole)
        if not self.exists(parent):
            raise _missing(path)
        os.makedirs(os.path.dirname(over), exist_ok=True)
        if keep and not _lexists(over) and not self._is_gone(whole) and os.path.isfile(whole):
            self._find_room(whole)
            shutil.copyfile(whole, over)
        return over

    def exists(self, whole: str) -> bool:
        if _lexists(self._over(whole)):
            return True
        return not self._is_gone(whole) and _lexists(whole)

    def remove(self, path: Any, whole: str, *, folder: bool) -> None:
        """A file, or an empty folder."""
        if not self.exists(whole):
            raise _missing(path)
        over = self._over(whole)
        at = over if _lexists(over) else whole
        if (os.path.isdir(at) and not os.path.islink(at)) != folder:
            number = errno.ENOTDIR if folder else errno.EISDIR
            raise OSError(number, os.strerror(number), path)
        if folder and self.names(whole):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        if _lexists(over):
            (os.rmdir if folder else os.unlink)(over)
        if not self._is_gone(whole) and _lexists(whole):
            self._mark_gone(whole)

    def remove_tree(self, path: Any, whole: str) -> None:
        if self.paths.is_temporary_folder(whole):  # it stays, with what is left alone in it
            for inner in (os.path.join(whole, name) for name in self.names(whole)):
                if self.held(inner) is not None:
                    if self.is_folder(inner):
                        self.remove_tree(inner, inner)
                    else:
                        self.remove(inner, inner, folder=False)
            return
        if not self.exists(whole):
            raise _missing(path)
        over = self._over(whole)
        if _lexists(over):
            shutil.rmtree(over)
        if not self._is_gone(whole) and _lexists(whole):
            self._mark_gone(whole)

    def make_folder(self, path: Any, whole: str, mode: int) -> None:
        if self.exists(whole):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        os.mkdir(self.writing(path, keep=False), mode)

    def move(self, source: Any, target: Any) -> None:
        whole = self.held(source)
        aim = self.writing(target, keep=False)
        if whole is None:
            if aim is target:
                os.replace(source, target)
            else:
                shutil.move(source, aim)
            return
        if not self.exists(whole):
            raise _missing(source)
        over = self._over(whole)
        if not self._is_gone(whole) and _lexists(whole):
            if not _lexists(over) or os.path.isdir(over):
                self._find_room(whole)
                self._copy_up(whole, over)
            self._mark_gone(whole)
        if aim is target:  # out of the covered part: to a temporary folder, say
            shutil.move(over, target)
        else:
            os.replace(over, aim)

    def names(self, whole: str) -> list[str]:
        """Of a folder's entries, in both layers."""
        over = self._over(whole)
        above = os.listdir(over) if os.path.isdir(over) else []
        below: list[str] = []
        if not self._is_gone(whole) and os.path.isdir(whole):
            below = [name for name in os.listdir(whole) if not self._is_gone(os.path.join(whole, name))]
        return sorted({*above, *below})

    def is_folder(self, whole: str) -> bool:
        over = self._over(whole)
        if os.path.lexists(over):
            return os.path.isdir(over)
        return not self._is_gone(whole) and os.path.isdir(whole)

    def over_folder(self, whole: str) -> str | None:
        """The upper layer of a folder, where it has one."""
        over = self._over(whole)
        return over if os.path.isdir(over) else None

    def _whole(self, path: Any) -> str:
        """The path that the script means: a folder that it stands in or holds open may be one of the upper layer."""
        whole = os.path.abspath(os.fsdecode(path))
        for layer in self._layers:
            if whole.startswith(layer):
                return whole[len(layer) - 1 :]
        return whole

    def lies_above(self, path: Any) -> bool:
        """In the upper layer, by its own name."""
        return os.path.abspath(os.fsdecode(path)).startswith(self._layers)

    def _over(self, whole: str) -> str:
        return self._files + whole

    def _is_gone(self, whole: str) -> bool:
        """It or a folder around it was removed; what was made anew since then lies in the upper layer.

        From the outermost folder on: mostly nothing was removed there, and that is known after one look."""
        end = 0
        while end < len(whole):
            end = whole.find(os.sep, end + 1)
            end = len(whole) if end < 0 else end
            try:
                found = _lstat(self._gone + whole[:end])
            except (OSError, ValueError):
                return False
            if not stat.S_ISDIR(found.st_mode):
                return True
        return False

    def _mark_gone(self, whole: str) -> None:
        mark = self._gone + whole
        if os.path.isdir(mark):
            shutil.rmtree(mark)
        os.makedirs(os.path.dirname(mark), exist_ok=True)
        os.close(os.open(mark, os.O_CREAT | os.O_WRONLY))

    def copy(self, source: Any, over: str) -> None:
        """In place of a second name for a file, which would be changed under both."""
        self._find_room(os.fsdecode(source))
        shutil.copy2(source, over)

    def _find_room(self, whole: str) -> None:
        """Raises where a copy of the file or folder would take more than half of what is free."""
        size = _size(whole)
        os.makedirs(self._files, exist_ok=True)
        free = shutil.disk_usage(self._files).free
        if size > free * MOST_OF_FREE:
            told = (
                f"{NO_ROOM}: that takes {size / 1e9:,.1f} GB, of {free / 1e9:,.1f} GB free in {tempfile.gettempdir()}, "
                "and half of these are left to others. Let TMPDIR name a folder with more room"
            )
            raise OSError(errno.ENOSPC, told, whole)

    def _copy_up(self, whole: str, over: str) -> None:
        """What the upper layer of a file or folder has not got yet, and was not removed."""
        if os.path.isdir(whole) and not os.path.islink(whole):
            if not _lexists(over):
                os.makedirs(over)
                shutil.copystat(whole, over)
            for name in self.names(whole) if os.path.isdir(over) else ():
                self._copy_up(os.path.join(whole, name), os.path.join(over, name))
        elif not _lexists(over):
            os.makedirs(os.path.dirname(over), exist_ok=True)
            shutil.copy2(whole, over, follow_symlinks=False)


def _size(path: str) -> int:
    """Of a file, or of all that are in a folder."""
    if os.path.islink(path) or not os.path.isdir(path):
        return _lstat(path).st_size
    return sum(_lstat(os.path.join(folder, name)).st_size for folder, _, names in os.walk(path) for name in names)


def _lexists(path: str) -> bool:
    try:
        _lstat(path)
    except (OSError, ValueError):
        return False
    return True


def _is_special(path: str) -> bool:
    try:
        kind = _lstat(path).st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(kind) or stat.S_ISDIR(kind) or stat.S_ISLNK(kind))


def _missing(path: Any) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
