"""Whether a folder is as it was: names, sizes and times of its files, before and after."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from fulltilt.launch.shield.paths import temporary_folders
from fulltilt.words import many, some

MOST_FILES = 20_000
"""A folder with more (a data set lies in it) is compared up to there."""
SHOWN = 3
NOT_THE_SCRIPTS = frozenset({".git", ".hg", ".svn"})
"""Who commits while a script is tried has not been disturbed by it."""

State = dict[str, tuple[int, int]]


def state(folders: Iterable[Path]) -> State:
    """Each file's size and time of writing. / and temporary folders are everybody's, ours too: what changes there says
    nothing about the script."""
    everybodys = {*temporary_folders(), os.sep}
    found: State = {}
    for folder in map(os.path.abspath, folders):
        if folder in everybodys:
            continue
        for where, inner, names in os.walk(folder):
            inner[:] = [
                name for name in inner if name not in NOT_THE_SCRIPTS and os.path.join(where, name) not in everybodys
            ]
            for name in names:
                path = os.path.join(where, name)
                try:
                    seen = os.lstat(path)
                except FileNotFoundError:  # gone since it was listed
                    continue
                found[path] = (seen.st_size, seen.st_mtime_ns)
                if len(found) >= MOST_FILES:
                    return found
    return found


def changes(before: State, after: State) -> tuple[str, ...]:
    """Sentences about what is different; none where nothing is. Files beyond the limit are not known on both sides."""
    whole = len(before) < MOST_FILES and len(after) < MOST_FILES
    made = sorted(after.keys() - before.keys()) if whole else []
    gone = sorted(before.keys() - after.keys()) if whole else []
    other = sorted(path for path in before.keys() & after.keys() if before[path] != after[path])
    return tuple(
        f"{many(len(paths), 'file was', 'files were')} {what} by something that could not be held off: "
        + some(paths, SHOWN)
        for what, paths in (("made", made), ("removed", gone), ("changed", other))
        if paths
    )
