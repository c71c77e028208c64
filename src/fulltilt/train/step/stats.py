"""What `get_performance_stats` gives."""

from __future__ import annotations

_NAMES = frozenset(
    {
        "gpu_utilization", "avg_gpu_time", "avg_cpu_time", "cpu_ratio", "data_wait_seconds", "copy_seconds",
        "step_p50", "step_p99", "samples_per_second", "gpu_memory_bytes", "background_seconds",
    }
)  # fmt: skip


class PerformanceStats(dict[str, float]):
    """Figures by name. One that could not be taken is absent; asked for all the same, it is nan, never 0."""

    def __missing__(self, name: str) -> float:
        if name in _NAMES:
            return float("nan")
        raise KeyError(f"{name}; figures are {', '.join(sorted(_NAMES))}")
