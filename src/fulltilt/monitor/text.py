"""The summary in words, for a terminal or a file."""

from __future__ import annotations

from fulltilt.measure.statistics import Figures
from fulltilt.monitor.drawing import DIM, FLAG_STYLE, VERDICT_STYLES, Line
from fulltilt.monitor.summary import CpuSummary, GpuSummary, ProcessSummary, Summary
from fulltilt.words import gib, many

_SERIES = (
    ("util", "utilisation"),
    ("sm", "SM activity"),
    ("occupancy", "occupancy"),
    ("tensor", "tensor cores"),
    ("dram", "bandwidth"),
)
NOTE = (
    "Utilisation is the driver's utilization.gpu: the share of time in which some kernel ran, not how much of the GPU"
    " it used."
)

LABEL_WIDTH = 15
"""What stands before a row's text, and where its next line begins when a terminal is too narrow for it."""


def summary_lines(summary: Summary) -> list[Line]:
    """The whole summary, a line each."""
    lines: list[Line] = [[(f"{many(summary.samples, 'sample')} over {summary.duration_seconds:.1f} s", "bold")]]
    for gpu in summary.gpus:
        lines += [[], *_gpu(gpu)]
    lines += [[], *_cpu(summary.cpu)]
    if summary.process is not None:
        lines += [[], *_process(summary.process)]
    if any(gpu.util is not None for gpu in summary.gpus):
        lines += [[], [(NOTE, DIM)]]
    return lines


def _gpu(gpu: GpuSummary) -> list[Line]:
    lines: list[Line] = [[(f"GPU {gpu.label}", "bold"), (f"  {gpu.name or ''}", ""), (f"  {gpu.uuid or ''}", DIM)]]
    lines += [_figures(name, getattr(gpu, field)) for field, name in _SERIES if getattr(gpu, field) is not None]
    if gpu.util is not None and gpu.sm is None:
        lines.append(_row("SM activity", "not measured (GPM needs Hopper or later)", DIM))
    if gpu.cycle_seconds is not None:
        lines.append(_row("cycle", f"{gpu.cycle_seconds:.1f} s from rise to rise"))
    if gpu.mem_peak is not None and gpu.mem_total:
        full = 100 * gpu.mem_peak / gpu.mem_total
        lines.append(_row("memory", f"{gib(gpu.mem_peak)} of {gib(gpu.mem_total)} GiB at its peak ({full:.0f} %)"))
    if gpu.temp_peak is not None:
        lines.append(_row("temperature", f"{gpu.temp_peak:.0f} °C at its peak"))
    if gpu.power_mean_w is not None:
        limit = f" of {gpu.power_limit_w:.0f}" if gpu.power_limit_w is not None else ""
        lines.append(_row("power", f"{gpu.power_mean_w:.0f}{limit} W on average"))
    if gpu.throttle:
        lines.append(_row("clocks", f"held down by: {', '.join(gpu.throttle)}"))
    if gpu.lost is not None:
        lines.append(_row("lost", gpu.lost, FLAG_STYLE))
    if gpu.verdict is not None:
        name = gpu.verdict.name
        lines.append([*_row("verdict", name, VERDICT_STYLES[name]), (f": {gpu.verdict.evidence}", "")])
        lines[-1] += [(f"  (rule: {gpu.verdict.rule})", DIM)]
    else:
        lines.append(_row("verdict", f"none: {gpu.why}", DIM))
    lines += [[*_row("flag", flag.name, FLAG_STYLE), (f": {flag.evidence}", "")] for flag in gpu.flags]
    return [*lines, _row("next", gpu.next_step)]


def _cpu(cpu: CpuSummary) -> list[Line]:
    cores = many(cpu.cores, "core") if cpu.cores is not None else ""
    lines: list[Line] = [[("CPU", "bold"), (f"  {cores}", "")]]
    series = (("utilisation", cpu.util), ("busiest core", cpu.busiest), ("iowait", cpu.iowait))
    lines += [_figures(name, figures, low=False) for name, figures in series if figures is not None]
    if cpu.ram_peak is not None and cpu.ram_total is not None:
        lines.append(_row("RAM", f"{gib(cpu.ram_peak)} of {gib(cpu.ram_total)} GiB at its peak"))
    if cpu.disk_read_mean_mb_s is not None:
        lines.append(_row("disk reads", f"{cpu.disk_read_mean_mb_s:.1f} MB/s on average"))
    return lines


def _process(process: ProcessSummary) -> list[Line]:
    lines: list[Line] = [[(f"Process {process.pid}", "bold"), (f"  {process.name or ''} and its descendants", "")]]
    if process.cpu_mean is not None:
        lines.append(_row("CPU", f"{process.cpu_mean / 100:.2f} cores busy on average"))
    if process.ram_peak is not None:
        lines.append(_row("RAM", f"{gib(process.ram_peak)} GiB at its peak"))
    if process.gpu_mem_peak is not None:
        lines.append(_row("GPU memory", f"{gib(process.gpu_mem_peak)} GiB at its peak"))
    return lines


def _figures(name: str, figures: Figures, *, low: bool = True) -> Line:
    text = f"{figures.mean:5.1f} % ± {figures.std:<4.1f}   p5 {figures.p5:5.1f}   p95 {figures.p95:5.1f}"
    if low:
        text += f"   below 10 % for {100 * figures.below_10:.0f} % of the time"
    return _row(name, text)


def _row(name: str, text: str, style: str = "") -> Line:
    return [(f"  {name}".ljust(LABEL_WIDTH), DIM), (text, style)]
