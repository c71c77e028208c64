"""Where training stands: an epoch's sums so far, and the state that a checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fulltilt.errors import CheckpointError

FORMAT = 1


class Batch(NamedTuple):
    """One training batch, by its numbers; all count from 1."""

    step: int
    epoch: int
    batch: int
    samples: int


@dataclass(slots=True, kw_only=True)
class Sums:
    """An epoch so far, across interruptions."""

    batches: int = 0
    """Batches taken from the feed."""
    samples: int = 0
    waited: float = 0.0
    """Seconds in which there was no batch to go on with."""
    seconds: float = 0.0
    loss_sum: float = 0.0
    """Over finite losses, each as often as its batch has samples."""
    loss_samples: int = 0
    bad_losses: int = 0


@dataclass(slots=True, kw_only=True)
class MidEpoch:
    """What a checkpoint in the middle of an epoch holds beside the rest."""

    sums: Sums
    awaited: list[Batch] = field(default_factory=list)
    """Batches whose losses had not arrived."""
    losses: Tensor | None = None
    """Those losses."""
    augmentation: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None

    def for_other_world(self, then: int, now: int) -> None:
        """Counted by `then` processes, each its own part; gone on with by `now`, which add theirs up."""
        sums = self.sums
        mean = sums.loss_sum / max(sums.loss_samples, 1)
        sums.samples, sums.loss_samples = (round(count * then / now) for count in (sums.samples, sums.loss_samples))
        sums.loss_sum = mean * sums.loss_samples
        self.metrics = None

    def state_dict(self) -> dict[str, Any]:
        return {
            "sums": asdict(self.sums),
            "awaited": [list(batch) for batch in self.awaited],
            "losses": self.losses,
            "augmentation": self.augmentation,
            "metrics": self.metrics,
        }

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> MidEpoch:
        return cls(
            sums=Sums(**state["sums"]),
            awaited=[Batch(*batch) for batch in state["awaited"]],
            losses=state["losses"],
            augmentation=state["augmentation"],
            metrics=state["metrics"],
        )


def check_format(state: Mapping[str, Any]) -> None:
    """A checkpoint of a Trainer, of this version."""
    if state.get("format") != FORMAT or "model" not in state or "trainer" not in state:
        raise CheckpointError(
            f"the checkpoint holds {', '.join(map(str, state)) or 'nothing'} (format {state.get('format')}); "
            f"a Trainer's has model, trainer and format {FORMAT}"
        )


def is_finite(model: nn.Module, weights: Mapping[str, Any]) -> bool:
    """Whether the saved parameters are numbers: those of a run that had gone wrong before it was saved are not."""
    names = {name for name, _ in model.named_parameters()}
    floats = [w for name, w in weights.items() if name in names and isinstance(w, Tensor) and w.is_floating_point()]
    # Of a weight that is spread over ranks, each looks at its part.
    parts = [weight.to_local() if hasattr(weight, "to_local") else weight for weight in floats]
    return all(bool(torch.isfinite(part).all()) for part in parts)
