"""`fulltilt monitor`: is the GPU starved?"""

from __future__ import annotations

import platform
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fulltilt.cli.saying import say
from fulltilt.errors import FulltiltError, InputError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rich.console import Console
    from rich.text import Text

    from fulltilt.machine.sample import Sample
    from fulltilt.monitor.drawing import Line
    from fulltilt.monitor.summary import Summary

INTERVAL_SECONDS = (0.1, 3600.0)
"""Closer than 100 ms GPM measures nothing reliable."""


def monitor(
    *,
    interval: Annotated[float, typer.Option(help="Seconds between two samples.")] = 1.0,
    duration: Annotated[float | None, typer.Option(help="Seconds to watch.", show_default="until Ctrl-C")] = None,
    gpu: Annotated[
        list[str] | None, typer.Option(help="Only this GPU: its index or UUID. May be repeated.", show_default="all")
    ] = None,
    pid: Annotated[
        int | None, typer.Option(help="Also watch this process and its descendants; end when it ends.")
    ] = None,
    record: Annotated[Path | None, typer.Option(help="Write every sample to this file (JSON lines).")] = None,
    replay: Annotated[Path | None, typer.Option(help="Read a recording instead of the machine.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON; no live view.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write one self-contained page with the charts.")] = None,
    fail_under: Annotated[
        float | None, typer.Option(help="Exit with 1 when a GPU's mean utilisation is below this percentage.")
    ] = None,
    prometheus: Annotated[
        str | None, typer.Option(metavar="[HOST:]PORT", help="Serve the last sample; on the loopback by default.")
    ] = None,
    live: Annotated[bool, typer.Option(hidden=True, help="With --replay: play it in the live view.")] = False,
    speed: Annotated[float, typer.Option(hidden=True, help="With --replay --live: times as fast.")] = 1.0,
) -> None:
    """Watch the GPUs and the CPU, say how well each GPU is fed, and why.

    Ends after --duration, or with Ctrl-C, and then prints the figures, one verdict per GPU and what to run next.
    """
    _check(interval=interval, duration=duration, fail_under=fail_under, speed=speed)
    if html is not None:
        from fulltilt.machine.files import check_writable

        check_writable(html, option="--html")
    if replay is not None:
        for name, value in (("record", record), ("pid", pid), ("duration", duration), ("prometheus", prometheus)):
            if value is not None:
                raise InputError(f"--replay reads a recording, so --{name} has nothing to do; leave one of them out")
        problem = None
        summary, samples = _replayed(replay, gpu or [], live=live, speed=speed)
        title = replay.name
    else:
        summary, samples, problem = _watched(
            interval=interval,
            duration=duration,
            gpus=gpu or [],
            pid=pid,
            record=record,
            address=prometheus,
            show=not as_json,
            keep=html is not None,
        )
        title = platform.node() or "this machine"
    _print(summary, as_json=as_json)
    if html is not None:
        from fulltilt.machine.files import write_whole
        from fulltilt.report import monitor_page

        write_whole(html, monitor_page(samples, summary, title=title))
        say(f"wrote {html}")
    if problem is not None:
        raise FulltiltError(problem)
    if fail_under is not None:
        _fail_under(summary, fail_under)


def _check(*, interval: float, duration: float | None, fail_under: float | None, speed: float) -> None:
    least, most = INTERVAL_SECONDS
    if not least <= interval <= most:
        raise InputError(f"--interval: expected {least:g} to {most:g} seconds, found {interval:g}")
    if duration is not None and not interval <= duration < float("inf"):
        raise InputError(f"--duration: expected at least one interval ({interval:g} seconds), found {duration:g}")
    if fail_under is not None and not 0 <= fail_under <= 100:
        raise InputError(f"--fail-under: expected a percentage from 0 to 100, found {fail_under:g}")
    if not 0 < speed < float("inf"):
        raise InputError(f"--speed: expected a number above 0, found {speed:g}")


def _replayed(path: Path, gpus: list[str], *, live: bool, speed: float) -> tuple[Summary, list[Sample]]:
    from fulltilt.monitor.recording import only_gpus, read_recording
    from fulltilt.monitor.summary import summarize
    from fulltilt.monitor.watch import Stop, replayed

    recording = read_recording(path)
    samples = only_gpus(recording.samples, gpus)
    if recording.warning is not None:
        say(recording.warning)
    if live:
        with Stop() as stop, ExitStack() as stack:
            view = _view(stack, title=f"replay of {path.name}", problem="the recording has no GPU")
            _feed(replayed(samples, stop, speed=speed), [] if view is None else [view])
    return summarize(samples), samples


def _watched(
    *,
    interval: float,
    duration: float | None,
    gpus: list[str],
    pid: int | None,
    record: Path | None,
    address: str | None,
    show: bool,
    keep: bool,
) -> tuple[Summary, list[Sample], str | None]:
    from fulltilt.machine.sampler import Sampler
    from fulltilt.monitor.prometheus import Exporter, parse_address
    from fulltilt.monitor.recording import RecordingWriter
    from fulltilt.monitor.summary import Tally
    from fulltilt.monitor.watch import Kept, Stop, sampled

    tally, kept, losses = Tally(), Kept(), _Losses()
    host_port = None if address is None else parse_address(address)
    with Stop() as stop, ExitStack() as stack:
        sampler = stack.enter_context(Sampler(gpus=gpus, pid=pid))
        sinks: list[Callable[[Sample], None]] = [tally.add]
        writer = None if record is None else stack.enter_context(RecordingWriter(record))
        if writer is not None:
            sinks.append(writer.write)
        if host_port is not None:
            exporter = stack.enter_context(Exporter(*host_port))
            sinks.append(exporter.update)
            say(f"serving http://{exporter.address}/metrics")
        if sampler.problem is not None:
            say(f"{sampler.problem}; CPU figures continue")
        if keep:
            sinks.append(kept.add)
        view = _view(stack, title=f"every {interval:g} s", problem=sampler.problem) if show else None
        if view is not None:
            sinks.append(view)
        sinks.append(partial(losses.add, hold=view is not None))
        _feed(sampled(sampler, stop, interval=interval, duration=duration), sinks)
        ended = sampler.ended
    losses.say()
    if ended is not None:
        say(ended)
    return tally.summary(), kept.samples, None if writer is None else writer.problem


def _feed(samples: Iterable[Sample], sinks: list[Callable[[Sample], None]]) -> None:
    for sample in samples:
        for sink in sinks:
            sink(sample)


def _view(stack: ExitStack, *, title: str, problem: str | None) -> Callable[[Sample], None] | None:
    """The live view's sink, where stdout is a terminal that can show it."""
    if not sys.stdout.isatty():
        return None
    from rich.console import Console

    from fulltilt.monitor.frame import ViewState
    from fulltilt.monitor.live import LiveView

    console = Console()
    if console.is_dumb_terminal:
        return None
    return stack.enter_context(LiveView(console, ViewState(title=title, problem=problem))).add


class _Losses:
    """Names a GPU once when it stops answering: at once, or after a live view has given the terminal back."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._held: list[str] = []

    def add(self, sample: Sample, *, hold: bool) -> None:
        for gpu in sample.gpus:
            if gpu.lost is not None and gpu.label not in self._known:
                self._known.add(gpu.label)
                self._held.append(f"GPU {gpu.label}: {gpu.lost}; the others go on")
        if not hold:
            self.say()

    def say(self) -> None:
        while self._held:
            say(self._held.pop(0))


def _print(summary: Summary, *, as_json: bool) -> None:
    if as_json:
        import json

        print(json.dumps(summary.to_json(), indent=2, ensure_ascii=False))
        return
    from rich.console import Console

    from fulltilt.monitor.text import summary_lines

    console = Console(highlight=False)
    for line in summary_lines(summary):
        console.print(_wrapped(line, console), soft_wrap=True)


def _wrapped(line: Line, console: Console) -> Text:
    """On a terminal broken between words, under the row's text; in a file one line, for those who search it."""
    from rich.text import Text

    from fulltilt.monitor.text import LABEL_WIDTH

    whole = Text.assemble(*line)
    if not console.is_terminal or whole.cell_len <= console.width:
        return whole
    indent = LABEL_WIDTH if whole.plain.startswith(" ") else 0
    pieces = whole[indent:].wrap(console, max(LABEL_WIDTH, console.width - indent))
    return whole[:indent] + Text("\n" + " " * indent).join(pieces)


def _fail_under(summary: Summary, percent: float) -> None:
    measured = [(gpu.label, gpu.util.mean) for gpu in summary.gpus if gpu.util is not None]
    if not measured:
        raise UnavailableError(f"--fail-under {percent:g}: no GPU's utilisation was measured")
    low = [f"GPU {label} at {mean:.1f} %" for label, mean in measured if mean < percent]
    low += [f"GPU {gpu.label}, which stopped answering" for gpu in summary.gpus if gpu.lost is not None]
    if low:
        raise FulltiltError(f"--fail-under {percent:g}: mean utilisation too low on {', '.join(low)}")
