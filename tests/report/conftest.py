"""Recordings with the shapes of real ones, made up here: a page needs odd cases that no real recording has."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from fulltilt.machine.sample import CpuSample, GpuSample, Sample
from fulltilt.monitor.summary import summarize
from fulltilt.report import monitor_page

GIB = 2**30
Shape = Callable[[float, random.Random], tuple[float, float]]
"""Utilisation and SM activity at a moment."""


def starved(t: float, rng: random.Random) -> tuple[float, float]:
    util = min(max(rng.gauss(31, 6), 0), 100)
    return util, util * 0.7


def bursty(t: float, rng: random.Random) -> tuple[float, float]:
    """Eight seconds of work, four of waiting."""
    if t % 12 < 8:
        return rng.uniform(93, 100), rng.uniform(80, 88)
    return rng.uniform(0, 6), rng.uniform(0, 4)


def fed(t: float, rng: random.Random) -> tuple[float, float]:
    return rng.uniform(96, 100), rng.uniform(86, 92)


def idle(t: float, rng: random.Random) -> tuple[float, float]:
    return 0.0, 0.0


SHAPES: dict[str, Shape] = {"starved": starved, "bursty": bursty, "fed": fed, "idle": idle}


def make_recording(
    *shapes: str, seconds: float = 300, interval: float = 1.0, cores: int = 16, name: str = "NVIDIA H200"
) -> list[Sample]:
    """One GPU per shape."""
    rng = random.Random(20_11)
    temps = [38.0] * len(shapes)
    samples = []
    for step in range(round(seconds / interval) + 1):
        t = step * interval + rng.uniform(0, 0.02) * interval
        gpus = []
        busy = 0.0
        for index, shape in enumerate(shapes):
            util, sm = SHAPES[shape](t + 3.1 * index, rng)
            busy += util / 100 / len(shapes)
            temps[index] += ((34 + util * 0.33) - temps[index]) * min(0.06 * interval, 1) + rng.gauss(0, 0.15)
            gpus.append(
                GpuSample(
                    index=index,
                    name=name,
                    util=round(util),
                    sm=round(sm, 1),
                    occupancy=round(sm * 0.45, 1),
                    tensor=round(sm * 0.31, 1),
                    dram=round(sm * 0.52, 1),
                    mem_used=int((6 + 34 * min(t / 20, 1) * (shape != "idle")) * GIB),
                    mem_total=150754820096,
                    temp=round(temps[index]),
                    power_w=round(78 + sm * 5.6 + rng.gauss(0, 4), 1),
                    power_limit_w=700.0,
                )
            )
        single = shapes[:1] == ("starved",)
        loads = [99.0 if single and core == 3 else (4 if single else 18 + 60 * (1 - busy)) for core in range(cores)]
        loads = [round(min(max(load + rng.gauss(0, 5), 0), 100), 1) for load in loads]
        cpu = CpuSample(
            util=round(sum(loads) / cores, 1),
            iowait=round(abs(rng.gauss(1, 1)), 1),
            cores=tuple(loads),
            ram_used=31 * GIB,
            ram_total=128 * GIB,
        )
        samples.append(Sample(t=round(t, 3), gpus=tuple(gpus), cpu=cpu))
    return samples


def lose_gpu(samples: list[Sample], *, index: int, after: float) -> list[Sample]:
    """The same recording with one GPU off the bus from then on."""
    return [
        sample
        if sample.t < after
        else replace(
            sample,
            gpus=tuple(
                GpuSample(index=gpu.index, name=gpu.name, lost="GPU is lost") if gpu.index == index else gpu
                for gpu in sample.gpus
            ),
        )
        for sample in samples
    ]


@pytest.fixture(scope="session")
def record() -> Callable[..., list[Sample]]:
    """`record("bursty", seconds=60)`: a made-up recording with one GPU per shape."""
    return make_recording


@pytest.fixture(scope="session")
def lose() -> Callable[..., list[Sample]]:
    """`lose(samples, index=0, after=30)`: the same recording with one GPU off the bus from then on."""
    return lose_gpu


@pytest.fixture(scope="session")
def draw_page() -> Callable[..., str]:
    """`draw_page(samples)`: their page."""
    return lambda samples, title="a recording": monitor_page(samples, summarize(samples), title=title)
