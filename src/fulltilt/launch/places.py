"""Which line of the user's own code a call came from."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from types import CodeType, FrameType

from fulltilt.measure.observation import Place

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARY = tuple({os.path.abspath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")})
_MOST_FRAMES = 80

Spot = tuple[CodeType, int]
"""A line, as cheap to take as can be; `place` turns it into words later."""

_kinds: dict[str, int] = {}
_USER, _PACKAGE, _TORCH, _SKIPPED = range(4)


def spot(depth: int = 1) -> Spot | None:
    """The nearest line outside of installed packages; without one, the nearest outside of torch."""
    frame: FrameType | None = sys._getframe(depth)
    package: Spot | None = None
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        code = frame.f_code
        kind = _kinds.get(code.co_filename)
        if kind is None:
            kind = _kinds[code.co_filename] = _kind(code.co_filename)
        if kind == _USER:
            return code, frame.f_lineno
        if kind == _PACKAGE and package is None:
            package = code, frame.f_lineno
        frame = frame.f_back
    return package


def place(found: Spot | None) -> Place | None:
    if found is None:
        return None
    code, line = found
    file = code.co_filename
    return Place(file=file, line=line, text=linecache.getline(file, line).strip())


def is_users(file: str) -> bool:
    """A file that is in no installed package."""
    return _kind(file) == _USER


def is_torchs(file: str) -> bool:
    """A file of torch's own."""
    return _kind(file) == _TORCH


def _kind(file: str) -> int:
    if file.startswith((_OURS, "<")):
        return _SKIPPED
    path = os.path.abspath(file)
    if f"{os.sep}site-packages{os.sep}" in path or f"{os.sep}dist-packages{os.sep}" in path:
        return _TORCH if f"{os.sep}torch{os.sep}" in path else _PACKAGE
    return _SKIPPED if path.startswith(_LIBRARY) else _USER
