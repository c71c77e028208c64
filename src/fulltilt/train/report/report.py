"""What a run says while it goes on: lines, the bar, logs. On rank 0 only; the other ranks are silent."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from fulltilt.train.config.config import LoggingConfig
from fulltilt.train.report.lines import epoch_detail, epoch_line, perf_line
from fulltilt.train.report.logs import Log, open_logs
from fulltilt.train.report.progress import Bar

log = logging.getLogger("fulltilt.train")

_STATS_SECONDS = 1.0
"""The step's figures are asked for at most so often for the bar."""


class Report:
    """Open while training runs."""

    def __init__(self, settings: LoggingConfig, folder: Path | None, *, is_main: bool, epochs: int) -> None:
        self.bar = Bar(settings.progress if is_main else False)
        self.is_main, self._epochs = is_main, epochs
        self._settings, self._folder = settings, folder
        self._logs: list[Log] = []
        self._told: list[Log] = []
        """Logs that could not be written."""
        self._handler: _Lines | None = None
        self._stats_at = -_STATS_SECONDS
        self._stats: Mapping[str, float] | None = None

    def __enter__(self) -> Self:
        if self.is_main:
            self._logs = open_logs(self._folder, jsonl=self._settings.jsonl, tensorboard=self._settings.tensorboard)
            self._listen()
        self.bar.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()
        if self._handler is not None:
            logging.getLogger("fulltilt").removeHandler(self._handler)
            logging.getLogger("fulltilt").setLevel(self._handler.level_before)
        for each in self._logs:
            try:
                each.close()
            except OSError as error:
                self._lost(each, error)
        self._logs = []

    def say(self, text: str, *arguments: Any, level: int = logging.INFO) -> None:
        """A line, through the logger `fulltilt.train`."""
        if self.is_main:
            log.log(level, text, *arguments)

    def write(self, kind: str, record: Mapping[str, Any], *, step: int) -> None:
        """A record for the logs. Training goes on without one that can't be written: what is learnt is worth more."""
        for each in self._logs:
            try:
                each.write(kind, record, step=step)
            except OSError as error:
                self._lost(each, error)

    def _lost(self, one: Log, error: OSError) -> None:
        if one not in self._told:
            self._told.append(one)
            reason = error.strerror or error
            self.say("%s can't be written (%s) and will lack records", one.name, reason, level=logging.WARNING)

    def perf(self, stats: Mapping[str, float], *, epoch: int, batch: int, step: int, loss: float | None) -> None:
        """The line every so many batches."""
        self.say("%s", perf_line(batch, stats, loss=loss))
        self.write("perf", {"epoch": epoch, "batch": batch, "loss": loss, **stats}, step=step)

    def epoch(self, record: Mapping[str, Any], stats: Mapping[str, float], *, step: int) -> None:
        """An epoch's results, and how its time was spent."""
        self.say("%s", epoch_line(record, self._epochs))
        if detail := epoch_detail(stats):
            self.say("  %s", detail)
        self.write("epoch", record, step=step)

    def refresh(
        self, batches: int, samples: int, waited: float, *, loss: float | None, left: int | None, stats: Any = None
    ) -> None:
        """Draw the bar anew; `stats` is called for the step's figures now and then."""
        now = time.perf_counter()
        if stats is not None and now - self._stats_at >= _STATS_SECONDS:
            self._stats, self._stats_at = stats(), now
        self.bar.update(batches, samples, waited, loss=loss, left=left, stats=self._stats)

    def _listen(self) -> None:
        """Show lines on stderr unless the program has decided where logging goes."""
        ours = logging.getLogger("fulltilt")
        if ours.handlers or logging.getLogger().handlers or log.handlers:
            return
        self._handler = _Lines(self.bar, ours.level)
        ours.addHandler(self._handler)
        if ours.level == logging.NOTSET:
            ours.setLevel(logging.INFO)


class _Lines(logging.Handler):
    """Lines above the bar."""

    def __init__(self, bar: Bar, level_before: int) -> None:
        super().__init__()
        self._bar, self.level_before = bar, level_before

    def emit(self, record: logging.LogRecord) -> None:
        prefix = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        text = prefix + self.format(record)
        with suppress(OSError):  # a full disk behind a redirection, a terminal that is gone: that ends no training
            if self._bar.console is not None:
                self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
            else:
                print(text, file=sys.stderr, flush=True)
