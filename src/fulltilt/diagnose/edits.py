"""Edits of the user's own source, as unified diffs: small, found through its syntax tree, or not made at all.

Every function takes the file's text and gives the new text, or None where the place is not what it was taken for.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from fulltilt.measure.observation import Place

Edit = Callable[[str], str | None]


def diff(file: str, before: str, after: str | None) -> str | None:
    """What `git diff` would show, with a line of context; None where nothing changes."""
    if after is None or after == before:
        return None
    name = _shown(file)
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, n=1, lineterm="")
    return "\n".join(lines)


def edited(read_source: Callable[[str], str | None], file: str | None, *edits: Edit) -> str | None:
    """The diff of all edits together; None if the file can't be read or any of them does not fit."""
    before = None if file is None else read_source(file)
    if file is None or before is None:
        return None
    text: str | None = before
    for edit in edits:
        if text is None or _parsed(text) is None:
            return None
        text = edit(text)
    return diff(file, before, text) if text is not None and _parsed(text) is not None else None


LOADER = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory")
"""The first arguments of a DataLoader, as they may be given without their names."""


def with_keywords(line: int, callee: str, values: Mapping[str, Any], *, unnamed: Sequence[str] = ()) -> Edit:
    """The call of `callee` that covers the line gets these keyword arguments, in place of those it has; `unnamed` are
    its first ones, none of which may be given twice."""

    def edit(text: str) -> str | None:
        call = _call(text, line, callee)
        if call is None or any(keyword.arg is None for keyword in call.keywords):
            return None  # **options may hold them already
        if any(isinstance(given, ast.Starred) for given in call.args) or values.keys() & set(unnamed[: len(call.args)]):
            return None
        for name, value in values.items():
            found = _call(text, line, callee)
            if found is None:
                return None
            text = _with_keyword(text, found, name, repr(value))
        return text

    return edit


def everywhere(callee: str, values: Mapping[str, Any]) -> Edit:
    """As `with_keywords`, where the file has exactly one call of that name."""

    def edit(text: str) -> str | None:
        tree = _parsed(text)
        calls = [] if tree is None else [node for node in ast.walk(tree) if _is_call(node, callee)]
        return with_keywords(calls[0].lineno, callee, values)(text) if len(calls) == 1 else None

    return edit


def replaced_call(callee: str, code: str) -> Edit:
    """The one statement that calls `callee` becomes `code`; a new line below the imports where there is none."""

    def edit(text: str) -> str | None:
        tree = _parsed(text)
        nodes = [] if tree is None else list(ast.walk(tree))
        calls = [node for node in nodes if _is_call(node, callee)]
        statements = [node for node in nodes if isinstance(node, ast.Expr) and node.value in calls]
        if not calls:
            return after_imports(code)(text)
        if len(calls) != 1 or len(statements) != 1:
            return None
        at, (statement,) = _offsets(text), statements
        end = at(statement.end_lineno or statement.lineno, statement.end_col_offset or 0)
        return f"{text[: at(statement.lineno, statement.col_offset)]}{code}{text[end:]}"

    return edit


def after_imports(code: str) -> Edit:
    """A line of its own below the imports at the top."""

    def edit(text: str) -> str | None:
        tree = _parsed(text)
        if tree is None:
            return None
        imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        if not imports:
            return None
        lines = [f"{line}\n" for line in text.split("\n")]
        at = imports[-1].end_lineno or imports[-1].lineno
        return "".join([*lines[:at], f"\n{code}\n", *lines[at:]])[:-1]

    return edit


def script_of(command: tuple[str, ...]) -> str | None:
    """The script's file, where the command names one."""
    return next((word for word in command if word.endswith(".py") and Path(word).is_file()), None)


def loader_edit(place: Place | None, values: Mapping[str, Any]) -> tuple[str | None, Edit]:
    """The DataLoader made at that place, with other arguments."""
    if place is None:
        return None, lambda _: None
    return place.file, with_keywords(place.line, "DataLoader", values, unnamed=LOADER)


def _with_keyword(text: str, call: ast.Call, name: str, written: str) -> str:
    offsets = _offsets(text)
    for keyword in call.keywords:
        if keyword.arg == name:
            value = keyword.value
            start = offsets(value.lineno, value.col_offset)
            end = offsets(value.end_lineno or value.lineno, value.end_col_offset or 0)
            return f"{text[:start]}{written}{text[end:]}"
    closing = offsets(call.end_lineno or call.lineno, call.end_col_offset or 0) - 1
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    if not arguments:
        return f"{text[:closing]}{name}={written}{text[closing:]}"
    last = max(arguments, key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0))
    at = offsets(last.end_lineno or last.lineno, last.end_col_offset or 0)
    while at < closing and text[at] == ")":  # the last argument stood in parentheses of its own
        at += 1
    rest = text[at:closing]
    if "\n" in rest and "#" not in rest:  # one argument per line: so is the new one
        line = text.split("\n")[last.lineno - 1]
        lead = line[: len(line) - len(line.lstrip())]
        return f"{text[:at]},\n{lead}{name}={written}{text[at:]}"
    return f"{text[:at]}, {name}={written}{text[at:]}"


def _offsets(text: str) -> Callable[[int, int], int]:
    """Places in the text for the tree's (line, column in UTF-8 bytes)."""
    lines = [f"{line}\n" for line in text.split("\n")]  # as the parser counts: form feeds end no line

    def at(line: int, column: int) -> int:
        return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())

    return at


def _call(text: str, line: int, callee: str) -> ast.Call | None:
    tree = _parsed(text)
    if tree is None:
        return None
    calls = [
        node
        for node in ast.walk(tree)
        if _is_call(node, callee) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return min(calls, key=lambda node: (node.end_lineno or 0) - node.lineno, default=None)


def _is_call(node: ast.AST, callee: str) -> TypeGuard[ast.Call]:
    function = node.func if isinstance(node, ast.Call) else None
    return (isinstance(function, ast.Name) and function.id == callee) or (
        isinstance(function, ast.Attribute) and function.attr == callee
    )


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def _shown(file: str) -> str:
    path = Path(file)
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return path.name
