"""One process and its descendants read again and again: CPU, memory, and their memory on each GPU."""

from __future__ import annotations

from collections.abc import Mapping

import psutil

from fulltilt.errors import InputError
from fulltilt.machine.sample import ProcessSample


class ProcessReader:
    """Reads a process tree. Looking for descendants goes through every process there is, so it is a call of its own."""

    def __init__(self, pid: int) -> None:
        try:
            self._root = psutil.Process(pid)
            self.name = self._root.name()
        except (psutil.NoSuchProcess, ValueError, OverflowError):
            raise InputError(
                f"--pid: no process {pid} is running; name one that is (see `ps` or `nvidia-smi`)"
            ) from None
        self.pid = pid
        self._tree = {pid: self._root}
        self._seconds: dict[int, float] = {}
        self._before: float | None = None

    def prime(self, at: float) -> None:
        """Find the descendants and take the counts from which the first reading will be the difference."""
        self.find_descendants()
        self.read(at, {})

    @property
    def ended(self) -> bool:
        """Whether the process is gone, or left only its exit status behind."""
        try:
            return not self._root.is_running() or self._root.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def find_descendants(self) -> None:
        """Look again which processes there are."""
        try:
            found = {child.pid: child for child in self._root.children(recursive=True)}
        except psutil.NoSuchProcess:
            found = {}
        self._tree = {self.pid: self._root, **found}

    def read(self, at: float, gpu_processes: Mapping[str, Mapping[str, int]]) -> ProcessSample:
        """The tree since the last reading; `gpu_processes` is, for each GPU label, process id -> bytes."""
        seconds: dict[int, float] = {}
        resident = 0
        for pid, process in self._tree.items():
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    resident += process.memory_info().rss
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            seconds[pid] = times.user + times.system
        spent = sum(after - self._seconds[pid] for pid, after in seconds.items() if pid in self._seconds)
        elapsed = None if self._before is None else at - self._before
        self._seconds, self._before = seconds, at
        on_gpus = {
            label: sum(size for pid, size in sizes.items() if int(pid) in self._tree)
            for label, sizes in gpu_processes.items()
        }
        return ProcessSample(
            pid=self.pid,
            name=self.name,
            cpu=100 * spent / elapsed if elapsed else None,
            ram_used=resident or None,
            gpu_mem={label: size for label, size in on_gpus.items() if size} or None,
            count=len(seconds),
        )
