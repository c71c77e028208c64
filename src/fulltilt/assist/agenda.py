"""What is to happen when: deadlines and retries.

`Agenda` knows the order, `Clock` is the thread that keeps to it. It is started when there is the first entry.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable
from itertools import count

log = logging.getLogger("fulltilt.assist")

_TIDY_FROM = 1024
"""Entries below which crossed-out ones are left where they are."""
_STOP_SECONDS = 1.0


class Entry:
    """Something to do at a time, unless it is crossed out first."""

    __slots__ = ("action", "number", "when")

    def __init__(self, when: float, number: int, action: Callable[[], object]) -> None:
        self.when, self.number = when, number
        self.action: Callable[[], object] | None = action

    def __lt__(self, other: Entry) -> bool:
        return (self.when, self.number) < (other.when, other.number)


class Agenda:
    """Entries in the order of their times. Crossed-out ones never make up more than half of it."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._crossed_out = 0
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._entries) - self._crossed_out

    def add(self, when: float, action: Callable[[], object]) -> Entry:
        entry = Entry(when, next(self._numbers), action)
        heapq.heappush(self._entries, entry)
        return entry

    def cross_out(self, entry: Entry) -> None:
        if entry.action is None:
            return
        entry.action = None
        self._crossed_out += 1
        if len(self._entries) > _TIDY_FROM and self._crossed_out * 2 > len(self._entries):
            self._entries = [kept for kept in self._entries if kept.action is not None]
            heapq.heapify(self._entries)
            self._crossed_out = 0

    def next_time(self) -> float | None:
        self._drop_crossed_out()
        return self._entries[0].when if self._entries else None

    def due(self, now: float) -> list[Callable[[], object]]:
        """What is to be done by now, in order; it is off the agenda then."""
        actions: list[Callable[[], object]] = []
        while self._entries and (self._entries[0].action is None or self._entries[0].when <= now):
            entry = heapq.heappop(self._entries)
            if entry.action is None:
                self._crossed_out -= 1
            else:
                actions.append(entry.action)
                entry.action = None
        return actions

    def _drop_crossed_out(self) -> None:
        while self._entries and self._entries[0].action is None:
            heapq.heappop(self._entries)
            self._crossed_out -= 1


class Clock:
    """A thread that does what the agenda says, in time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._agenda = Agenda()
        self._change = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None
        self._stopped = False

    def __len__(self) -> int:
        return len(self._agenda)

    def is_here(self) -> bool:
        """Whether the current thread is the clock's."""
        return self._thread is not None and self._thread.ident == threading.get_ident()

    def at(self, when: float, action: Callable[[], object]) -> Entry:
        """Have something done at a time of `time.perf_counter`; after `stop` it never is."""
        with self._change:
            entry = self._agenda.add(when, action)
            if self._thread is None and not self._stopped:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread
            elif self._agenda.next_time() == when:
                self._change.notify()
        return entry

    def forget(self, entry: Entry) -> None:
        with self._change:
            self._agenda.cross_out(entry)

    def stop(self) -> None:
        """Do what is due, and nothing more. It may never end: it is waited for, but not long."""
        with self._change:
            self._stopped = True
            self._change.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        while True:
            with self._change:
                actions = self._agenda.due(time.perf_counter())
                if not actions and self._stopped:
                    return
                if not actions:
                    next_time = self._agenda.next_time()
                    left = None if next_time is None else max(0.0, next_time - time.perf_counter())
                    self._change.wait(None if left is None else min(left, threading.TIMEOUT_MAX))
                    continue
            for action in actions:
                try:
                    action()
                except BaseException:  # a callback's SystemExit must not stop the clock
                    log.exception("something timed went wrong")
