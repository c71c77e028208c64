"""Tasks in real processes: that they are there, die, are ended, and leave nothing behind."""

from __future__ import annotations

import importlib
import os
import re
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
import torch

from fulltilt import CPUAssistedTraining
from fulltilt.assist.placing import Trial, place
from fulltilt.assist.processes import Processes, packed
from fulltilt.errors import InputError, TaskError, TaskTimeoutError, WorkerError


@pytest.fixture(scope="module")
def work():
    """The module of tasks, under a name that spawned processes can import too: they are given our sys.path."""
    sys.path.insert(0, str(Path(__file__).parent))
    yield importlib.import_module("work")
    sys.path.remove(str(Path(__file__).parent))


@pytest.mark.parametrize(
    ("seen", "where", "why"),
    [
        ({"seconds_per_call": 0.01, "speedup": 1.9}, "threads", "2 threads do 1.90 times the work of one"),
        ({"seconds_per_call": 0.01, "speedup": 1.0}, "processes", "it holds the interpreter lock"),
        ({"seconds_per_call": 0.0001, "speedup": 0.9}, "threads", "100 µs: too short"),
        ({"problem": "it could not be tried"}, "threads", "it could not be tried"),
        ({}, "threads", "one core"),
    ],
)
def test_where_a_task_runs(seen, where, why):
    decision = place(Trial(threads=2, **seen))
    assert decision.value == where
    assert why in decision.reason


def test_a_process_does_the_task_dies_is_replaced_and_goes(work, tmp_path):
    with CPUAssistedTraining(1) as assist:
        for name in ("count", "where", "die", "die_once", "fail", "module"):
            assist.register(name, getattr(work, name), run_in="processes")
        first = assist.submit("where").result(60)
        assert first != os.getpid()
        assert assist.submit("where").result(60) == first  # one process, used again
        assert assist.submit("count", 10).result(60) == 285
        with pytest.raises(TaskError, match="'fail' failed: LookupError: nothing there") as told:
            assist.submit("fail").result(60)
        assert re.search(rf"in process {first}:\n.*, in fail\n", told.value.__cause__.__notes__[0], re.DOTALL)
        with pytest.raises(TaskError, match="its result, of type module, can't be sent back"):
            assist.submit("module").result(60)
        with pytest.raises(TaskError, match=rf"the process {first} that was at it ended with signal SIGKILL") as told:
            assist.submit("die").result(60)
        assert isinstance(told.value.__cause__, WorkerError)
        assert assist.submit("die_once", str(tmp_path / "seen"), retries=1).result(60) == "alive"
        last = assist.submit("where").result(60)
        os.kill(last, 9)  # while it is idle
        assert assist.submit("where").result(60) not in (first, last)
        left = assist._processes.pids
    assert left
    assert not any(psutil.pid_exists(pid) for pid in left)


def test_a_timeout_ends_the_process(work):
    with CPUAssistedTraining(1) as assist:
        assist.register("nap", work.nap, run_in="processes")
        assist.submit("nap", 0.0).result(60)
        began = time.perf_counter()
        with pytest.raises(TaskTimeoutError, match=r"'nap' took longer than its 0\.3 s"):
            assist.submit("nap", 1000, timeout=0.3).result()
        assert time.perf_counter() - began < 60, "it does not wait for the 1000 s"
        assist.submit("nap", 0.0).result(60)  # by the same thread, with another process
        assert assist.stats().abandoned_workers == 0


def test_a_program_that_a_task_starts_can_be_interrupted(work):
    with CPUAssistedTraining(1) as assist:
        assist.register("interrupt", work.interrupt_another, run_in="processes")
        assert assist.submit("interrupt").result(60) == 7


def test_tensors_travel(work):
    with CPUAssistedTraining(1) as assist:
        assist.register("sum", torch.sum, run_in="processes")
        assert assist.submit("sum", torch.arange(10)).result(60) == 45


def test_a_trial_sees_what_holds_the_interpreter_lock(work):
    with CPUAssistedTraining(2) as assist:
        # Both sleep, so that what else the cores do is seen in neither: one has the lock meanwhile.
        assert assist.register("nap", work.nap, run_in="auto", example=(0.02,)).value == "threads"
        holding = assist.register("hold", work.hold, run_in="auto", example=(0.02,))
        assert (holding.value, holding.evidence["threads"]) == ("processes", 2)
        assert assist.places["hold"] is holding
        failing = assist.register("fail", work.fail, run_in="auto")
        assert (failing.value, "LookupError" in failing.reason) == ("threads", True)
        assist.submit("hold", 0.0).result(60)


def test_what_cannot_be_sent_is_said_when_it_is_registered():
    with CPUAssistedTraining(1) as assist:
        with pytest.raises(InputError, match="can't be sent to another process"):
            assist.register("local", lambda: 1, run_in="processes")
        with pytest.raises(InputError, match="run_in is 'elsewhere'"):
            assist.register("local", int, run_in="elsewhere")


def test_a_process_that_was_left_in_mid_talk_is_not_asked_again(monkeypatch):
    processes = Processes()
    child = processes.borrow()
    monkeypatch.setattr(child._ours, "recv_bytes", Mock(side_effect=KeyboardInterrupt), raising=False)
    with pytest.raises(KeyboardInterrupt):
        child.ask(packed(int, (), {}))  # its answer would be taken for the next one's
    processes.give_back(child)
    assert processes.pids == []
    processes.close()


def test_a_process_that_never_began_says_what_it_may_be():
    processes = Processes()
    child = processes.borrow()
    child.kill()
    with pytest.raises(WorkerError, match=r"signal SIGKILL, before it began; .* under if __name__ == '__main__':"):
        child.ask(packed(int, (), {}))
    processes.give_back(child)
    processes.close()
