"""One contestant, alone in its process: clean CUDA state, clean switches, nothing left over from another.

python -m fulltilt.bench.guides.contestant ORDER PARENT
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import logging
import os
import signal
import sys
import traceback
from contextlib import suppress
from typing import NoReturn

import psutil

from fulltilt.bench.ground import said
from fulltilt.bench.guides.order import CONTESTANTS, WHERE, Answer, Order
from fulltilt.launch.ending import ended_tidily

_PR_SET_PDEATHSIG = 1


def main(text: str) -> int:
    order = Order.from_json(text)
    one = next(one for one in CONTESTANTS if one.key == order.contestant)
    logging.getLogger("fulltilt").addHandler(logging.NullHandler())
    answer = Answer()
    try:
        importlib.import_module(f"fulltilt.bench.guides.{one.module}").run(order, answer)
    except Exception as error:
        answer.problem = said(error)
        raise
    finally:
        answer.write(order.answer)
    return 0


def end_with(parent: int) -> None:
    """A contestant that nobody waits for any more must not go on in the GPU's memory."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before that
        sys.exit(128 + signal.SIGKILL)


def leave(status: int) -> NoReturn:
    """At once: what was found is written, and torch would wait five seconds for each worker of a loader left midway."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            child.kill()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def contest(text: str, parent: int) -> NoReturn:
    """The whole process."""
    faulthandler.enable()
    end_with(parent)
    status = 1
    with ended_tidily():
        faulthandler.register(WHERE, all_threads=False)  # after it: this signal asks where we are, and ends nothing
        try:
            status = main(text)
        except SystemExit as asked:
            status = asked.code if isinstance(asked.code, int) else 1
        except BaseException:
            traceback.print_exc()
        leave(status)


if __name__ == "__main__":
    contest(sys.argv[1], int(sys.argv[2]))
