"""Figures as lines of text. What could not be measured is left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fulltilt.words import memory_size, milliseconds


def per_second(samples: float) -> str:
    """Clips on a CPU may take seconds each: below ten, figures behind the point count."""
    return f"{samples:,.0f} samples/s" if samples >= 10 else f"{samples:.2g} samples/s"


def perf_line(batch: int, stats: Mapping[str, float], *, loss: float | None = None) -> str:
    """[perf] batch 100: GPU 78.5%, GPU 0.045 s, CPU 0.012 s, …"""
    parts = [
        *_part(stats, "gpu_utilization", lambda share: f"GPU {share:.1f}%"),
        *_part(stats, "avg_gpu_time", lambda seconds: f"GPU {_time(seconds)}"),
        *_part(stats, "avg_cpu_time", lambda seconds: f"CPU {_time(seconds)}"),
        *_part(stats, "data_wait_seconds", lambda seconds: f"wait {_time(seconds)}"),
        *_part(stats, "samples_per_second", per_second),
    ]
    if loss is not None:
        parts.append(f"loss {loss:.4g}")
    return f"[perf] batch {batch}: {', '.join(parts)}"


def epoch_line(record: Mapping[str, Any], epochs: int) -> str:
    """The epoch's results in one line."""
    figures = ", ".join(f"{name} {value:.4g}" for name, value in record.items() if _is_result(name, value))
    rate = record.get("samples_per_second")
    pace = "" if rate is None else f", {per_second(rate)}"
    return f"epoch {record['epoch']}/{epochs}: {figures} ({record['seconds']:.1f} s{pace})"


def epoch_detail(stats: Mapping[str, float]) -> str:
    """How the epoch's time was spent; empty when nothing was measured."""
    parts = [
        *_part(stats, "gpu_utilization", lambda share: f"GPU busy {share:.1f}%"),
        *_part(stats, "avg_gpu_time", lambda seconds: f"GPU {milliseconds(seconds)}/step"),
        *_part(stats, "avg_cpu_time", lambda seconds: f"CPU {milliseconds(seconds)}/step"),
        *_part(stats, "cpu_ratio", lambda share: f"CPU share {100 * share:.0f}%"),
        *_part(stats, "data_wait_seconds", lambda seconds: f"data wait {milliseconds(seconds)}/step"),
        *_part(stats, "copy_seconds", lambda seconds: f"copy {milliseconds(seconds)}/step"),
        *_part(stats, "step_p50", lambda seconds: f"step p50 {milliseconds(seconds)}"),
        *_part(stats, "step_p99", lambda seconds: f"p99 {milliseconds(seconds)}"),
        *_part(stats, "gpu_memory_bytes", lambda count: f"GPU memory {memory_size(count)}"),
    ]
    return ", ".join(parts)


def _part(stats: Mapping[str, float], name: str, text: Any) -> list[str]:
    return [text(stats[name])] if stats.get(name) is not None else []


def _is_result(name: str, value: Any) -> bool:
    return isinstance(value, float) and name.startswith(("train_", "val_")) and name != "val_seconds"


def _time(seconds: float) -> str:
    """Seconds, but steps of a quarter millisecond must not read 0.000 s."""
    return f"{seconds:.3f} s" if seconds >= 0.01 else f"{1000 * seconds:.3f} ms"
