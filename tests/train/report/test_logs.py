"""Logs: one record a line, whatever happened to the run before."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import pytest

from fulltilt.errors import InputError, UnavailableError
from fulltilt.train.config.config import LoggingConfig
from fulltilt.train.report import logs
from fulltilt.train.report.logs import JsonLines, json_line, open_logs
from fulltilt.train.report.report import Report


def test_records_are_lines_and_a_resumed_run_goes_on(tmp_path):
    path = tmp_path / "log.jsonl"
    for step in (1, 2):
        log = JsonLines(path)
        log.write("perf", {"loss": 0.5, "nan": float("nan"), "config": {"lr": float("inf")}}, step=step)
        log.close()
    first, second = map(json.loads, path.read_text().splitlines())
    assert (first["kind"], first["step"], first["loss"], first["nan"]) == ("perf", 1, 0.5, "nan")
    assert second["config"] == {"lr": "inf"}


def test_half_a_line_that_a_killed_run_left_is_not_joined_to(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"kind": "perf", "lo')
    log = JsonLines(path)
    log.write("epoch", {}, step=3)
    log.close()
    assert json.loads(path.read_text().splitlines()[1])["kind"] == "epoch"


def test_names_that_are_not_utf_8_are_read_back_as_they_were(tmp_path):
    name = os.fsdecode(b"caf\xe9.jpg")
    log = JsonLines(tmp_path / "log.jsonl")
    log.write("start", {"source": name}, step=0)
    log.close()
    assert json.loads((tmp_path / "log.jsonl").read_text(encoding="utf-8"))["source"] == name


def test_a_line_is_there_as_soon_as_it_is_written(tmp_path):
    log = JsonLines(tmp_path / "log.jsonl")
    log.write("perf", {}, step=1)
    assert (tmp_path / "log.jsonl").read_text().count("\n") == 1
    log.close()


def test_a_log_that_can_not_be_written_is_named(tmp_path):
    (tmp_path / "log.jsonl").mkdir()
    with pytest.raises(InputError, match=r"can't write .*log\.jsonl \(Is a directory\)"):
        open_logs(tmp_path, jsonl=True, tensorboard=False)


def test_json_has_no_nan():
    assert json_line({"a": float("nan"), "b": [1], "c": "ä"}) == '{"a": "nan", "b": [1], "c": "ä"}'


def test_tensorboard_that_is_asked_for_and_missing_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match="pip install tensorboard"):
        open_logs(tmp_path, jsonl=True, tensorboard=True)
    (only,) = open_logs(tmp_path, jsonl=True, tensorboard="auto")
    only.close()
    assert open_logs(None, jsonl=True, tensorboard="auto") == []


def test_numbers_go_to_tensorboard(tmp_path, monkeypatch):
    written = []

    class Writer:
        def __init__(self, folder):
            written.append(folder)

        def add_scalar(self, name, value, step):
            written.append((name, value, step))

        def close(self):
            written.append("closed")

    module = type(sys)("torch.utils.tensorboard")
    module.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr(logs, "find_spec", lambda name: object())
    (board,) = open_logs(tmp_path, jsonl=False, tensorboard="auto")
    board.write("epoch", {"val_loss": 0.5, "note": "text", "on": True}, step=7)
    board.close()
    assert written == [str(tmp_path / "tensorboard"), ("epoch/val_loss", 0.5, 7), "closed"]


def test_other_ranks_are_silent(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="fulltilt")
    with Report(LoggingConfig(), tmp_path, is_main=False, epochs=1) as report:
        report.say("hello")
        report.perf({}, epoch=1, batch=1, step=1, loss=1.0)
    assert caplog.text == ""
    assert list(tmp_path.iterdir()) == []


SAYS = """
import logging, sys
from fulltilt.train.config.config import LoggingConfig
from fulltilt.train.report.report import Report
if sys.argv[1] == "theirs":
    logging.basicConfig(format="THEIRS %(message)s", level=logging.INFO)
for _ in range(2):
    with Report(LoggingConfig(), None, is_main=True, epochs=1) as report:
        report.say("hello")
logging.getLogger("fulltilt.train").info("after")
"""


@pytest.mark.parametrize(
    ("whose", "expected"), [("ours", "hello\nhello\n"), ("theirs", "THEIRS hello\nTHEIRS hello\nTHEIRS after\n")]
)
def test_lines_go_to_stderr_unless_the_program_decides_otherwise(whose, expected):
    done = subprocess.run([sys.executable, "-c", SAYS, whose], capture_output=True, text=True, check=True)
    assert done.stderr == expected
    assert done.stdout == ""


def test_training_goes_on_without_a_log_that_the_disk_refuses(tmp_path, caplog):
    (tmp_path / "log.jsonl").symlink_to("/dev/full")
    caplog.set_level(logging.INFO, "fulltilt.train")
    with Report(LoggingConfig(tensorboard=False), tmp_path, is_main=True, epochs=1) as report:
        for step in range(3):
            report.write("perf", {"loss": 0.5}, step=step)
    (told,) = caplog.messages
    assert told == f"{tmp_path}/log.jsonl can't be written (No space left on device) and will lack records"
