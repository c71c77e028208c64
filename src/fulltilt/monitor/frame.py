"""One picture of the live view: what is known now, drawn for a terminal of a given size. Pure.

There are several densities; the roomiest that fits the terminal's height is taken, so one GPU gets tall history lines
and eight still fit on 24 rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from fulltilt.machine.sample import GpuSample, Sample
from fulltilt.measure.statistics import Figures
from fulltilt.monitor.drawing import (
    DIM,
    FLAG_STYLE,
    MEMORY,
    SM,
    UTIL,
    VERDICT_STYLES,
    Line,
    bar,
    core_cells,
    fitted,
    flowed,
    history,
    length,
    spread,
)
from fulltilt.monitor.latest import Latest
from fulltilt.monitor.summary import GpuSummary, Summary, summarize
from fulltilt.words import clock, gib

WINDOW_SECONDS = 60.0
"""The live verdict looks back this far; the summary at the end looks at everything."""
LEAST_SECONDS = 10.0
"""... and says nothing before this much has been seen."""
REFRESH_SECONDS = 2.0
"""How often the verdict is worked out anew."""
_LONGEST = 512

NOTE = "util: share of time in which some kernel ran; SM: share of the chip at work"


@dataclass(slots=True, kw_only=True)
class ViewState:
    """What the picture is drawn from; fed one sample at a time."""

    title: str
    problem: str | None = None
    """Why there are no GPUs."""
    now: Sample = field(default_factory=lambda: Sample(t=0.0))
    summary: Summary | None = None
    """Of the last minute; None until enough has been seen."""
    _latest: Latest = field(default_factory=Latest)
    _recent: deque[Sample] = field(default_factory=deque)
    _util: dict[str, deque[float | None]] = field(default_factory=dict)
    _sm: dict[str, deque[float | None]] = field(default_factory=dict)
    _first: float | None = None
    _judged: float = float("-inf")

    def add(self, sample: Sample) -> None:
        """Take one sample in."""
        self.now = self._latest.complete(sample)
        self._first = sample.t if self._first is None else self._first
        for gpu in sample.gpus:
            self._util.setdefault(gpu.label, deque(maxlen=_LONGEST)).append(gpu.util)
            self._sm.setdefault(gpu.label, deque(maxlen=_LONGEST)).append(gpu.sm)
        self._recent.append(sample)
        while self._recent[0].t < sample.t - WINDOW_SECONDS:
            self._recent.popleft()
        if self.forming_seconds <= 0 and sample.t - self._judged >= REFRESH_SECONDS:
            self._judged = sample.t
            self.summary = summarize(self._recent, cycle=False)

    @property
    def begun(self) -> bool:
        """Whether there has been a sample."""
        return self._first is not None

    @property
    def forming_seconds(self) -> float:
        """How long until there is a verdict; 0 or less when there is."""
        return LEAST_SECONDS - self.seen_seconds

    @property
    def seen_seconds(self) -> float:
        """From the first sample to the last."""
        return 0.0 if self._first is None else self.now.t - self._first

    @property
    def verdicts(self) -> Mapping[str, GpuSummary]:
        return {} if self.summary is None else {gpu.label: gpu for gpu in self.summary.gpus}

    def util(self, label: str) -> Sequence[float | None]:
        return self._util.get(label, ())

    def sm(self, label: str) -> Sequence[float | None]:
        return self._sm.get(label, ())


def draw(state: ViewState, width: int, height: int) -> list[Line]:
    """The lines of one picture, none wider than `width` and no more than `height`."""
    head = [_header(state, width), []]
    foot = [[], *_host(state, width)]
    gpus = state.now.gpus
    room = height - len(head) - len(foot)
    if len(gpus) > room:  # the GPUs come first
        foot = foot[:2]
        room = height - len(head) - len(foot)
    body: list[Line] = []
    if not state.begun and state.problem is None:
        body = [[(" waiting for the first sample", DIM)]]
    elif not gpus:
        body = [[(f" {state.problem or 'no GPU is read'}", "yellow")]]
    else:
        density = _density(state, width, room)
        body = [line for gpu in gpus for line in density(state, gpu, width)]
        if not body[-1]:
            body.pop()
        if len(body) > room:
            hidden = len(gpus) - max(0, room - 1)
            body = [*body[: max(0, room - 1)], [(f" … {hidden} more GPUs: this terminal is too low", DIM)]]
    return [fitted(line, width) for line in [*head, *body, *foot]][:height]


def _density(state: ViewState, width: int, room: int) -> _Density:
    """The roomiest density that fits, measured on the tallest GPU: one that was lost takes fewer lines."""
    gpus = state.now.gpus
    tallest = next((gpu for gpu in gpus if gpu.lost is None), gpus[0])
    for density in _DENSITIES[:-1]:
        if len(gpus) * len(density(state, tallest, width)) - 1 <= room:
            return density
    return _DENSITIES[-1]


def _header(state: ViewState, width: int) -> Line:
    names = list(dict.fromkeys(gpu.name or "GPU" for gpu in state.now.gpus))
    cards = f"{len(state.now.gpus)} × {', '.join(names)}  " if state.now.gpus else "no GPU  " if state.begun else ""
    left = [(" fulltilt monitor", "bold"), (f"  {cards}{state.title}", DIM)]
    return spread(left, [(f"{clock(state.now.t)} ", "bold"), (" Ctrl-C: summary ", DIM)], width)


def _block(state: ViewState, gpu: GpuSample, width: int, *, rows: int) -> list[Line]:
    title = spread([(f" GPU {gpu.label}", "bold"), (f"  {gpu.name or ''}", "")], _sensors(gpu), width - 1)
    if gpu.lost is not None:
        return [title, [(f" lost: {gpu.lost}", FLAG_STYLE)], []]
    wide = max(10, min(40, width // 4))
    room = width - wide - 17
    lines = [title]
    recent = state.verdicts.get(gpu.label, GpuSummary(index=gpu.index))
    for name, value, past, figures, style, missing in (
        ("util", gpu.util, state.util(gpu.label), recent.util, UTIL, "not measured on this GPU"),
        ("SM", gpu.sm, state.sm(gpu.label), recent.sm, SM, "not measured: GPM needs Hopper or later"),
    ):
        if value is None and not any(item is not None for item in past):
            lines.append([(f" {name:<5}   –   {missing}", DIM)])
            continue
        left = [[(f" {name:<5}", ""), *_percent(value), (" ", ""), *bar(value, wide, style), ("  ", "")]]
        left += [[(f"{line:<{wide + 15}}", DIM)] for line in _beside(figures, rows)]
        lines += [
            [*side, *past_row] for side, past_row in zip(left, history(past, room, style, rows=rows), strict=True)
        ]
    lines.append(flowed(_memory(gpu, wide), width))
    lines.append(flowed(_judgement(state, gpu.label), width))
    return [*lines, []]


def _beside(figures: Figures | None, rows: int) -> list[str]:
    """What stands left of a history that is more than one row high, below the value of now."""
    words = (
        ["", ""]
        if figures is None
        else [
            f"{'':13}mean {figures.mean:.1f} % ± {figures.std:.1f}",
            f"{'':13}p5 {figures.p5:.0f} %   p95 {figures.p95:.0f} %",
        ]
    )
    return (words + [""] * rows)[: rows - 1]


def _compact(state: ViewState, gpu: GpuSample, width: int, *, both: bool) -> list[Line]:
    """One line for utilisation; with `both` another for SM activity, and a blank one."""
    left: Line = [(f" {gpu.label:>3} ", "bold")]
    if gpu.lost is not None:
        return [[*left, (f"lost: {gpu.lost}", FLAG_STYLE)], *([[]] if both else [])]
    verdict = state.verdicts.get(gpu.label)
    word = verdict.verdict.name if verdict is not None and verdict.verdict is not None else ""
    mark = "!" if verdict is not None and verdict.flags else " "
    full = 100 * gpu.mem_used / gpu.mem_total if gpu.mem_used is not None and gpu.mem_total else None
    right: Line = [("  mem", DIM), *_percent(full)]
    if width >= 100:
        temp = "  – °C" if gpu.temp is None else f"{gpu.temp:4.0f} °C"
        right += [(temp, _temp_style(gpu.temp)), ("     – W" if gpu.power_w is None else f"{gpu.power_w:6.0f} W", "")]
    right += [(f"  {word:<13}", VERDICT_STYLES.get(word, DIM)), (mark, FLAG_STYLE)]
    left += [("util", DIM), *_percent(gpu.util)]
    room = width - length(left) - length(right) - 12
    wide = max(6, room // 4)
    if not both:
        left += [(" ", ""), *bar(gpu.util, wide, UTIL), ("  SM", DIM), *_percent(gpu.sm), (" ", "")]
        return [[*left, *history(state.util(gpu.label), width - length(left) - length(right), UTIL)[0], *right]]
    left += [(" ", ""), *bar(gpu.util, wide, UTIL), ("  ", "")]
    room = width - length(left) - length(right)
    second: Line = [("     ", ""), ("SM  ", DIM), *_percent(gpu.sm), (" ", ""), *bar(gpu.sm, wide, SM), ("  ", "")]
    second += history(state.sm(gpu.label), room, SM)[0]
    if verdict is not None and verdict.flags:
        second += [("  ", ""), (" ".join(flag.name for flag in verdict.flags), FLAG_STYLE)]
    return [[*left, *history(state.util(gpu.label), room, UTIL)[0], *right], second, []]


_Density = Callable[[ViewState, GpuSample, int], list[Line]]
_DENSITIES: tuple[_Density, ...] = (
    *(partial(_block, rows=rows) for rows in (6, 4, 3, 2, 1)),
    partial(_compact, both=True),
    partial(_compact, both=False),
)


def _percent(value: float | None) -> Line:
    return [("    – ", DIM)] if value is None else [(f"{value:4.0f} %", "bold")]


def _temp_style(temp: float | None) -> str:
    return "" if temp is None or temp < 70 else "yellow" if temp < 80 else "bold red"


def _sensors(gpu: GpuSample) -> Line:
    line: Line = []
    if gpu.throttle:
        line += [(f"{', '.join(gpu.throttle)}  ", "yellow")]
    if gpu.temp is not None:
        line += [(f"{gpu.temp:.0f} °C", _temp_style(gpu.temp))]
    if gpu.power_w is not None:
        limit = f" of {gpu.power_limit_w:.0f}" if gpu.power_limit_w is not None else ""
        line += [(f"   {gpu.power_w:.0f}{limit} W", "")]
    if gpu.clock_sm_mhz is not None:
        line += [(f"   {gpu.clock_sm_mhz} MHz", DIM)]
    return line


def _memory(gpu: GpuSample, wide: int) -> Line:
    if gpu.mem_used is None or not gpu.mem_total:
        return [(" mem      –   not measured on this GPU", DIM)]
    full = 100 * gpu.mem_used / gpu.mem_total
    line: Line = [(" mem  ", ""), *_percent(full), (" ", ""), *bar(full, wide, MEMORY)]
    line += [(f"  {gib(gpu.mem_used)} of {gib(gpu.mem_total)} GiB", "")]
    if gpu.dram is not None:
        line += [(f"   bandwidth {gpu.dram:.0f} %", DIM)]
    if gpu.tensor is not None:
        line += [(f"   tensor cores {gpu.tensor:.0f} %", DIM)]
    if gpu.pcie_rx_mb_s is not None:
        line += [(f"   PCIe in {gpu.pcie_rx_mb_s:.0f} MB/s", DIM)]
    return line


def _judgement(state: ViewState, label: str) -> Line:
    summary = state.verdicts.get(label)
    if summary is None:
        return [(f" verdict forms in {max(1, round(state.forming_seconds))} s", DIM)]
    if summary.verdict is None:
        return [(f" no verdict: {summary.why}", DIM)]
    line: Line = [(f" {summary.verdict.name}", VERDICT_STYLES[summary.verdict.name])]
    for flag in summary.flags:
        line += [("  ", ""), (flag.name, FLAG_STYLE)]
    window = min(WINDOW_SECONDS, state.seen_seconds)
    return [*line, (f"  {summary.verdict.evidence}", ""), (f"  (last {window:.0f} s)", DIM)]


def _host(state: ViewState, width: int) -> list[Line]:
    cpu, process = state.now.cpu, state.now.process
    line: Line = [(" CPU", "bold")]
    if cpu.util is not None:
        line += [(f"  {cpu.util:.0f} %", "bold"), (f" of {len(cpu.cores or ())} cores", DIM)]
    if cpu.iowait is not None:
        line += [(f"   iowait {cpu.iowait:.0f} %", "" if cpu.iowait < 20 else "yellow")]
    if cpu.ram_used is not None and cpu.ram_total is not None:
        line += [(f"   RAM {gib(cpu.ram_used)} of {gib(cpu.ram_total)} GiB", "")]
    if cpu.disk_read_mb_s is not None:
        line += [(f"   disk reads {cpu.disk_read_mb_s:.0f} MB/s", "")]
    lines = [flowed(line, width), *([(" ", ""), *cells] for cells in core_cells(cpu.cores or (), width - 2))]
    if process is not None:
        text = f"  {process.name or ''}"
        if process.cpu is not None:
            text += f"   {process.cpu / 100:.1f} cores busy"
        if process.ram_used is not None:
            text += f"   RAM {gib(process.ram_used)} GiB"
        for label, size in (process.gpu_mem or {}).items():
            text += f"   GPU {label}: {gib(size)} GiB"
        lines.append([(f" pid {process.pid}", "bold"), (text, "")])
    if state.now.gpus:
        lines += [[], [(f" {NOTE}", DIM)]]
    return lines
