"""The feed of image files: reader, stage and errors put together."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import psutil
import torch
from torch import Tensor

from fulltilt.augment import GPUAugmentation
from fulltilt.cache.policy import Keep
from fulltilt.decode.gpu import GpuDecoder
from fulltilt.errors import InputError, SampleError, UnavailableError
from fulltilt.feed.balance import Balance, Seen
from fulltilt.feed.base import OrderedFeed, Tensors, when_forgotten
from fulltilt.feed.busy import BusyMeter, cpu_seconds
from fulltilt.feed.images.caching import ENOUGH_SAMPLES, AutoCache
from fulltilt.feed.images.catalog import Catalog
from fulltilt.feed.images.features import FeatureTable
from fulltilt.feed.images.files import ImageFiles
from fulltilt.feed.images.gpu_side import GpuSide
from fulltilt.feed.images.kept import Mode
from fulltilt.feed.images.reader import Filled, Reader
from fulltilt.feed.images.stage import CudaPin, Stage, Staged
from fulltilt.feed.images.stages import Stages, cache_rates
from fulltilt.feed.images.tally import Counts
from fulltilt.feed.order import Order, Step
from fulltilt.feed.share import ShareTuner
from fulltilt.feed.tuner import BEYOND_CORES, Tuner, Window
from fulltilt.machine.decision import Decision

log = logging.getLogger("fulltilt.feed")


class FileFeed(OrderedFeed):
    """Image files, decoded by processes of their own, augmented on the device."""

    def __init__(
        self,
        source: ImageFiles,
        order: Order,
        *,
        device: torch.device,
        augment: GPUAugmentation,
        workers: int,
        most_workers: int,
        slots: int,
        ahead: int,
        quality: str,
        channels: int,
        in_order: bool,
        skip_errors: bool,
        tune: bool,
        cache: str | None,
        auto_cache: Callable[[Catalog], AutoCache] | None,
        gpu_share: float | None,
        features: FeatureTable | None = None,
    ) -> None:
        """
        Args:
            features: numbers that go with each file; they come behind images and masks, before labels.
            auto_cache: makes what decides whether samples are kept, and keeps them.
            gpu_share: the part of each batch that the GPU decodes; None looks for it.
        """
        super().__init__(order)
        self.augmentation, self.classes = augment, source.classes
        self._device, self._channels = device, channels
        self._side: GpuSide | None = None
        beyond = BEYOND_CORES * most_workers  # decoders that wait for files may be more than the cores
        self._balance = Balance(
            workers=workers,
            tuner=partial(Tuner, most=most_workers, beyond=beyond) if tune else None,
            share=ShareTuner() if gpu_share is None else None,
            most_workers=most_workers,
        )
        self._counted = Counts()
        """What the decoders had done when the present measurement began."""
        self._window = Window(time.monotonic)
        self._source, self._skip_errors, self._ahead = source, skip_errors, ahead
        self._skipped: list[str] = []
        self._skipped_epoch = 0
        self._staged: deque[Staged] = deque()
        self._features = features
        self._earlier = Counts(), 0, 0.0
        """What the decoders, and the GPU beside them, had done when this epoch began."""
        catalog = Catalog.create(source.paths, source.masks)
        self._auto = None if auto_cache is None else auto_cache(catalog)
        self._reader = Reader(
            catalog,
            len(source),
            batch_size=order.largest_step,
            slots=slots,
            workers=workers,
            most_workers=beyond if tune else most_workers,
            quality=quality,
            channels=channels,
            in_order=in_order,
            cache=cache,
            kept=None if self._auto is None else self._auto.kept,
            cache_to_come=None if self._auto is None else str(self._auto.folder),
            pin=CudaPin(device) if device.type == "cuda" else None,
        )
        pool = self._reader.pool
        self._meter = BusyMeter(lambda: cpu_seconds(pool.pids))
        self._stage = Stage(
            device,
            augment,
            channels=channels,
            masks=source.masks is not None,
            labels=source.labels,
            release=self._reader.give_back,
        )
        if gpu_share:
            self._set_share(gpu_share)
        self._finalizer = when_forgotten(self, _close, self._reader, self._stage, self._auto, features)

    @property
    def skipped(self) -> list[str]:
        """Samples since the epoch began that could not be read, each with its reason."""
        return list(self._skipped)

    def stats(self) -> dict[str, Any]:
        """Rates seen from the loop and of each stage, how busy the decoders are, what holds the loop up, if anything.

        `<stage>_seconds_per_sample` is what one decoder (or the GPU, or the step) takes, `<stage>_samples_per_second`
        what all of them would give if they did nothing else. Stages: read, decode, copy, gpu_decode, step.
        """
        figures = super().stats()
        found = {
            **figures,
            **self._stages().figures(),
            "workers": self._reader.pool.wanted,
            "decoder_busy_share": _busy(self._reader.pool.pids),
            "gpu_share": self._reader.share,
            "balance": self._balance.state,
            "balance_changes": self._balance.changes,
            "balance_reopened": self._balance.reopened,
        }
        if self._auto is not None and not self._closed:
            found |= {"kept_samples": self._auto.kept.samples, "kept_bytes": self._auto.kept.used_bytes}
        if (waits := self._clock.epoch_wait_share) is not None:
            found["bottleneck"] = self._stages(*self._earlier).bottleneck(waits)
        return found

    def _stages(self, counts: Counts | None = None, gpu_samples: int = 0, gpu_seconds: float = 0.0) -> Stages:
        """What was counted, less what had been counted before."""
        side = self._side
        return Stages(
            counts=self._reader.pool.counts - (counts or Counts()),
            workers=self._reader.pool.wanted,
            gpu_samples=0 if side is None else side.samples - gpu_samples,
            gpu_seconds=0.0 if side is None else side.seconds - gpu_seconds,
            step_seconds_per_sample=self._stage.clock.seconds_per_sample,
        )

    @property
    def cache_decision(self) -> Decision[Keep] | None:
        """What is kept of the samples, with `cache="auto"`; None until that is decided."""
        return None if self._auto is None else self._auto.decision

    @property
    def decision(self) -> Decision[int] | None:
        """The number of decoders that was chosen, once trying has ended; None while it goes on or when it was given."""
        return None if self._balance.tuner is None else self._balance.tuner.decision

    @property
    def is_settled(self) -> bool:
        """Nothing is being tried or built: neither the number of decoders, nor the GPU's share, nor a cache."""
        return self._balance.state == "settled" and (self._auto is None or self._auto.settled)

    @property
    def share_decision(self) -> Decision[float] | None:
        """The GPU's share of decoding that was chosen; None while it is looked for or when it was given."""
        return None if self._balance.share_tuner is None else self._balance.share_tuner.decision

    def inspect_with(self, look: Callable[[Any], None]) -> bool:
        if self._source.labels is None:
            return False
        pixels = (None,) * (1 + (self._source.masks is not None) + (self._features is not None))
        look((*pixels, torch.from_numpy(self._source.labels)))
        return True

    def resize(self, workers: int) -> None:
        """Go on with another number of decoder processes, chosen by hand, and the GPU's share as it is."""
        self._check_open()
        most = self._reader.pool.most
        if not 1 <= workers <= most:
            raise InputError(
                f"resize({workers}): this feed can have 1 to {most} decoders; feed(…, num_workers={max(workers, 1)}) "
                "makes one that begins with as many"
            )
        self._balance = Balance(workers=workers, tuner=None, share=None, most_workers=most)
        self._reader.pool.resize(workers)

    def close(self) -> None:
        super().close()
        self._staged.clear()
        self._finalizer()

    def _begin(self, steps: Iterator[Step]) -> None:
        self._staged.clear()
        self._stage.recycle(wait=True)
        self._reader.start(steps if self._features is None else self._features.following(steps))

    def _next(self) -> tuple[Step, Tensors]:
        """Stage what is full, as far ahead as is wanted; wait only when nothing is staged."""
        self._stage.keep_step()
        self._stage.recycle()
        waited = 0.0
        while len(self._staged) <= self._ahead:
            started = time.perf_counter()
            filled = self._reader.take(wait=not self._staged)
            waited += time.perf_counter() - started
            if filled is None:
                break
            self._staged.append(self._stage.put(filled))
        staged = self._staged.popleft()
        features = None
        if self._features is not None:
            started = time.perf_counter()
            features = self._features.rows(staged.index)
            waited += time.perf_counter() - started
        if not self._stage.is_idle():  # the device had work all the while: the loop waited, training did not
            waited = 0.0
        self._clock.waited(waited)
        self._tune(staged.samples, waited)
        self._check(staged.filled)
        batch = self._stage.take(staged)
        step = staged.filled.step
        if staged.filled.failures:
            step = replace(step, indices=staged.index)  # what is in the batch
        return step, batch if features is None else self._with(features, batch)

    def _with(self, features: Tensor, batch: Tensors) -> Tensors:
        """Behind what belongs to the image; a label stays the last."""
        if self._device.type == "cuda":
            features = features.pin_memory().to(self._device, non_blocking=True)
        place = len(batch) - (self._source.labels is not None)
        return (*batch[:place], features, *batch[place:])

    def _tune(self, samples: int, waited: float) -> None:
        """Let the balance hear what was measured, and do as it says."""
        balance, auto = self._balance, self._auto
        if self._side is not None and self._side.trouble is not None and self._reader.share:
            log.warning("%s: the CPU decodes all from now on", self._side.trouble)
            self._decode_without_gpu()
        if auto is not None and balance.share_tuner is not None and auto.mode in (Mode.DECODED, Mode.DISK):
            log.info("the GPU decodes nothing from now on: pixels are kept")
            self._decode_without_gpu()
        undecided = auto is not None and auto.waits_for_rates
        counting = self._window.counting
        measured = self._window.add(samples, waited) if balance.adapts or undecided else None
        if measured is None:
            if self._window.counting and not counting:
                self._meter.begin()
                self._counted = self._reader.pool.counts
            return
        if auto is not None and undecided and balance.state != "share":
            self._consider(auto, *measured)
        if balance.adapts:
            self._follow(balance, *measured)

    def _follow(self, balance: Balance, rate: float, wait_share: float) -> None:
        decisions, reopened = (self.share_decision, self.decision), balance.reopened
        balance.observe(
            Seen(
                rate=rate,
                wait_share=wait_share,
                cores_used=None if balance.state == "settled" else self._meter.cores(),
                decoder_rate=(self._reader.pool.counts - self._counted).rate(balance.workers),
            )
        )
        if balance.reopened != reopened:
            log.info("looking for another balance: %s", balance.why)
        if balance.share is not None:
            self._set_share(balance.share)
        if self._reader.pool.wanted != balance.workers:
            self._reader.pool.resize(balance.workers)
        share, number = self.share_decision, self.decision
        if share is not None and share is not decisions[0]:
            log.info("%.0f %% decoded by the GPU: %s", 100 * share.value, share.reason)
        if number is not None and number is not decisions[1]:
            log.info("%d decoders: %s", number.value, number.reason)

    def _decode_without_gpu(self) -> None:
        self._balance.without_share()
        self._reader.share = 0.0

    def _consider(self, auto: AutoCache, rate: float, wait_share: float) -> None:
        """Have it decided what is kept, if enough has been measured."""
        stages, samples, share = self._stages(), len(self._source), self._reader.share
        if auto.is_steady(rate) and stages.counts.decode_samples >= ENOUGH_SAMPLES:
            auto.consider(
                lambda room: cache_rates(stages, samples=samples, gpu_share=share, wait_share=wait_share, room=room),
                stages.workers,
            )

    def _paused(self) -> None:
        self._window.pause()

    def _went_on(self) -> None:
        self._window.go_on()
        self._stage.clock.forget()
        side = self._side
        self._earlier = self._reader.pool.counts, *((0, 0.0) if side is None else (side.samples, side.seconds))

    def _set_share(self, share: float) -> None:
        """From the next batch on that is begun; where the GPU can't decode, none of it."""
        if self._side is None and share > 0:
            try:
                decoder = GpuDecoder(self._device, channels=self._channels)
            except UnavailableError as error:
                log.info("%s", error)
                self._balance.without_share()
                return
            self._side = GpuSide(decoder, done=self._reader.finished, broken=self._reader.broken)
            self._reader.side = self._side
        self._reader.share = share

    def _ended(self, epoch: int) -> None:
        if self._features is not None:
            self._features.save()
        if self._skipped:
            log.warning("epoch %d: %d samples skipped: %s", epoch, len(self._skipped), "; ".join(self._skipped[:5]))

    def _check(self, filled: Filled) -> None:
        """What failed is told when its batch's turn has come, not when it was found."""
        if filled.step.epoch != self._skipped_epoch:
            self._skipped_epoch = filled.step.epoch
            self._skipped.clear()
        for position, reason in sorted(filled.failures.items()):
            path = self._source.paths[int(filled.step.indices[position])]
            if not self._skip_errors:
                raise SampleError(f"{path}: {reason}. on_error='skip' goes on without such samples")
            self._skipped.append(f"{path}: {reason}")


def _busy(pids: list[int]) -> float | None:
    """The share of their lives that the decoders have spent on a core."""
    shares = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            times = process.cpu_times()
            shares.append((times.user + times.system) / max(time.time() - process.create_time(), 1e-3))
    return min(sum(shares) / len(shares), 1.0) if shares else None


def _close(reader: Reader, stage: Stage, auto: AutoCache | None, features: FeatureTable | None) -> None:
    if auto is not None:
        auto.close()
    if features is not None:
        features.close()
    stage.recycle(wait=True)
    reader.close()
