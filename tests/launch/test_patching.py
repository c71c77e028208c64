"""What is put in others' places is used as they were."""

from __future__ import annotations

import copy
import functools
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from fulltilt.launch import patching
from fulltilt.launch.command import parse
from fulltilt.launch.observe import observe
from fulltilt.launch.patching import put

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(patching, "_done", [])
    made: Any = types.ModuleType("library")
    made.native, made.plain, made.Kind = len, lambda *args: args, dict
    monkeypatch.setitem(sys.modules, "library", made)
    return made


def wrapped(function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return args

    return call


def test_a_builtin_is_no_method_of_a_class_and_a_function_is(module: Any) -> None:
    for name in ("native", "native", "plain", "Kind"):  # twice: another one in its place again
        put(module, name, wrapped(getattr(module, name)))

    class User:
        native, plain, kind = module.native, module.plain, module.Kind

    user = User()
    assert user.native(1) == (1,)
    assert user.plain(1) == (user, 1)
    assert user.kind(1) == (1,)
    assert isinstance(module.native, types.BuiltinFunctionType)
    assert not isinstance(module.Kind, type)
    assert isinstance(module.plain, types.FunctionType)


def test_it_is_sent_by_the_name_that_it_stands_for(module: Any) -> None:
    put(module, "native", wrapped(len))
    sent = pickle.dumps(module.native)
    assert pickle.loads(sent) is copy.deepcopy(module.native) is module.native
    patching.take_all_out()
    assert module.native is len
    assert pickle.loads(sent) is len  # where we are not


def test_builtins_in_a_script(capfd: pytest.CaptureFixture[str]) -> None:
    seen = observe(parse([str(SCRIPTS / "binds.py")]), echo=True)
    out, err = capfd.readouterr()
    assert seen.exit_status == 0, err
    assert out.splitlines()[0] == "hello"
    assert out.splitlines()[-1] == "late"
