"""Clocks. A call is timed on the GPU, on the wall and until it returns; each figure is a median."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from fulltilt.bench.augment.figures import Timing

Call = Callable[[int], Any]
"""A call of the contender on the k-th of its inputs; whoever made it takes k modulo their number."""

_OUTPUTS_HELD = 3
"""So that a call's output is not written where the last one's still lies in the cache."""
_CYCLES_PER_SECOND = 2e9
_LONGEST_SLEEP_SECONDS = 0.02


def time_on_gpu(call: Call) -> Timing:
    """All figures of one contender, in well under a second where a call takes less than 10 ms."""
    host_seconds, call_seconds = _estimate(call)
    return Timing(
        gpu_ms=_gpu_ms(call, host_seconds, call_seconds),
        wall_ms=_wall_ms(call, call_seconds),
        host_us=_host_us(call),
    )


def graph_ms(call: Call, calls: int = 16) -> float:
    """GPU time per call of `calls` calls replayed as one CUDA graph; they have run before."""
    graph = torch.cuda.CUDAGraph()
    held: deque[Any] = deque(maxlen=_OUTPUTS_HELD)
    with torch.cuda.graph(graph):
        for k in range(calls):
            held.append(call(k))
    graph.replay()
    return median(_between_events(graph.replay) for _ in range(15)) / calls


def time_on_cpu(call: Call) -> Timing:
    """Wall time only: on the CPU a call returns when it is done."""
    call(0)
    taken: list[float] = []
    while len(taken) < 3 or (sum(taken) < 0.5 and len(taken) < 20):
        began = time.perf_counter()
        call(len(taken))
        taken.append(time.perf_counter() - began)
    return Timing(wall_ms=median(taken) * 1e3)


def copy_tb_per_s() -> float:
    """The rate of a large copy on the device, bytes read plus bytes written."""
    source = torch.randint(0, 256, (1 << 30,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    seconds = median(_between_events(lambda: target.copy_(source)) for _ in range(15)) / 1e3
    return 2 * source.numel() / seconds / 1e12


def _estimate(call: Call) -> tuple[float, float]:
    """Seconds until a call returns, and until it is done, once everything is compiled."""
    for k in range(3):
        call(k)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for k in range(3):
        call(k)
    returned = time.perf_counter()
    torch.cuda.synchronize()
    return (returned - began) / 3, (time.perf_counter() - began) / 3


def _gpu_ms(call: Call, host_seconds: float, call_seconds: float) -> float:
    calls = max(1, min(20, int(0.02 / call_seconds)))
    # The GPU is held up while the host fills the queue: otherwise a slow host would count as GPU time.
    pause = int(min(1.5 * host_seconds * calls, _LONGEST_SLEEP_SECONDS) * _CYCLES_PER_SECOND)
    held: deque[Any] = deque(maxlen=_OUTPUTS_HELD)

    def several() -> None:
        for k in range(calls):
            held.append(call(k))

    taken = []
    for _ in range(max(3, min(15, int(1.0 / (calls * call_seconds))))):
        torch.cuda._sleep(pause)  # type: ignore[no-untyped-call]
        taken.append(_between_events(several) / calls)
    return median(taken)


def _wall_ms(call: Call, call_seconds: float) -> float:
    calls = max(2, min(200, int(0.05 / call_seconds)))
    held: deque[Any] = deque(maxlen=_OUTPUTS_HELD)
    taken = []
    for _ in range(5):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for k in range(calls):
            held.append(call(k))
        torch.cuda.synchronize()
        taken.append((time.perf_counter() - began) / calls)
    return median(taken) * 1e3


def _host_us(call: Call) -> float:
    taken = []
    for _ in range(5):
        torch.cuda.synchronize()
        for k in range(6):
            began = time.perf_counter()
            call(k)
            taken.append(time.perf_counter() - began)
    return median(taken) * 1e6


def _between_events(work: Callable[[], Any]) -> float:
    """Milliseconds on the GPU's clock."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))
