"""Which paths are covered: all but the system's, caches, and what is temporary by its nature.

A temporary folder is everybody's: what lies in it by a name that somebody chose (/tmp/run1) is covered as it would be
elsewhere; what `tempfile` makes there during a trial is not, for compilers, encoders and other programs are handed such
names and have to find them. Several processes share a trial, so these names stand on disk:

    mkdtemp() makes /tmp/tmpab12cd ─► OVERLAY/own/tmp/tmpab12cd     (an empty file that says so)
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from typing import Literal

CACHE_VARIABLES = (
    *("XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TORCH_HOME"),
    *("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE"),
)
CACHE_FOLDERS = ("~/.cache", "~/.triton", "~/.nv")
SYSTEM_FOLDERS = ("/dev", "/proc", "/sys", "/run")
MIXED = ("torchinductor_", "torch_extensions/", "ray/")
"""How names in a temporary folder begin below which other programs write beside Python: inductor's compiler, ninja with
its compilers (where XDG_CACHE_HOME is the temporary folder), Ray's servers. Others need no entry: they are made by
tempfile (torchelastic_…, pymp-…, matplotlib-…), or Python never touches them (torch-shm-dir-…, nccl-…, sem.…)."""
MOST_KNOWN = 10_000

Kind = Literal["left alone", "temporary", "guarded"]


def temporary_folders() -> dict[str, str]:
    """Those that everybody writes into, as they may be spelt, and without links. /tmp is one also where TMPDIR names
    another: programs that want short paths don't ask."""
    found = {}
    for folder in (tempfile.gettempdir(), "/tmp", "/dev/shm"):
        real = os.path.realpath(folder)
        found[os.path.abspath(folder)] = found[real] = real
    return found


class Paths:
    """Arguments as for `Overlay`, whose folder this is."""

    def __init__(self, folder: str, *, guarded: Iterable[str], free: Iterable[str]) -> None:
        self._own = os.path.join(folder, "own")
        self._known: dict[str, bool] = {}
        self._temporary = {tree(spelt): tree(real) for spelt, real in temporary_folders().items()}
        caches = [os.path.expanduser(one) for one in CACHE_FOLDERS]
        caches += [os.environ[name] for name in CACHE_VARIABLES if os.environ.get(name)]
        kinds: dict[str, Kind] = {tree(one): "left alone" for one in (folder, *free, *SYSTEM_FOLDERS, *caches)}
        # Where a cache is the temporary folder itself, /tmp/run1 is no cache's all the same.
        kinds |= dict.fromkeys(self._temporary, "temporary")
        # A script that is run in / or in /tmp itself must not take everybody's temporary files with it.
        around = [one for one in map(tree, guarded) if not any(inner.startswith(one) for inner in self._temporary)]
        kinds |= dict.fromkeys(around, "guarded")
        self._kinds = sorted(kinds.items(), key=lambda item: -len(item[0]))  # the innermost comes first

    def covers(self, path: str) -> bool:
        path += os.sep
        for folder, kind in self._kinds:
            if path.startswith(folder):
                return kind == "guarded" or (kind == "temporary" and not self._is_temporary(path))
        return True

    def is_temporary_folder(self, path: str) -> bool:
        return path + os.sep in self._temporary

    def claim(self, path: str) -> bool:
        """Whether `path`, a name that tempfile has drawn, is to be made for real. Other processes leave it alone from
        now on, too: none of them can have asked for it before."""
        folder, name = os.path.split(path)
        if not self.is_temporary_folder(folder):
            return False
        real = self._temporary[folder + os.sep] + name
        os.makedirs(os.path.dirname(self._own + real), exist_ok=True)
        os.close(os.open(self._own + real, os.O_CREAT | os.O_WRONLY))
        self._known[real] = True
        return True

    def disclaim(self, path: str) -> None:
        """There was somebody else's of that name."""
        folder, name = os.path.split(path)
        real = self._temporary[folder + os.sep] + name
        os.unlink(self._own + real)
        self._known[real] = False

    def _is_temporary(self, path: str) -> bool:
        """A temporary folder itself, or at or below a name in it that is left alone. One may lie within another."""
        for folder, real in self._temporary.items():
            if path.startswith(folder):
                end = path.find(os.sep, len(folder))
                if end < 0 or self._is_own(real, path[len(folder) : end]):
                    return True
        return False

    def _is_own(self, folder: str, name: str) -> bool:
        path = folder + name
        known = self._known.get(path)
        if known is None:
            if len(self._known) >= MOST_KNOWN:  # a data set's files, all in one folder
                self._known.clear()
            known = (name + os.sep).startswith(MIXED) or os.path.isfile(self._own + path)
            self._known[path] = known
        return known


def tree(folder: str) -> str:
    return os.path.abspath(folder).rstrip(os.sep) + os.sep
