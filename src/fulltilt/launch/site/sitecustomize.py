"""Found by every Python that a watched command starts, through PYTHONPATH. Leaves the user's own in its place."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys


def _begin() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    if not os.environ.get("FULLTILT_JOB"):
        return
    if importlib.util.find_spec("fulltilt") is None:  # run from a checkout that is not installed
        sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(here))))
    from fulltilt.launch.watch.inside import start

    start()


def _chain() -> None:
    """Run the `sitecustomize` that would have been run without this one; where it fails, Python says so as ever."""
    this = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if this is not None:
            sys.modules["sitecustomize"] = this  # whoever imports a module looks for it there


_begin()
_chain()
