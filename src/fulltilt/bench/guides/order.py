"""What a contestant is asked for, what it answers, and which there are. Both sides of a process read this. No torch."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from fulltilt.machine.files import write_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One way to train a workload."""

    key: str
    title: str
    module: str
    """In this package; its `run(order, answer)` trains."""
    needs: str | None = None
    """A package that has to be installed."""
    tuned: bool = False


WHERE = signal.SIGUSR1
"""Asks a contestant where it is; it says so among its errors and goes on."""
BEFORE, AFTER = "before", "after"
CONTESTANTS = (
    Contestant(key=BEFORE, title="before: a plain loop", module="before"),
    Contestant(key=AFTER, title="after: fulltilt train", module="after"),
    Contestant(
        key="lightning_tuned", title="Lightning, hand-tuned", module="with_lightning", needs="lightning", tuned=True
    ),
    Contestant(
        key="accelerate_tuned", title="Accelerate, hand-tuned", module="with_accelerate", needs="accelerate", tuned=True
    ),
    Contestant(key="lightning", title="Lightning, its defaults", module="with_lightning", needs="lightning"),
    Contestant(key="accelerate", title="Accelerate, its defaults", module="with_accelerate", needs="accelerate"),
)
"""In the order in which they are run: what a target needs comes first, should time run out."""
TUNED_PEERS = tuple(one.key for one in CONTESTANTS if one.needs and one.tuned)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One contestant's work."""

    recipe: str
    contestant: str
    folder: str
    """For checkpoints and logs; removed afterwards."""
    answer: str
    """The file that its findings go to, again after each part."""
    seconds: float
    """Of training, about, where it is measured; setting up comes on top."""
    small: bool = False
    overrides: tuple[str, ...] = ()
    samples: int | None = None
    """To train with in all, so that every metric is of as much training: a larger batch makes fewer steps of it, and
    what that costs shows. None: *before* finds what it can do."""
    batch_size: int | None = None
    """As *after* has it, for whoever is tuned by hand."""
    before_took_seconds: float | None = None
    """For as many."""
    metric: float | None = None
    """That *before* has reached: where *after* seems to fall short of it, other seeds tell what is noise."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        flat = json.loads(text)
        return cls(**{**flat, "overrides": tuple(flat["overrides"])})


@dataclass(slots=True, kw_only=True)
class Answer:
    """What was found so far. What could not be taken is absent."""

    samples_per_second: float | None = None
    """While training: waiting for data is in it, validation and checkpoints are not."""
    overall_per_second: float | None = None
    """Validation and checkpoints in it, as often as the configuration has them."""
    seconds: float | None = None
    """That these were measured over."""
    steps: int | None = None
    """That the metric was reached with."""
    wait_share: float | None = None
    """Of the training time, without a batch to go on with."""
    batch_size: int | None = None
    metric: float | None = None
    metrics: list[float] = field(default_factory=list)
    """Of several seeds, where there are several; the metric is their mean."""
    peak_memory_bytes: int | None = None
    """Most that torch held on the device while it was measured."""
    limit_per_second: float | None = None
    """The same step with its batch on the device already."""
    setup_seconds: float | None = None
    """From the process's start to the first measured step, trials and compiling in it."""
    window: tuple[float, float] | None = None
    """From when to when, on the machine's monotonic clock, all this was measured, validation and checkpoints in it."""
    stretches: list[tuple[float, float]] = field(default_factory=list)
    """The parts of it in which it trained."""
    gpu_uuid: str | None = None
    note: str | None = None
    plan: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    """Of the plan's settings and the feed's, as they were logged."""
    feed: dict[str, Any] = field(default_factory=dict)
    """The feed's own figures when it was measured."""
    problem: str | None = None
    trace: list[str] = field(default_factory=list)
    """The last lines that it said, where there is a problem."""

    @property
    def samples(self) -> int | None:
        """That the metric was reached with."""
        return None if self.steps is None or self.batch_size is None else self.steps * self.batch_size

    def write(self, path: str) -> None:
        flat = {key: value for key, value in asdict(self).items() if value not in (None, {}, [])}
        write_whole(Path(path), json.dumps(flat) + "\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """The newest; an empty one where nothing was written yet."""
        if not path.exists():
            return cls()
        flat: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        known = {one.name for one in fields(cls)}
        found = cls(**{key: value for key, value in flat.items() if key in known})
        found.window = (found.window[0], found.window[1]) if found.window else None
        found.stretches = [(began, ended) for began, ended in found.stretches]
        return found
