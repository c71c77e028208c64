"""A line of code in a process of its own, and its failure in one line."""

from __future__ import annotations

import pytest

from fulltilt.machine.probe import failure


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("x = 1; print('noise')", None),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise RuntimeError('\\n\\n  first line\\nsecond line')", "RuntimeError:   first line"),
        ("raise ValueError", "ValueError"),
        ("import os; os.abort()", "crashed with signal SIGABRT"),
        ("import os; os._exit(7)", "left with exit status 7"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("1 +", "SyntaxError: invalid syntax (<string>, line 1)"),
        ("import warnings; warnings.warn('old', DeprecationWarning)", None),
    ],
)
def test_what_came_of_it(code, says):
    assert failure(code) == says


def test_what_never_answers():
    assert failure("import time; time.sleep(60)", timeout_seconds=0.5) == "no answer after 0.5 s"


def test_a_file_in_the_working_directory_is_not_mistaken_for_a_package(tmp_path, monkeypatch):
    (tmp_path / "av_here.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert "No module named" in failure("import av_here")
