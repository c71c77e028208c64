"""The feed of clips that workers and the GPU's video engines decode together."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from fulltilt.errors import InputError, UnavailableError
from fulltilt.feed.balance import Balance
from fulltilt.feed.base import when_forgotten
from fulltilt.feed.clips.batch import Splitter
from fulltilt.feed.clips.clips import VideoClips
from fulltilt.feed.clips.sharing import Sharing
from fulltilt.feed.clips.side import ClipSide
from fulltilt.feed.datasets.dataset_feed import DatasetFeed, running, shut
from fulltilt.feed.datasets.hosting import Hosting
from fulltilt.feed.datasets.legs import Legs
from fulltilt.feed.mover import Mover
from fulltilt.feed.order import Order, Step
from fulltilt.feed.share import ShareTuner
from fulltilt.feed.tuner import Tuner
from fulltilt.machine.decision import Decision

log = logging.getLogger("fulltilt.feed")


class ClipFeed(DatasetFeed):
    """Clips on a GPU, which takes a share of the decoding: one that is given, or the one that trains fastest."""

    def __init__(
        self,
        source: VideoClips,
        order: Order,
        *,
        device: torch.device,
        hosting: Decision[Hosting],
        tune: bool,
        ahead: int,
        gpu_share: float | None,
        augment: Callable[..., Any] | None = None,
    ) -> None:
        """
        Args:
            gpu_share: the part of all clips that the GPU decodes; None looks for it.
        """
        super().__init__(
            source,
            order,
            device=device,
            hosting=hosting,
            tune=tune,
            ahead=ahead,
            augment=augment,
            collate=source.collate_told,
        )
        self._crew.let_go()
        chosen, threads = hosting.value, 1 if source.threads == "auto" else source.threads
        self._source = source
        self._splitter = Splitter(source.clips)
        tuner = partial(Tuner, most=chosen.most, beyond=chosen.beyond, least=max(chosen.least, 1))
        self._sharing = Sharing(
            Balance(
                workers=chosen.workers,
                tuner=tuner if tune else None,
                share=ShareTuner() if gpu_share is None else None,
                most_workers=chosen.most,
            ),
            self._crew.legs,
            threads=threads if chosen.kind == "processes" or threads == 1 else None,
        )
        self._finalizer.detach()
        self._finalizer = when_forgotten(self, _shut, self._mover, self._crew.legs, self._splitter)
        if gpu_share:
            self._set_share(gpu_share)

    @property
    def decision(self) -> Decision[int] | None:
        return self._sharing.decisions[1]

    @property
    def share_decision(self) -> Decision[float] | None:
        """The GPU's share of decoding that was chosen; None while it is looked for or when it was given."""
        return self._sharing.decisions[0]

    @property
    def is_settled(self) -> bool:
        """Neither the number of workers nor the GPU's share is being looked for."""
        return self._sharing.balance.state == "settled"

    def settle(self) -> None:
        """Look no further: go on with the best share that was tried, and as many workers as there are."""
        self._check_open()
        self._sharing.settle()
        if self._sharing.share is not None:
            self._set_share(self._sharing.share)

    def resize(self, workers: int) -> None:
        """Go on with another number of workers, chosen by hand, and the GPU's share as it is."""
        self._check_open()
        if workers < 1:
            raise InputError(f"resize({workers}): clips that the GPU shares have 1 worker or more")
        self._sharing.balance = Balance(workers=workers, tuner=None, share=None, most_workers=workers)
        self._crew.legs.resize(workers)

    def inspect_with(self, look: Callable[[Any], None]) -> bool:
        """Labels, with None for the clips: some are on the device already."""

        def look_at(item: Any) -> None:
            if item[2] is not None:
                look((None, item[2]))

        self._mover.inspect = look_at
        return True

    def stats(self) -> dict[str, Any]:
        """With the GPU's share, what it has decoded, and what the balance does."""
        side, balance = self._splitter.side, self._sharing.balance
        return {
            **super().stats(),
            "gpu_share": self._splitter.share,
            "gpu_samples": 0 if side is None else side.samples,
            "gpu_decode_seconds_per_sample": side.seconds / side.samples if side is not None and side.samples else None,
            "balance": balance.state,
            "balance_changes": balance.changes,
            "balance_reopened": balance.reopened,
        }

    def _begin(self, steps: Iterator[Step]) -> None:
        self._mover.stop()
        self._given = deque()
        self._splitter.begin()
        requests = self._splitter.requests(steps, self._given)
        self._mover.start(self._splitter.joined(running(self._crew.legs, requests)))

    def _paused(self) -> None:
        self._sharing.window.pause()

    def _went_on(self) -> None:
        self._sharing.window.go_on()

    def _next(self) -> tuple[Step, Any]:
        pixels, places, labels, whole = self._mover.next()
        waited = self._mover.waited_seconds
        self._clock.waited(waited)
        step = self._given.popleft()
        self._follow(len(step.indices), waited, whole.share)
        self._skipped += len(step.indices) - whole.count
        batch = whole.batch(pixels, places, labels)
        if batch is None:
            return self._without_any(step)
        step = replace(step, indices=step.indices[whole.positions])
        return step, self._augment(batch, step.epoch, torch.from_numpy(step.indices))

    def _follow(self, samples: int, waited: float, share: float) -> None:
        side = self._splitter.side
        if side is not None and side.trouble is not None and self._splitter.share:
            log.warning("%s: the CPU decodes all from now on", side.trouble)
            self._leave_to_the_cpu()
        self._sharing.saw(samples, waited, share)
        if self._sharing.share is not None and self._sharing.share != self._splitter.share:
            self._set_share(self._sharing.share)

    def _set_share(self, share: float) -> None:
        """From the next batch on that is begun; where the GPU can't decode, none of it."""
        if self._splitter.side is None and share > 0:
            try:
                self._splitter.side = ClipSide(self._source, self._device)
            except UnavailableError as error:
                log.warning("%s: the CPU decodes all", error)
                self._leave_to_the_cpu()
                return
        self._splitter.share = share

    def _leave_to_the_cpu(self) -> None:
        self._splitter.share = 0.0
        self._sharing.without_share()


def _shut(mover: Mover, legs: Legs, splitter: Splitter) -> None:
    """The thread that waits for both, then they."""
    shut(mover, legs)
    splitter.begin()
    if splitter.side is not None:
        splitter.side.close()
