"""Known loads for a GPU, each a process of its own: `python -m fulltilt.bench.loads fed`.

    idle      holds the device and does nothing
    starved   one process loads on the CPU, then gives the GPU a short step: busy about 30 % of the time
    bursty    four seconds of steps, two of nothing, as when an evaluation or a checkpoint interrupts the training
    fed       one large bf16 matrix product after another

It prints `ready` once the load runs, and ends after --seconds, on SIGTERM, or when the process that started it is gone.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

LOADS = ("idle", "starved", "bursty", "fed")
BURSTY_SECONDS = (4.0, 2.0)
"""At work, then at rest."""
STARVED_SHARE = 0.3
"""Of the time in which the GPU is at work."""


def run(load: str, *, device: str, seconds: float) -> None:
    """Run a load on a device (`cuda` or `cpu`) for so long."""
    import torch

    size = 8192 if device == "cuda" else 128
    left = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    out = torch.empty_like(left)

    def step(products: int) -> None:
        for _ in range(products):
            torch.mm(left, left, out=out)
        if device == "cuda":
            torch.cuda.synchronize()

    step(8)  # libraries load and clocks rise before anything is measured
    started_by = os.getppid()
    start = time.monotonic()

    def over() -> bool:
        return time.monotonic() - start > seconds or os.getppid() != started_by

    print("ready", flush=True)
    _LOADS[load](step, over, start)


def _idle(step: Callable[[int], None], over: Callable[[], bool], start: float) -> None:  # noqa: ARG001
    while not over():
        time.sleep(0.1)


def _fed(step: Callable[[int], None], over: Callable[[], bool], start: float) -> None:  # noqa: ARG001
    while not over():
        step(32)


def _bursty(step: Callable[[int], None], over: Callable[[], bool], start: float) -> None:
    work, rest = BURSTY_SECONDS
    while not over():
        if (time.monotonic() - start) % (work + rest) < work:
            step(8)
        else:
            time.sleep(0.01)


def _starved(step: Callable[[int], None], over: Callable[[], bool], start: float) -> None:  # noqa: ARG001
    import torch

    torch.set_num_threads(1)  # as a loader in the training process
    image = torch.randint(0, 256, (3, 500, 375), dtype=torch.uint8)
    while not over():
        began = time.perf_counter()
        step(8)
        spent = time.perf_counter() - began
        loading_until = time.perf_counter() + spent * (1 / STARVED_SHARE - 1)
        while time.perf_counter() < loading_until:
            _load_one(image)


def _load_one(image: Any) -> Any:
    """What a loader does to one image: to float, resized, flipped, normalised."""
    import torch

    small = torch.nn.functional.interpolate(image[None].float().div_(255), size=(224, 224), mode="bilinear")
    return small.flip(-1).sub_(0.45).div_(0.22)


_LOADS: dict[str, Callable[[Callable[[int], None], Callable[[], bool], float], None]] = {
    "idle": _idle,
    "starved": _starved,
    "bursty": _bursty,
    "fed": _fed,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Run a known load on a GPU.")
    parser.add_argument("load", choices=LOADS)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=3600.0)
    wanted = parser.parse_args()
    run(wanted.load, device=wanted.device, seconds=wanted.seconds)


if __name__ == "__main__":
    main()
