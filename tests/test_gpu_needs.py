"""What tests on a GPU need besides is skipped without, and fails where none may be missed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.gpu.needs import do_without, library

TESTS = sorted((Path(__file__).parent / "gpu").glob("test_*.py"))


def test_what_is_missing_is_skipped(monkeypatch):
    monkeypatch.delenv("FULLTILT_REQUIRE_GPU", raising=False)
    with pytest.raises(pytest.skip.Exception, match="pip install nonexistent"):
        library("nonexistent.part")


def test_what_is_missing_and_required_fails_with_the_package_to_install(monkeypatch):
    monkeypatch.setenv("FULLTILT_REQUIRE_GPU", "1")
    with pytest.raises(pytest.fail.Exception, match=r"REQUIRE_GPU=1, but nonexistent.part .* pip install nonexistent"):
        library("nonexistent.part")
    with pytest.raises(pytest.fail.Exception, match="REQUIRE_GPU=1, but there is no engine"):
        do_without("there is no engine")


def test_what_is_there_is_given():
    assert library("re") is re


def test_no_test_on_a_gpu_skips_by_itself():
    assert len(TESTS) > 20
    own = re.compile(r"importorskip|pytest\.skip\(|mark\.skip\b")
    assert [file.name for file in TESTS if own.search(file.read_text(encoding="utf-8"))] == []
