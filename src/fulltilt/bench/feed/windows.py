"""Windows of a signal in memory, small batches, a small CNN: where a DataLoader's cost per sample is most of the time.

Both feeds are measured with both steps, so that it can be seen what the feed brings and what the graphed step does. The
target compares what we offer (resident data, the step as one CUDA graph) with the fastest DataLoader and a plain step.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from fulltilt.bench.feed.figures import Case, Rate, target
from fulltilt.bench.feed.limit import Plan, attempt
from fulltilt.bench.feed.loader import loading
from fulltilt.bench.feed.measure import endless, measure
from fulltilt.bench.feed.models import GraphedStep, Step, window_classifier
from fulltilt.bench.feed.scale import Scale
from fulltilt.bench.ground import Say
from fulltilt.feed import feed

PART = "windows"
BATCH = 32
AGAINST_LOADER = target("times_loader", 10)
_SHAPE = (24, 16)
_WARM_STEPS = 20


def measure_windows(scale: Scale, *, say: Say) -> list[Case]:
    torch.manual_seed(0)
    data = torch.randn(scale.windows, *_SHAPE), torch.randint(0, 10, (scale.windows,))
    plain = _plain_step(scale)
    plans = [
        Plan(key="windows_feed_plain", title="feed, plain step", run=lambda: _fed(data, plain, scale)),
        Plan(
            key="windows_loader_0",
            title="DataLoader, 0 workers, plain step",
            run=lambda: _loaded(data, plain, scale, 0),
        ),
    ]
    if scale.peers:
        plans.append(
            Plan(
                key="windows_loader_8",
                title="DataLoader, 8 workers, plain step",
                run=lambda: _loaded(data, plain, scale, 8),
            )
        )
    if scale.gpu:
        plans += [
            Plan(
                key="windows_feed_graphed",
                title="feed, step as a CUDA graph",
                run=lambda: _fed(data, _graphed_step(data, scale), scale),
                wanted=(AGAINST_LOADER,),
            ),
            Plan(
                key="windows_loader_graphed",
                title="DataLoader, 0 workers, step as a CUDA graph",
                run=lambda: _loaded(data, _graphed_step(data, scale), scale, 0),
            ),
        ]
    return with_ratios([attempt(PART, plan, say) for plan in plans])


def with_ratios(cases: list[Case]) -> list[Case]:
    """Feeds as multiples of the fastest DataLoader under a plain step."""
    plain = [
        case.rate.samples_per_second
        for case in cases
        if case.rate is not None and case.key in ("windows_loader_0", "windows_loader_8")
    ]
    if not plain:
        return cases
    return [
        replace(case, times_loader=case.rate.samples_per_second / max(plain))
        if case.rate is not None and case.key.startswith("windows_feed")
        else case
        for case in cases
    ]


def _plain_step(scale: Scale) -> Step:
    return Step(window_classifier(), scale.device, half=False, compiled=False)


def _graphed_step(data: tuple[Tensor, Tensor], scale: Scale) -> GraphedStep:
    windows, labels = (tensor[:BATCH].to(scale.device) for tensor in data)
    return GraphedStep(_plain_step(scale), windows, labels)


def _fed(data: tuple[Tensor, Tensor], step: Step | GraphedStep, scale: Scale) -> Rate:
    with feed(data, batch_size=BATCH, device=scale.device, shuffle=True, drop_last=True) as it:
        rate = measure(
            endless(it), step, device=scale.device, warm=_WARM_STEPS, steps=100_000, seconds=scale.window_seconds,
            feed=it, workers=0,
        )  # fmt: skip
    step.check()
    return rate


def _loaded(data: tuple[Tensor, Tensor], step: Step | GraphedStep, scale: Scale, workers: int) -> Rate:
    with loading(TensorDataset(*data), batch=BATCH, workers=workers, device=scale.device) as batches:
        rate = measure(
            batches, step, device=scale.device, warm=_WARM_STEPS, steps=100_000, seconds=scale.window_seconds,
            workers=workers,
        )  # fmt: skip
    step.check()
    return rate
