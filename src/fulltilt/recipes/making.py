"""Samples made by several processes: in threads, what is short waits for the interpreter lock more than it works.

python -m fulltilt.recipes.making FOLDER FIRST STEP COUNT   with what writes a sample, pickled, on its standard input
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from fulltilt.errors import FulltiltError, cause, last_line

Write = Callable[[Path, int], None]
_LEAST_CORES: Final = 4
_WORTH_SECONDS: Final = 20.0
"""Of CPU time: for less, processes take longer to start than they save."""


def processes_for(count: int, *, sample_seconds: float, cores: int) -> int:
    """How many to make so many samples with; 0 leaves them to threads of this process."""
    worth = cores >= _LEAST_CORES and count * sample_seconds >= _WORTH_SECONDS
    return min(cores, count) if worth else 0


def in_processes(folder: Path, count: int, write: Write, processes: int, advance: Callable[[int], None]) -> None:
    """All samples, every process its share.

    Args:
        write: can be pickled, so it is a function of a module or a partial of one.
        advance: hears how many more are there.
    """
    order = pickle.dumps(write)
    reader, writer = os.pipe()
    children: list[subprocess.Popen[bytes]] = []
    with ExitStack() as stack:
        errors = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(processes)]  # lines of two would mingle
        try:
            for part in range(processes):
                command = [sys.executable, "-m", __name__, str(folder), str(part), str(processes), str(count)]
                child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=writer, stderr=errors[part])
                children.append(child)
                assert child.stdin is not None
                with child.stdin as pipe:
                    pipe.write(order)
            os.close(writer)
            writer = -1
            while made := os.read(reader, 4096):  # a byte for each; the end is when the last process has gone
                advance(len(made))
            failed = next((part for part, child in enumerate(children) if child.wait()), None)
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()
                child.wait()
            os.close(reader)
            if writer >= 0:
                os.close(writer)
        if failed is not None:
            errors[failed].seek(0)
            why = last_line(errors[failed].read(), cause(children[failed].returncode))
            raise FulltiltError(f"{folder} can't be made: {why}")


def main(folder: str, first: str, step: str, count: str) -> None:
    """One of the processes."""
    write: Write = pickle.loads(sys.stdin.buffer.read())  # from the process that started this one
    for index in range(int(first), int(count), int(step)):
        write(Path(folder), index)
        os.write(sys.stdout.fileno(), b".")


if __name__ == "__main__":
    main(*sys.argv[1:])
