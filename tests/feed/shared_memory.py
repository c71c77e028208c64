"""What processes have in /dev/shm: theirs alone, for tests of other processes may run beside."""

from __future__ import annotations

import os
from pathlib import Path


def in_shared_memory(*pids: int) -> set[str]:
    """Files in /dev/shm that these processes have mapped or open; what has no name any more can't be left behind."""
    found = set()
    for pid in pids:
        found |= {line.split(maxsplit=5)[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()}
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            try:
                found.add(os.readlink(fd))
            except FileNotFoundError:  # closed meanwhile
                continue
    return {name for name in found if name.startswith("/dev/shm/") and os.path.exists(name)}
