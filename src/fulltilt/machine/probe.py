"""Run a line of Python in a process of its own and say in one line how it went.

What is tried may be slow, print, crash or take GPU memory; none of that reaches this process.
"""

from __future__ import annotations

import subprocess
import sys

from fulltilt.errors import cause

_MARK = "fulltilt-probe-failed: "
_CHILD = """
import sys
try:
    exec(sys.argv[1])
except BaseException as error:
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    sys.stderr.flush()
    print("\\n" + sys.argv[2] + type(error).__name__ + ": " + lines[0], file=sys.stderr, flush=True)
    sys.exit(1)
"""


def failure(code: str, *, timeout_seconds: float = 90) -> str | None:
    """Why the code fails, as `TypeError: first line`; None when it runs."""
    command = [sys.executable, "-W", "ignore", "-P", "-c", _CHILD, code, _MARK]  # -P: no module of the user's folder
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, errors="replace", timeout=timeout_seconds
        )
    except subprocess.TimeoutExpired:
        return f"no answer after {timeout_seconds:g} s"
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return f"crashed with {cause(done.returncode)}"
    told = [line.removeprefix(_MARK) for line in done.stderr.splitlines() if line.startswith(_MARK)]
    return told[-1].strip().removesuffix(":") if told else f"left with {cause(done.returncode)}"
