"""Which line of the user's own code a call came from."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from types import CodeType, FrameType

from fulltilt.measure.observation import Place

_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_LIBRARY = tuple({os.path.abspath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")})
_MOST_FRAMES = 80

_kinds: dict[str, int] = {}
_USER, _PACKAGE, _TORCH, _SKIPPED = range(4)


class Spot:
    """A line, as cheap to take as can be; `place` turns it into words later. A line has one, known by its identity:
    code is hashed by all that is in it, each time."""

    __slots__ = ("code", "line")

    def __init__(self, code: CodeType, line: int) -> None:
        self.code = code
        self.line = line


_by_line: dict[tuple[int, int], Spot] = {}
_by_instruction: dict[tuple[int, int], Spot] = {}
"""By the code's id, its own as long as the spot keeps it, and the instruction, whose line takes long to find out."""


def spot(depth: int = 1) -> Spot | None:
    """The nearest line outside of installed packages; without one, the nearest outside of torch."""
    frame: FrameType | None = sys._getframe(depth)
    package: FrameType | None = None
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        file = frame.f_code.co_filename
        kind = _kinds.get(file)
        if kind is None:
            kind = _kinds[file] = _kind(file)
        if kind == _USER:
            return _by_instruction.get((id(frame.f_code), frame.f_lasti)) or _new(frame)
        if kind == _PACKAGE and package is None:
            package = frame
        frame = frame.f_back
    if package is None:
        return None
    return _by_instruction.get((id(package.f_code), package.f_lasti)) or _new(package)


def by_package(depth: int = 1) -> bool:
    """Whether an installed package calls, be it on behalf of the user's code; torch itself is none."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        kind = _kind(frame.f_code.co_filename)
        if kind in (_USER, _PACKAGE):
            return kind == _PACKAGE
        frame = frame.f_back
    return False


def _new(frame: FrameType) -> Spot:
    """Of an instruction that was not met before, in a line that may have been."""
    code, line = frame.f_code, frame.f_lineno
    found = _by_line.setdefault((id(code), line), Spot(code, line))
    _by_instruction[id(code), frame.f_lasti] = found
    return found


def place(found: Spot | None) -> Place | None:
    if found is None:
        return None
    file = found.code.co_filename
    return Place(file=file, line=found.line, text=linecache.getline(file, found.line).strip())


def is_users(file: str) -> bool:
    """A file that is in no installed package."""
    return _kind(file) == _USER


def users_modules() -> tuple[str, ...]:
    """Files of all modules imported so far that are in no installed package; of `python -m`, the module itself, too.

    What was never imported is not among them: compilers put modules of their own there.
    """
    imported = [module for module in list(sys.modules.values()) if getattr(module, "__spec__", None) is not None]
    files = {getattr(module, "__file__", None) for module in imported}
    return tuple(sorted(os.path.abspath(file) for file in files if isinstance(file, str) and is_users(file)))


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
