"""A folder laid over the file system: what is written goes there, what is read is looked for there first.

    /home/me/run/best.pt  written ─► OVERLAY/files/home/me/run/best.pt
    /home/me/run/old.pt   removed ─► OVERLAY/gone/home/me/run/old.pt     (an empty file that says so)

Several processes share it: all that is known stands on disk. It uses `os` and `shutil` as they are; the shield, which
puts others in their place, lets through what comes from here.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterable
from typing import Any

CACHE_VARIABLES = ("XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_HOME", "HF_HOME")
CACHE_FOLDERS = ("~/.cache", "~/.triton", "~/.nv")
SYSTEM_FOLDERS = ("/dev", "/proc", "/sys", "/run")


class Overlay:
    """Which paths are kept from being written, and what stands in their place."""

    def __init__(self, folder: str, *, guarded: Iterable[str], free: Iterable[str] = ()) -> None:
        """`guarded` folders are covered wherever they lie, in a cache or in /dev/shm, too; within them, and elsewhere,
        `free` ones and caches never are. All others unless they are temporary."""
        self._files = os.path.join(folder, "files")
        self._gone = os.path.join(folder, "gone")
        temporary = _tree(tempfile.gettempdir())
        caches = [os.path.expanduser(one) for one in CACHE_FOLDERS]
        caches += [os.environ[name] for name in CACHE_VARIABLES if os.environ.get(name)]
        self._never = tuple({_tree(one) for one in (folder, *free, *SYSTEM_FOLDERS, *caches)})
        # A script that is run in / or in /tmp itself must not take everybody's temporary files with it.
        self._guarded = tuple({_tree(one) for one in guarded if not temporary.startswith(_tree(one))})
        self._temporary = temporary

    def covers(self, path: str) -> bool:
        path = path + os.sep
        never, guarded = _nearest(path, self._never), _nearest(path, self._guarded)
        if never or guarded:
            return guarded >= never
        return not path.startswith(self._temporary)

    def real(self, path: Any) -> str | None:
        """The absolute path where it is covered; None for all that is left alone (file descriptors too)."""
        if isinstance(path, int) or path is None:
            return None
        whole = os.path.abspath(os.fsdecode(path))
        return whole if self.covers(whole) else None

    @property
    def used(self) -> bool:
        """Anything was written or removed so far, by any process."""
        return _lexists(self._files) or _lexists(self._gone)

    def reading(self, path: Any) -> Any:
        """Where to read `path` from. Raises FileNotFoundError where the script has removed it."""
        if not self.used or (whole := self.real(path)) is None:
            return path
        over = self._over(whole)
        if _lexists(over):
            return over
        if self._is_gone(whole):
            raise _missing(path)
        return path

    def writing(self, path: Any, *, keep: bool) -> Any:
        """Where to write `path`; with `keep` what it holds is there already."""
        whole = self.real(path)
        if whole is None:
            return path
        over = self._over(whole)
        parent = os.path.dirname(whole)
        if not self.exists(parent):
            raise _missing(path)
        os.makedirs(os.path.dirname(over), exist_ok=True)
        if keep and not _lexists(over) and not self._is_gone(whole) and os.path.isfile(whole):
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
        if folder and self.names(whole):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        if _lexists(over):
            (os.rmdir if folder else os.unlink)(over)
        if not self._is_gone(whole) and _lexists(whole):
            self._mark_gone(whole)

    def remove_tree(self, path: Any, whole: str) -> None:
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
        whole = self.real(source)
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
        if not _lexists(over):
            self._copy_up(whole, over)
        if not self._is_gone(whole) and _lexists(whole):
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

    def _over(self, whole: str) -> str:
        return self._files + whole

    def _is_gone(self, whole: str) -> bool:
        """It or a folder around it was removed; what was made anew since then lies in the upper layer."""
        if not _lexists(self._gone):
            return False
        while len(whole) > 1:
            if os.path.isfile(self._gone + whole):
                return True
            whole = os.path.dirname(whole)
        return False

    def _mark_gone(self, whole: str) -> None:
        mark = self._gone + whole
        if os.path.isdir(mark):
            shutil.rmtree(mark)
        os.makedirs(os.path.dirname(mark), exist_ok=True)
        os.close(os.open(mark, os.O_CREAT | os.O_WRONLY))

    def _copy_up(self, whole: str, over: str) -> None:
        os.makedirs(os.path.dirname(over), exist_ok=True)
        if os.path.isdir(whole):
            shutil.copytree(whole, over, symlinks=True)
        else:
            shutil.copy2(whole, over, follow_symlinks=False)


def _lexists(path: str) -> bool:
    try:
        os.lstat(path)
    except (OSError, ValueError):
        return False
    return True


def _nearest(path: str, folders: Iterable[str]) -> int:
    """How long the name of the innermost of these folders is that the path lies in; 0 for none."""
    return max((len(folder) for folder in folders if path.startswith(folder)), default=0)


def _tree(folder: str) -> str:
    return os.path.abspath(folder).rstrip(os.sep) + os.sep


def _missing(path: Any) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
