"""The validation data gone through: loss and metrics, read once at the end."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from fulltilt.assist.beside import MetricsBeside
from fulltilt.errors import InputError
from fulltilt.feed.base import Feed, OrderedFeed
from fulltilt.feed.datasets.loader_feed import LoaderFeed
from fulltilt.train.augmenting import LoopAugmentation
from fulltilt.train.checkpoint import rng
from fulltilt.train.labels import watched
from fulltilt.train.ranks.shared import first_samples, own_samples
from fulltilt.train.ranks.together import same_buffers, summed
from fulltilt.train.report.progress import Bar
from fulltilt.train.sources import batches
from fulltilt.train.step.roles import target_place
from fulltilt.train.step.step import HybridPrecisionTrainer
from fulltilt.train.unpacking import Unpacking


class Validation:
    """Epochs of the validation feed."""

    def __init__(
        self,
        stepper: HybridPrecisionTrainer,
        source: Feed,
        *,
        augment: LoopAugmentation | None,
        metrics: MetricsBeside | None,
        unpacking: Unpacking,
    ) -> None:
        self.source, self.batches = source, batches(source)
        self._labels = watched(source, stepper.objective, stepper.device, augment)
        self._stepper, self._augment, self._metrics, self._unpacking = stepper, augment, metrics, unpacking

    def run(self, bar: Bar, *, aside: bool = False) -> dict[str, float]:
        """`val_loss`, the mean over all samples, and every metric.

        Args:
            aside: a run that went on would not validate now; if it is gone on with, nothing shows that it did.
        """
        losses: list[Tensor] = []
        sizes: list[int] = []
        if self._augment is not None:
            self._augment.begin(0)
        if self._metrics is not None:
            self._metrics.reset()
        bar.begin("validation", self.batches)
        same_buffers(self._stepper.model)
        with evaluating(self._stepper.model), self._averaged(), self._random_kept(aside):
            place, prepare = 0, None
            for batch in self.source:
                if not losses:
                    prepare = self._unpacking.prepared(batch, self._augment, name="val_loader")
                    self._stepper.target = self._unpacking.place
                given = batch if prepare is None else prepare(batch)
                if not losses:
                    place = target_place(tuple(given), self._stepper.target)
                own = own_samples(self.source, len(losses) + 1)
                if own:
                    given = first_samples(given, own)
                try:
                    loss, outputs = self._stepper.eval_step(*given)
                except InputError as error:
                    raise InputError(f"validation, batch {len(losses) + 1}: {error}") from error
                if not losses and self._labels is not None:
                    self._labels.know(self._unpacking.target_key or place)
                losses.append(loss)
                sizes.append(len(given[0]) if own != 0 else 0)
                if self._metrics is not None and own != 0:
                    self._metrics.add(outputs, given[place])
                bar.advance(len(losses))
        if not losses:
            raise InputError("val_loader yields nothing; an iterator is used up after one epoch")
        found = torch.stack(losses).float().tolist()
        total = math.fsum(loss * size for loss, size in zip(found, sizes, strict=True))
        total, count = summed([total, sum(sizes)], self._stepper.device)
        return {"val_loss": total / count, **({} if self._metrics is None else self._metrics.compute())}

    def went_before(self) -> None:
        """In the run that is gone on with: a loader's workers that live on had been started."""
        if isinstance(self.source, LoaderFeed):
            self.source.take_over(begun=True)

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        ema = getattr(self._stepper, "ema", None)
        with nullcontext() if ema is None else ema.applied():
            yield

    @contextmanager
    def _random_kept(self, aside: bool) -> Iterator[None]:
        """A feed of ours draws when it starts, which a resumed run does again: training must not notice.

        A DataLoader draws each time it is gone through, and is left to, as in any loop.
        """
        states = rng.take() if aside else None
        state = torch.get_rng_state() if isinstance(self.source, OrderedFeed) else None
        try:
            yield
        finally:
            if states is not None:
                rng.restore(states)
            elif state is not None:
                torch.set_rng_state(state)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in eval mode; afterwards every part as it was, also those that somebody keeps in eval mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
