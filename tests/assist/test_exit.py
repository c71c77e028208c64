"""How processes with tasks pending end: real interpreters, real signals."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest


def start(code: str) -> subprocess.Popen[str]:
    code = "import time, threading, sys, os, signal\nfrom fulltilt import CPUAssistedTraining\n" + textwrap.dedent(code)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_exit_finishes_what_is_pending():
    process = start("""
        assist = CPUAssistedTraining(2)
        def task(n):
            time.sleep(0.01)
            os.write(1, b"%d\\n" % n)
        for n in range(20):
            assist.submit(task, n)
        """)
    out, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (0, "")
    assert sorted(map(int, out.split())) == list(range(20))


def test_exit_does_not_wait_for_ever():
    process = start("""
        from fulltilt.assist import pool
        pool.EXIT_SECONDS = 0.3
        assist = CPUAssistedTraining(1)
        stuck = assist.submit(time.sleep, 1000)
        never = assist.submit(print, "never")
        never.add_done_callback(lambda f: print("cancelled:", f.cancelled()))
        """)
    out, error = process.communicate(timeout=30)
    assert process.returncode == 0
    assert out == "cancelled: True\n"
    assert "1 of the pool's threads are stuck" in error


def test_an_error_that_nobody_caught_ends_the_process():
    process = start("""
        assist = CPUAssistedTraining(2)
        assist.submit(print, "done")
        raise SystemError("the loop is broken")
        """)
    out, error = process.communicate(timeout=30)
    assert process.returncode == 1
    assert out == "done\n"
    assert "the loop is broken" in error


@pytest.mark.parametrize("where", ["future.result()", "time.sleep(1000)", "assist.close()"])
def test_ctrl_c_in_the_middle(where):
    process = start(f"""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from fulltilt.assist import pool
        pool.EXIT_SECONDS = 0.3
        assist = CPUAssistedTraining(2)
        future = assist.submit(time.sleep, 1000)
        print("ready", flush=True)
        {where}
        """)
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode in (-signal.SIGINT, 130)
    assert "KeyboardInterrupt" in error


def test_ctrl_c_while_a_process_begins_is_the_trainers_alone():
    process = start("""
        assist = CPUAssistedTraining(1)
        assist.register("where", os.getpid, run_in="processes")
        where = assist.submit("where")
        while not assist._processes.pids:
            time.sleep(0.001)
        os.kill(assist._processes.pids[0], signal.SIGINT)
        print(where.result() == assist._processes.pids[0])
        """)
    out, error = process.communicate(timeout=30)
    assert (process.returncode, out, error) == (0, "True\n", "")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_no_process_is_left_behind(how):
    process = start("""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from fulltilt.assist import pool
        pool.EXIT_SECONDS = 0.3
        assist = CPUAssistedTraining(2)
        assist.register("nap", time.sleep, run_in="processes")
        assist.register("where", os.getpid, run_in="processes")
        first = assist.submit("nap", 1000)
        print(assist.submit("where").result(), *assist._processes.pids, flush=True)
        first.result()
        """)
    pids = set(map(int, process.stdout.readline().split()))
    assert len(pids) == 2  # one is idle, one in the middle of its task
    process.send_signal(how)
    process.communicate(timeout=30)
    assert process.returncode == -how
    end = time.monotonic() + 10
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
        assert time.monotonic() < end, "a process is still there"
        time.sleep(0.02)


def test_a_fork_says_that_the_threads_are_elsewhere():
    process = start("""
        import multiprocessing, warnings
        warnings.simplefilter("ignore")  # that forking with threads is risky
        assist = CPUAssistedTraining(2)
        assist.register("where", os.getpid, run_in="processes")
        helper = assist.submit("where").result()
        done = threading.Event()
        pending = assist.submit(done.wait, 60)
        if (child := os.fork()) == 0:
            for use in (lambda: assist.submit(int), pending.result):
                try:
                    use()
                except ValueError as error:
                    print(error, flush=True)
            assist.close()
            multiprocessing.process._children.clear()  # its own exit handler would end those of the first process
            sys.exit(0)  # exit handlers run
        os.waitpid(child, 0)
        done.set()
        print(assist.submit("where").result() == helper)  # which the other's close() has left alone
        """)
    out, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (0, "")
    first, second, third = out.splitlines()
    assert "make the pool in the process that uses it" in first
    assert "Take results where they were submitted" in second
    assert third == "True"
