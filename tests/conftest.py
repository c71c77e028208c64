"""For all tests: Triton's interpreter where there is no GPU, property tests that are the same on every run, one thread
for each, the longest of them first, a clock that busy cores don't slow down, and the last words of processes that
failed.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import threading
from collections.abc import Generator, Iterator
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("fulltilt", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("fulltilt")

# Tests share the cores: threads that wait for their last one, which waits for a core, take several times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell's background jobs ignore Ctrl-C (`make test &`), and under nohup a terminal that is closed; so would what
# tests start and end by that.
for number, usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)


def _gpu_is_usable() -> bool:
    """Guessed without importing torch (most tests don't need it) or starting the driver (which a fork would break)."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1") or metadata.version("torch").endswith("+cpu"):
        return False
    return Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()


# Triton decides at its first import, whoever causes it, so this can't wait until the kernels are tested.
if not _gpu_is_usable():
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that are given more time than the others begin first: in the end nobody waits for one of them alone."""
    usual = float(config.getini("timeout") or 0)

    def is_long(item: pytest.Item) -> bool:
        given = item.get_closest_marker("timeout")
        return given is not None and given.args[0] > usual

    items.sort(key=is_long, reverse=True)


def pytest_collection_finish() -> None:
    """What is there by now is no garbage. Left among the rest, it would be looked through whenever that is collected:
    a third of a second, which what is tested asks for hundreds of times.
    """
    gc.freeze()


def pytest_unconfigure() -> None:
    """At the end all of it is garbage."""
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where a test fails by a process that it ran (`check=True`, `timeout=`), show what that process said.

    The error alone names only the command and its exit status: a rare failure would be one that nobody can explain.
    """
    report = yield
    error = call.excinfo.value if call.excinfo else None
    while error is not None:
        if isinstance(error, subprocess.CalledProcessError | subprocess.TimeoutExpired):
            for stream, said in (("stdout", error.stdout), ("stderr", error.stderr)):
                text = said.decode(errors="replace") if isinstance(said, bytes) else said
                report.sections.append((f"{stream} of the process", text or "(nothing, or not captured)"))
        error = error.__cause__ or error.__context__
    return report


_POLICY = os.sched_getscheduler(0)


@pytest.fixture(autouse=True)
def _ordinary_priority() -> Iterator[None]:
    """A library that gives its caller a real-time priority gives it to all processes that later tests start, too: those
    of the tests beside them starve, and fail by their clocks, each time another one."""
    yield
    if os.sched_getscheduler(0) != _POLICY:
        os.sched_setscheduler(0, _POLICY, os.sched_param(0))
        pytest.fail("the test has left its process with another scheduling policy")


class Hours:
    """Time that passes only where a test says so, for each thread on its own: however busy the cores are, threads that
    wait are done at the same moment, and threads that hold a lock come one after the other.
    """

    def __init__(self) -> None:
        self._main = threading.get_ident()
        self._own: dict[int, float] = {}
        self._free_at = 0.0
        self._lock = threading.RLock()

    def perf_counter(self) -> float:
        """A thread's own time. Who starts the others goes on when the last of them is done."""
        with self._lock:
            latest = max(self._own.values(), default=0.0)
            if threading.get_ident() == self._main:
                self._own = {self._main: latest}
            return self._own.setdefault(threading.get_ident(), self._own.get(self._main, 0.0))

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self._own[threading.get_ident()] = self.perf_counter() + seconds

    def hold(self, seconds: float) -> None:
        """Wait while nobody else can hold."""
        with self._lock:
            self._free_at = self._own[threading.get_ident()] = max(self.perf_counter(), self._free_at) + seconds


@pytest.fixture
def hours(monkeypatch: pytest.MonkeyPatch) -> Hours:
    """In place of the clock by which threads are compared."""
    hours = Hours()
    monkeypatch.setattr("fulltilt.measure.threads.time", hours)
    return hours
