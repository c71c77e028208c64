"""Libraries that open files by themselves, past Python's `open`: the paths they are given are changed on the way.

A table says which argument of which function is a path, and what is done with it. A class is a function, too: its
`__init__` is changed, or where it is not Python's, a subclass takes its place.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal

from fulltilt.launch.imports import after_import
from fulltilt.launch.patching import put
from fulltilt.launch.shield.overlay import Overlay

Does = Literal["writes", "keeps", "reads", "by mode", "if shared"]
"""With the file: makes it anew; changes it; reads it; what its argument `mode` says, as `open` does; changes it where
its argument `shared` says so."""

TABLE: dict[str, tuple[tuple[str, int, str, Does], ...]] = {
    # name, place and name of the path, what is done with it
    "io": (("FileIO", 0, "file", "by mode"),),
    "torch._C": (("PyTorchFileWriter", 0, "file_name", "writes"), ("PyTorchFileReader", 0, "file_name", "reads")),
    "torch": (
        ("from_file", 0, "filename", "if shared"),
        ("UntypedStorage.from_file", 0, "filename", "if shared"),
    ),
    "torch.jit": (("save", 1, "f", "writes"), ("load", 0, "f", "reads")),
    "torch.jit._script": (("RecursiveScriptModule.save", 1, "f", "writes"),),
    "safetensors": (("serialize_file", 1, "filename", "writes"), ("safe_open", 0, "filename", "reads")),
    "safetensors.torch": (
        ("serialize_file", 1, "filename", "writes"),
        ("safe_open", 0, "filename", "reads"),
        ("load_file", 0, "filename", "reads"),
    ),
    "safetensors.numpy": (("serialize_file", 1, "filename", "writes"), ("safe_open", 0, "filename", "reads")),
    "sqlite3": (("connect", 0, "database", "keeps"),),
    "sqlite3.dbapi2": (("connect", 0, "database", "keeps"),),
    "cv2": (
        ("imwrite", 0, "filename", "writes"),
        ("imwritemulti", 0, "filename", "writes"),
        ("VideoWriter", 0, "filename", "writes"),
        ("imread", 0, "filename", "reads"),
        ("FileStorage", 0, "filename", "keeps"),
    ),
    "h5py": (("File", 0, "name", "by mode"),),
    "h5py._hl.files": (("File", 0, "name", "by mode"),),
    "soundfile": (("write", 0, "file", "writes"), ("SoundFile", 0, "file", "by mode")),
    "av": (("open", 0, "file", "by mode"),),
    "pyarrow": (("OSFile", 0, "path", "by mode"), ("memory_map", 0, "path", "by mode")),
    "pyarrow.parquet": (("ParquetWriter", 0, "where", "writes"), ("write_table", 1, "where", "writes")),
    "pyarrow.feather": (("write_feather", 1, "dest", "writes"), ("read_feather", 0, "source", "reads")),
    "faiss": (("write_index", 1, "fname", "writes"), ("read_index", 0, "fname", "reads")),
}


LetThrough = Callable[[], AbstractContextManager[None]]


def install(overlay: Overlay, let_through: LetThrough) -> None:
    """In `let_through` the overlay uses `os` as it is."""
    for module, entries in TABLE.items():
        after_import(module, functools.partial(_change_all, overlay, let_through, entries))


def _change_all(
    overlay: Overlay, let_through: LetThrough, entries: tuple[tuple[str, int, str, Does], ...], module: Any
) -> None:
    for name, place, keyword, does in entries:
        owner, _, last = name.rpartition(".")
        target = getattr(module, owner, None) if owner else module
        found = getattr(target, last, None)
        if target is None or found is None:
            continue
        change = functools.partial(_changed, overlay, let_through, place, keyword, does)
        if isinstance(found, type):
            _change_class(target, last, found, change)
        else:
            put(target, last, _function(found, change))


Change = Callable[[tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]


def _function(function: Callable[..., Any], change: Change) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = change(args, kwargs)
        return function(*args, **kwargs)

    return call


def _change_class(module: Any, name: str, kind: type, change: Change) -> None:
    if "__init__" in vars(kind) and hasattr(vars(kind)["__init__"], "__code__"):
        made: Any = kind.__init__  # type: ignore[misc]

        @functools.wraps(made)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            args, kwargs = change(args, kwargs)
            made(self, *args, **kwargs)

        put(kind, "__init__", init)
        return

    # Whichever of the two takes the arguments; the other one looks at none.
    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = change(args, kwargs)
        return made_new(cls, *args, **kwargs) if made_new is not object.__new__ else made_new(cls)

    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        args, kwargs = change(args, kwargs)
        if made_init is not object.__init__:
            made_init(self, *args, **kwargs)

    made_new: Any = kind.__new__
    made_init: Any = kind.__init__  # type: ignore[misc]
    body = {"__new__": new, "__init__": begin, "__module__": kind.__module__, "__doc__": kind.__doc__}
    try:
        put(module, name, _kind_of(kind)(kind.__name__, (kind,), body))
    except TypeError:  # it may have none: a function makes its objects
        put(module, name, _function(kind, change))


def _kind_of(kind: type) -> type:
    """A class that takes `kind` for itself: its objects are made elsewhere, too, `io.FileIO`'s by `open`."""
    if type(kind) is not type:
        return type(kind)

    def is_instance(cls: Any, one: Any) -> bool:
        return isinstance(one, kind) if kind in cls.__bases__ else type.__instancecheck__(cls, one)

    def is_subclass(cls: Any, one: Any) -> bool:
        return issubclass(one, kind) if kind in cls.__bases__ else type.__subclasscheck__(cls, one)

    return type("type", (type,), {"__instancecheck__": is_instance, "__subclasscheck__": is_subclass})


def _changed(
    overlay: Overlay,
    let_through: LetThrough,
    place: int,
    keyword: str,
    does: Does,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with the path that is meant instead; anything but a path is left as it is."""
    path = args[place] if len(args) > place else kwargs.get(keyword)
    if not isinstance(path, str | os.PathLike) or not _is_plain(os.fspath(path)):
        return args, kwargs
    following = args[place + 1] if len(args) > place + 1 else None
    if does == "by mode":
        does = _by_mode(kwargs.get("mode", following or "r"))
    elif does == "if shared":
        does = "keeps" if kwargs.get("shared", following) else "reads"
    with let_through():
        meant = overlay.reading(path) if does == "reads" else overlay.writing(path, keep=does == "keeps")
    meant = os.fspath(meant) if isinstance(path, str) else meant
    if len(args) > place:
        return (*args[:place], meant, *args[place + 1 :]), kwargs
    return args, {**kwargs, keyword: meant}


def _is_plain(path: str | bytes) -> bool:
    """A file's: no address, no database in memory."""
    text = os.fsdecode(path)
    return bool(text) and "://" not in text and not text.startswith((":memory:", "file:"))


def _by_mode(mode: Any) -> Does:
    if not isinstance(mode, str) or not set(mode) & set("wax+"):
        return "reads"
    return "writes" if "w" in mode else "keeps"
