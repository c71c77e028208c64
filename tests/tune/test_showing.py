"""The bar: late, and on a terminal only."""

from __future__ import annotations

import io

import pytest

from fulltilt.tune import showing
from fulltilt.tune.showing import Bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

        def perf_counter(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(showing, "time", clock)
    return clock


def test_it_comes_after_two_seconds_and_goes_when_done(clock):
    stream = Terminal()
    bar = Bar(5, shown=True, stream=stream)
    bar.trying(64)
    clock.now += 1.9
    bar.tried()
    assert stream.getvalue() == ""
    bar.trying(128)
    clock.now += 0.2
    bar.tick()
    assert "batch size: trying 128" in stream.getvalue()
    assert "1/5" in stream.getvalue()
    drawn = len(stream.getvalue())
    bar.tick()
    assert len(stream.getvalue()) == drawn  # not again within a tenth of a second
    for _ in range(5):
        clock.now += 1
        bar.tried()
    assert "6/7" in stream.getvalue()  # more trials than were foreseen
    bar.close()
    bar.close()


@pytest.mark.parametrize(("stream", "shown"), [(io.StringIO(), True), (Terminal(), False)])
def test_elsewhere_nothing_is_drawn(clock, stream, shown):
    bar = Bar(5, shown=shown, stream=stream)
    clock.now += 10
    bar.trying(64)
    bar.close()
    assert stream.getvalue() == ""
