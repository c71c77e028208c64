"""How ranks agree on the step at which all of them stop: one that stops alone leaves the others waiting for it."""

from __future__ import annotations

import os
from typing import Any, Protocol

from fulltilt.launch.job import Job

_KEY = "fulltilt/stop"


class Agreement(Protocol):
    def say(self, word: str) -> None: ...

    def said(self) -> str | None: ...


def agreement(job: Job) -> Agreement:
    """In the folder that all ranks of one command share; through torch's store where each has its own."""
    return InStore() if job.agree_by_store else InFolder(job.out)


class InFolder:
    def __init__(self, folder: str) -> None:
        self._file = os.path.join(folder, "stop")

    def say(self, word: str) -> None:
        with open(f"{self._file}.part", "w") as file:
            file.write(word)
        os.replace(f"{self._file}.part", self._file)

    def said(self) -> str | None:
        if not os.path.exists(self._file):
            return None
        with open(self._file) as file:
            return file.read()


class InStore:
    """The store at which the process group has met: on another machine too."""

    def say(self, word: str) -> None:
        self._store().set(_KEY, word)

    def said(self) -> str | None:
        store = self._store()
        return store.get(_KEY).decode() if store.check([_KEY]) else None

    def _store(self) -> Any:
        import torch.distributed as dist

        return dist.distributed_c10d._get_default_store()
