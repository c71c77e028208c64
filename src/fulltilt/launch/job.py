"""What a watched process is asked to do: written by the parent, read by every process that the script starts."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

VARIABLE = "FULLTILT_JOB"
"""The environment variable with the file's path."""
LAUNCHER = "FULLTILT_LAUNCHER"
"""Process id of who started the command: its child is the command itself."""
BEGUN = "begun"
"""A file that is there, beside what is seen, from the first step on."""
REPORT = "rank-{rank}-{pid}.json"
"""What was seen, of one process."""
AS_IS = "as-is-{rank}-{pid}.json"
"""The same, while limits are measured behind it: it is there whatever becomes of those."""

NO_ROOM = "fulltilt leaves this as it is and has the script change a copy"
"""How an error begins of a script that can't be tried, because a file is too large to be copied."""

FULL = "the temporary folder is full, where fulltilt keeps what the script writes meanwhile"
"""How a note begins of a script that has failed beside that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    out: str
    """Folder for what is seen."""
    mode: str = "as is"
    settings: dict[str, Any] = field(default_factory=dict)
    max_steps: int = 200
    max_seconds: float = 120.0
    full: bool = False
    """Watch until the script ends."""
    then: tuple[str, ...] = ()
    """Modes whose limits are measured behind the last step, which those modes start the script once more for."""
    seed: int | None = None
    tie_draws: bool = False
    """Random draws of a sample, and of a batch that is put together, depend on these alone, not on the worker."""
    tie_dropout: bool = False
    """What is dropped depends on the seed alone, not on how the model is computed."""
    shield: str | None = None
    """Folder that takes what the script writes; None lets it write."""
    guarded: tuple[str, ...] = ()
    """Folders that are covered by it wherever they lie."""
    agree_by_store: bool = False
    """Ranks have folders of their own (each was started by a watcher of its own): they agree through torch's store."""
    starts_ranks: bool = False
    """The command is a torchrun: its children are what trains."""
    lets_go: bool = False
    """Nothing is held that the script lets go of, be it needed for what is said at the end: it may want the memory."""
    watch: bool = True
    """False only applies the settings, and sees nothing."""
    command: tuple[str, ...] = ()

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))


def read(path: Path) -> Job:
    data = json.loads(path.read_text())
    return Job(
        **{**data, "command": tuple(data["command"]), "guarded": tuple(data["guarded"]), "then": tuple(data["then"])}
    )


def given() -> Job | None:
    """The job of this process, where there is one."""
    named = os.environ.get(VARIABLE)
    if not named or not Path(named).exists():
        return None
    return read(Path(named))
