"""What a test on a GPU needs besides: skipped without it, and failed where FULLTILT_REQUIRE_GPU=1 wants none missed."""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import NoReturn

import pytest


def do_without(missing: str) -> NoReturn:
    """There is something missing: end the test, or the whole module where it is asked for at import."""
    if os.environ.get("FULLTILT_REQUIRE_GPU") == "1":
        pytest.fail(f"FULLTILT_REQUIRE_GPU=1, but {missing}")
    pytest.skip(missing, allow_module_level=True)


def library(module: str) -> ModuleType:
    """A module of a package that fulltilt does not ask for."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        do_without(f"{module} can't be imported ({error}): pip install {package}")
