"""Tasks for processes, which have to find them by import."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time


def count(n):
    """Pure Python: it holds the interpreter lock."""
    total = 0
    for k in range(n):
        total += k * k
    return total


def nap(seconds):
    time.sleep(seconds)


def hold(seconds):
    """Hold the interpreter lock for so long, however busy the cores are: a call from C that does not release it."""
    ctypes.PyDLL(None).usleep(round(1e6 * seconds))


def where():
    return os.getpid()


def interrupt_another():
    code = "import signal, sys; signal.signal(signal.SIGINT, lambda *_: sys.exit(7)); print(flush=True); input()"
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        other.send_signal(signal.SIGINT)
        try:
            return other.wait(20)
        finally:
            other.kill()


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(path):
    if not os.path.exists(path):
        with open(path, "w"):
            pass
        die()
    return "alive"


def fail():
    raise LookupError("nothing there")


def module():
    """A result that can't be sent."""
    return os
