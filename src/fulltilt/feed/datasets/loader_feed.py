"""The feed of an existing DataLoader: its sampler, order and collate, our way to the device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from fulltilt.augment.keyed import RANK_APART
from fulltilt.errors import InputError
from fulltilt.feed.base import Feed, when_forgotten
from fulltilt.feed.datasets.crew import Crew
from fulltilt.feed.datasets.dataset_feed import running, shut
from fulltilt.feed.datasets.hosting import Hosting
from fulltilt.feed.datasets.leg import Work
from fulltilt.feed.datasets.legs import Legs
from fulltilt.feed.datasets.shelf import Request, batch_seed
from fulltilt.feed.mover import Mover
from fulltilt.feed.structure import Augmenter, samples_in
from fulltilt.machine.decision import Decision
from fulltilt.machine.ranks import rank

log = logging.getLogger("fulltilt.feed")


class LoaderFeed(Feed):
    """A DataLoader kept as it is, workers and their random numbers included; or, if asked for, with tuned workers."""

    def __init__(
        self,
        loader: DataLoader[Any],
        *,
        device: torch.device,
        ahead: int,
        augment: Callable[..., Any] | None = None,
        hosting: Decision[Hosting] | None = None,
    ) -> None:
        """
        Args:
            hosting: look for the number of workers, beginning with this; None keeps the loader's own.
        """
        super().__init__()
        self.augmentation = augment
        self._loader, self._augment = loader, Augmenter(augment)
        self._batches = self._samples = 0
        """Given out in this epoch."""
        self._resumes = False
        self._random: Tensor | None = None
        """The state of the loader's generator when the epoch began: what its order follows from."""
        self._begins = True
        """Whether that was a beginning of workers, for which torch draws a seed before the order."""
        self._begun = False
        """The loader's own workers have been started; the rest of an epoch that is resumed is made by others."""
        self._source, self._quietly = loader, False
        """What whole epochs come from: the loader, or after a resume one like it. Whether its start draws nothing."""
        self._crew: Crew | None = None
        self._mover = Mover(device, depth=2, ahead=ahead)
        if hosting is not None:
            self._crew = Crew(_work(loader, hosting.value), hosting, tune=True, own=True, lasting=_lasts(loader))
        legs = None if self._crew is None else self._crew.legs
        self._mover.workers = None if legs is None else lambda: legs.pids
        self._finalizer = when_forgotten(self, _shut, self._mover, legs, loader)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        self._check_open()
        self._mover.stop()
        if self._resumes:
            iterator, end = self._rest()
        else:
            self._epoch, self._batches, self._samples = self._epoch + (self._batches > 0), 0, 0
            self._random = self._generator_state()
            self._begins = not (_lasts(self._loader) and self._begun)
            self._begun = True
            iterator, end = self._whole(), self._length()
        self._resumes = False
        epoch, given, seen, random = self._epoch, self._batches, self._samples, self._random
        self._clock.began()
        self._mover.start(iterator)
        if self._crew is not None:
            self._crew.go_on()
        self._loop = loop = object()
        while True:
            if not (self._closed and given == end):
                self._check_served(loop)
            try:
                batch = self._mover.next()
            except StopIteration:
                break
            waited = self._mover.waited_seconds
            self._clock.waited(waited)
            samples = samples_in(batch)
            index = None
            if self.augmentation is not None:  # samples have no numbers here, but places, of each rank's own
                index = torch.arange(samples).add_(rank() * RANK_APART + seen)
            given, seen = given + 1, seen + samples
            if given == end:
                self._epoch, self._batches, self._samples, self._random = epoch + 1, 0, 0, None
            else:
                self._epoch, self._batches, self._samples, self._random = epoch, given, seen, random
            if self._crew is not None:
                self._crew.saw(samples, waited)
            self._clock.gave(samples)
            yield self._augment(batch, epoch, index)
        self._epoch, self._batches, self._samples, self._random = epoch + 1, 0, 0, None
        if self._crew is not None:
            self._crew.pause()

    @property
    def hosting(self) -> Decision[Hosting] | None:
        """How far ahead and how batches are handed over, and why; None where the loader is kept as it is."""
        return None if self._crew is None else self._crew.hosting

    @property
    def decision(self) -> Decision[int] | None:
        """The number of workers that was chosen, once trying has ended."""
        return None if self._crew is None else self._crew.decision

    def inspect_with(self, look: Callable[[Any], None]) -> bool:
        self._mover.inspect = look
        return True

    def stats(self) -> dict[str, Any]:
        figures = super().stats()
        if self._crew is None:
            return {**figures, "workers": self._loader.num_workers}
        return {**figures, **self._crew.figures(self._clock.epoch_wait_share)}

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch's beginning (of the epoch whose place was loaded, to that place); tells the sampler."""
        if not (self._resumes and epoch == self._epoch):
            self._epoch, self._batches, self._samples, self._resumes = epoch, 0, 0, False
        for sampler in (self._loader.sampler, self._loader.batch_sampler):
            tell: Callable[[int], None] | None = getattr(sampler, "set_epoch", None)
            if tell is not None:
                tell(epoch)

    def state_dict(self) -> dict[str, Any]:
        """With an epoch's last batch given out, the next one's beginning; a stream's last is not known to be that."""
        own = self._loader.generator
        # Between epochs torch's global generator is the trainer's to save; one of the loader's own is known here alone.
        random = own.get_state() if self._random is None and own is not None else self._random
        place = {"epoch": self._epoch, "batches": self._batches, "samples": self._samples}
        return place | {"random": random, "begins": self._begins} | self._counted_in()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there, in a loader of the same batch size; the samples given out already are not loaded again."""
        missing = {"epoch", "batches", "samples", "random", "begins"} - state.keys()
        if missing:
            raise InputError(f"this is not the state of a DataLoader's feed: {', '.join(sorted(missing))} missing")
        for name, here in self._counted_in().items() if state["batches"] else ():
            if state.get(name, here) != here:
                raise InputError(
                    f"this DataLoader has {name}={here!r}, the saved one had {state[name]!r}: its place is a number of "
                    "batches, so samples would be lost or repeated; go on with the same, or begin an epoch"
                )
        if state["batches"] and not self._loader.in_order:
            log.warning(
                "a DataLoader with in_order=False goes on by the number of batches: of those that were under way, some "
                "samples may come twice in this epoch, and as many not at all"
            )
        self.set_epoch(int(state["epoch"]))
        self._batches, self._samples = int(state["batches"]), int(state["samples"])
        self._random = state["random"]
        self._begins = bool(state["begins"])
        self.take_over(begun=bool(self._epoch or self._batches))
        if not self._batches and self._loader.generator is not None:
            self._set_generator_state(self._random)
            self._random = None
        self._resumes = self._random is not None

    def close(self) -> None:
        super().close()
        self._finalizer()

    def take_over(self, *, begun: bool) -> None:
        """In the place of workers that live on, and had been started, others begin without a draw from where the order
        is drawn: torch draws a seed when it starts workers, and then no more.
        """
        loader = self._loader
        if begun and not self._begun and _lasts(loader):
            self._quietly = isinstance(loader.dataset, IterableDataset)
            if not self._quietly and not goes_own_way(loader):
                batches = _batches_of(loader)
                self._source = with_batches(loader, batches, generator=self._seeds(), persistent_workers=True)
        self._begun = self._begun or begun

    def _whole(self) -> Iterator[Any]:
        """An epoch's batches; what the sampler draws for its order is drawn here, not in the thread that fetches."""
        if self._crew is not None:
            seed = self._draw_seed() if self._begins else 0
            return self._made(_begun(iter(_batches_of(self._loader))), seed)
        now, self._quietly = self._generator_state() if self._quietly else None, False
        iterator = iter(self._source)
        self._set_generator_state(now)
        # Without workers the sampler draws at the first batch.
        drawn = self._loader.num_workers or isinstance(self._loader.dataset, IterableDataset)
        return iterator if drawn and not goes_own_way(self._loader) else _begun(iterator)

    def _counted_in(self) -> dict[str, Any]:
        """What makes a number of batches a place in the data; None where it is not known."""
        loader = self._loader
        streams = isinstance(loader.dataset, IterableDataset)
        batch_size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
        return {"batch_size": batch_size, "length": None if streams else _length_of(loader.dataset)}

    def _length(self) -> int | None:
        """Batches in an epoch; None where that shows at its end only."""
        if isinstance(self._loader.dataset, IterableDataset):
            return None  # which may say how long it is, but need not keep to it
        try:
            return len(self._loader)
        except TypeError:  # a sampler without a length
            return None

    def _rest(self) -> tuple[Iterator[Any], int | None]:
        """The epoch's remaining batches, and how many it has had at their end.

        Its order is drawn again as it was, and what has been seen left out.
        """
        # A generator of the loader's own goes on from here as it did; torch's global one is the trainer's to restore.
        now = self._generator_state() if self._loader.generator is None else None
        self._set_generator_state(self._random)
        try:
            if isinstance(self._loader.dataset, IterableDataset):
                self._quietly = False
                return islice(iter(self._loader), self._batches, None), None
            if goes_own_way(self._loader):
                return _begun(islice(iter(self._loader), self._batches, None)), self._length()
            seed = self._draw_seed() if self._begins else 0
            left = list(_batches_of(self._loader))[self._batches :]
        finally:
            self._set_generator_state(now)
        end = self._batches + len(left)
        if self._crew is not None:
            return self._made(iter(left), seed), end
        others = with_batches(self._loader, left, generator=self._seeds(), persistent_workers=False)
        return iter(others), end

    def _made(self, batches: Iterator[Any], seed: int) -> Iterator[Any]:
        """These batches, by workers whose number is being looked for."""
        assert self._crew is not None
        seeds = self._loader.worker_init_fn is None  # somebody who sets workers up may seed them, too
        epoch, first = self._epoch, self._batches  # not self: what the legs hold would keep it from being forgotten
        stream = (
            Request(list(indices), batch_seed(seed, epoch, number) if seeds else None)
            for number, indices in enumerate(batches, start=first)
        )
        return running(self._crew.legs, stream)

    def _seeds(self) -> torch.Generator:
        """For workers that take others' place, in each epoch others; torch's own generator is the order's."""
        return torch.Generator().manual_seed((torch.initial_seed() + self._epoch) % (1 << 63))

    def _draw_seed(self) -> int:
        """As torch does when it starts workers, before the sampler draws."""
        return int(torch.empty((), dtype=torch.int64).random_(generator=self._loader.generator).item())

    def _generator_state(self) -> Tensor:
        generator = self._loader.generator
        return torch.get_rng_state() if generator is None else generator.get_state()

    def _set_generator_state(self, state: Tensor | None) -> None:
        if state is None:
            return
        generator = self._loader.generator
        torch.set_rng_state(state) if generator is None else generator.set_state(state)


def _shut(mover: Mover, legs: Legs | None, loader: DataLoader[Any]) -> None:
    shut(mover, legs)
    if not all(process.is_alive() for process in getattr(loader._iterator, "_workers", ())):
        loader._iterator = None  # of workers that live on and were killed: whoever goes through it next has others


def _work(loader: DataLoader[Any], chosen: Hosting) -> Work:
    """What the loader's workers do, for workers of ours."""
    return Work(
        dataset=loader.dataset,
        collate=loader.collate_fn,
        kind=chosen.kind,
        depth=chosen.depth,
        transport=chosen.transport,
        varies=True,
        worker_init=loader.worker_init_fn,
        context=loader.multiprocessing_context,
        timeout_seconds=loader.timeout,
    )


def _lasts(loader: DataLoader[Any]) -> bool:
    """Whether its workers live from epoch to epoch, and so see the data set as it was at the first."""
    return bool(loader.persistent_workers)


def _batches_of(loader: DataLoader[Any]) -> Any:
    """What its sampler says of each batch."""
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


def goes_own_way(loader: DataLoader[Any]) -> bool:
    """Whether its class changes its batches, or repeats its sampler for ever: one made of its parts would not do so."""
    return type(loader).__iter__ is not DataLoader.__iter__


def _length_of(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        # It, or one that it wraps, has none: a sampler of its own knows which samples there are, and torch trains so.
        return None


def _begun(iterator: Iterator[Any]) -> Iterator[Any]:
    """The same, with its first item taken here."""
    return chain(list(islice(iterator, 1)), iterator)


def with_batches(
    loader: DataLoader[Any],
    batches: Iterable[Any],
    *,
    generator: torch.Generator | None,
    persistent_workers: bool,
) -> DataLoader[Any]:
    """A loader like this one, of these batches' samples; pinning memory is the feed's."""
    whole = loader.batch_sampler is None  # the data set gives whole batches, each by one number
    order: dict[str, Any] = {"sampler": batches, "batch_size": None} if whole else {"batch_sampler": batches}
    return DataLoader(
        loader.dataset,
        **order,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=generator,
        in_order=loader.in_order,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=persistent_workers,
    )
