"""Observations made up here: a step that is told in milliseconds, and what stands around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from fulltilt.diagnose import Diagnosis, diagnose
from fulltilt.measure.observation import (
    Loader,
    Observation,
    Phase,
    Place,
    Stage,
    Step,
    Surroundings,
    Training,
)

SOURCE = """\
import torch
from torch.utils.data import DataLoader

loader = DataLoader(data, batch_size=32, num_workers=2)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for image, label in loader:
    image = image.to(device)
    print(loss.item())
"""
BATCH = 32
GPU_STEP: dict[Phase, float] = {
    "data wait": 0.1, "copy": 0.2, "forward": 10, "backward": 20, "optimizer": 1, "sync": 0, "other": 0.5,
}  # fmt: skip
"""Milliseconds of a well-fed step on a GPU."""
FAST = {
    "model": "ResNet", "parameters": 25_000_000, "dtype": "torch.float32", "device": "cuda:0", "images": True,
    "channels_last": True, "compiled": True, "autocast": "torch.bfloat16", "tf32": True, "cudnn_benchmark": True,
    "optimizer": "AdamW", "fused": True, "foreach": False,
}  # fmt: skip
"""A training with nothing left to set."""


@dataclass(frozen=True, kw_only=True)
class Planted:
    """One script: how it is and what its limits are."""

    phases: dict[Phase, float]
    loader: dict[str, Any] | None
    stages: tuple[Stage, ...] = ()
    training: dict[str, Any]
    surroundings: dict[str, Any]
    rest: dict[str, Any]
    limit: float | None
    """Milliseconds of the step at its limit."""
    loader_rate: float | None

    def observation(self, **other: Any) -> Observation:
        steps = 60
        seconds = sum(self.phases.values()) / 1e3
        phases: dict[Phase, float] = {phase: value / 1e3 for phase, value in self.phases.items()}
        made = [
            Step(number=at, started=at * seconds, seconds=seconds, phases=phases, samples=BATCH, loss=1.0)
            for at in range(steps)
        ]
        loaders = () if self.loader is None else (_loader(self.loader, self.stages),)
        whole: dict[str, Any] = {
            "command": ("train.py",),
            "ended": "stable",
            "seconds": 20.0,
            "steps": tuple(made),
            "attributed": 0.98,
            "loaders": loaders,
            "training": Training(**{**FAST, **self.training}),
            "surroundings": Surroundings(**{"cores": 16, "gpu": "NVIDIA H200", "gpu_share": 0.95, **self.surroundings}),
            **self.rest,
            **other,
        }
        return Observation(**whole)

    def diagnose(self) -> Diagnosis:
        observation = self.observation()
        replay = loader = None
        if self.limit is not None:
            seconds = self.limit / 1e3
            steps = [
                Step(number=at, started=0, seconds=seconds, phases={"forward": seconds}, samples=BATCH)
                for at in range(20)
            ]
            replay = self.observation(mode="replay", steps=tuple(steps))
        if self.loader_rate is not None:
            loaders = (_loader({**(self.loader or {}), "samples_per_second": self.loader_rate}, self.stages),)
            loader = self.observation(mode="loader", loaders=loaders, steps=())
        return diagnose(observation, replay=replay, loader=loader, read_source=lambda _: SOURCE)


def _loader(given: dict[str, Any], stages: tuple[Stage, ...]) -> Loader:
    usual: dict[str, Any] = {
        "role": "train",
        "place": Place(file="train.py", line=4, text="loader = DataLoader(…"),
        "dataset": "Photos",
        "samples": 100_000,
        "batch_size": BATCH,
        "num_workers": 8,
        "prefetch_factor": 2,
        "persistent_workers": True,
        "pin_memory": True,
        "batch_bytes": 19_000_000,
        "starts": 1,
        "start_seconds": 0.5,
    }
    return Loader(**{**usual, "stages": stages, **given})


@pytest.fixture(scope="session")
def planted() -> Callable[..., Planted]:
    """`planted(phases={"data wait": 40}, loader={"num_workers": 0}, …)`: a well-fed script but for what is given."""

    def make(
        *,
        phases: dict[Phase, float] | None = None,
        loader: dict[str, Any] | None = None,
        has_loader: bool = True,
        stages: dict[str, tuple[float, float] | float] | None = None,
        training: dict[str, Any] | None = None,
        surroundings: dict[str, Any] | None = None,
        limit: float | None = 31.5,
        loader_rate: float | None = 2000.0,
        **rest: Any,
    ) -> Planted:
        made = []
        for name, value in (stages or {}).items():
            wall, cpu = value if isinstance(value, tuple) else (value, value)
            made.append(Stage(name=name, seconds=wall / 1e3, cpu_seconds=cpu / 1e3))
        return Planted(
            phases={**GPU_STEP, **(phases or {})},
            loader=(loader or {}) if has_loader else None,
            stages=tuple(made),
            training=training or {},
            surroundings=surroundings or {},
            limit=limit,
            loader_rate=loader_rate if has_loader else None,
            rest=rest,
        )

    return make
