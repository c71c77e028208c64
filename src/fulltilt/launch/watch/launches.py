"""Counts the kernels of one step, by torch's profiler, once watching is over: it would slow down the steps it sees."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

GRAPHS = ("cudaGraphLaunch", "hipGraphLaunch")
LAUNCHING = ("cudaLaunch", "cuLaunch", "hipLaunch", "hipExtModuleLaunch", *GRAPHS)
"""Beginnings of the runtime's calls that give the GPU something to do; a graph is one, however many kernels it has."""
FUSABLE = ("elementwise", "reduce", "norm", "::bn_", "softmax", "dropout", "pool", "catarray", "index")
"""Parts of the names of kernels that read and write memory, and that a compiler puts together with their neighbours."""
NOT_THE_MODELS = "multi_tensor"
"""An optimizer's, say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    count: int
    graphs: int
    """Of these, graphs."""
    kernel_seconds: float
    """On the GPU, all kernels added up; those of a graph may be hidden from the profiler."""
    fusable_seconds: float
    """Of these, in kernels that a compiler would put together."""


class Counter:
    """From the end of one step to the end of the next."""

    def __init__(self) -> None:
        import torch

        activities = torch.profiler.ProfilerActivity
        self._profiler: Any = torch.profiler.profile(activities=[activities.CPU, activities.CUDA])

    def begin(self) -> str | None:
        """Why it can't, where it can't: the script profiles itself, or the driver does not allow it."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._profiler.start()
        except (RuntimeError, AssertionError) as error:
            return f"kernels were not counted: {error}"
        return None

    def end(self) -> Launched:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._profiler.stop()
            return launched(self._profiler.events())


def launched(events: Any) -> Launched:
    """From the profiler's events: calls on the host's side, kernels on the device's."""
    import torch

    device = torch._C._autograd.DeviceType.CUDA
    count, graphs, spent, fusable = 0, 0, 0.0, 0.0
    for event in events:
        name = str(event.name)
        if event.device_type == device:
            # A region with a name, as each optimizer's step is, lies over its kernels once more.
            if not event.is_user_annotation and not name.startswith(("Memcpy", "Memset")):
                spent += event.time_range.elapsed_us()
                lowered = name.lower()
                if NOT_THE_MODELS not in lowered and any(part in lowered for part in FUSABLE):
                    fusable += event.time_range.elapsed_us()
        elif name.startswith(LAUNCHING):
            count += 1
            graphs += name.startswith(GRAPHS)
    return Launched(count=count, graphs=graphs, kernel_seconds=spent / 1e6, fusable_seconds=fusable / 1e6)
