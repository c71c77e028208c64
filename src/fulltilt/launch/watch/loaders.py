"""Hooks in torch's DataLoader: the wait for each batch, the start of each epoch, which loader trains."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from threading import get_ident
from typing import Any

from fulltilt.launch.patching import put
from fulltilt.launch.watch.batches import samples, size_bytes
from fulltilt.launch.watch.changed import loader_state
from fulltilt.launch.watch.hooks import phased
from fulltilt.launch.watch.places import Spot, by_package, spot
from fulltilt.launch.watch.stages import Stages
from fulltilt.launch.watch.transforms import datasets
from fulltilt.launch.watch.watch import LoaderSeen, Watch
from fulltilt.measure.observation import Loader
from fulltilt.measure.timeline import DATA_WAIT, EPOCH_START

NUMBER = "FULLTILT_LOADER"
"""Environment variable by which workers know whose they are."""


def install(watch: Watch, stages: Stages) -> None:
    from torch.utils.data import DataLoader
    from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

    made = DataLoader.__init__
    began: Any = DataLoader.__iter__
    following = _BaseDataLoaderIter.__next__

    @functools.wraps(made)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        made(self, *args, **kwargs)
        watch.made[self] = (_rebuilt(watch, self) if by_package(2) else None) or spot(2)

    @functools.wraps(began)
    def __iter__(self: Any) -> Any:  # noqa: N807
        if _asks_beside(watch):
            loader_seen(watch, self).elsewhere = True
        if get_ident() not in (watch.thread, watch.sleeper):
            return began(self)
        seen = loader_seen(watch, self)
        watch.cut()
        if watch.replay is not None and watch.replay.ready(seen):
            return Watched(watch, seen, watch.replay.epoch(seen), 0)
        timeline = watch.timeline
        timeline.enter(EPOCH_START)
        inside, watch.inside = watch.inside, True
        os.environ[NUMBER] = str(seen.number)  # workers inherit it, forked or spawned
        start_ns = timeline.clock()
        if self.num_workers and not (self.persistent_workers and self._iterator is not None):
            seen.starts += 1
            _look(watch, seen, self)
        try:
            iterator = began(self)
        finally:
            os.environ.pop(NUMBER, None)
            watch.inside = inside
            timeline.leave()
        spent_ns = timeline.clock() - start_ns
        if isinstance(iterator, _BaseDataLoaderIter):
            stages.queues[id(getattr(iterator, "_worker_result_queue", None))] = str(seen.number)
            iterator.__dict__["_fulltilt_seen"] = [seen, spent_ns, 0]
            if iterator is not self._iterator:
                iterator.__dict__["_fulltilt_held"] = self  # for as long as the loop: `for batch in DataLoader(…)`
            seen.begun(iterator)
            return iterator
        return Watched(watch, seen, iterator, spent_ns)

    @functools.wraps(following)
    def __next__(self: Any) -> Any:  # noqa: N807
        mark = self.__dict__.get("_fulltilt_seen")
        if mark is None or get_ident() != watch.thread:
            if mark is not None:
                mark[1] = None  # the epoch's first batch goes by
                mark[0].elsewhere = mark[0].elsewhere or _asks_beside(watch)
            return following(self)
        return timed_next(watch, mark, functools.partial(following, self))

    put(DataLoader, "__init__", __init__)
    put(DataLoader, "__iter__", __iter__)
    put(_BaseDataLoaderIter, "__next__", __next__)
    # A loop that asks for no more batches than there are, as Lightning's, ends its workers when it lets go of them.
    ending = _MultiProcessingDataLoaderIter._shutdown_workers
    put(_MultiProcessingDataLoaderIter, "_shutdown_workers", phased(watch, ending, EPOCH_START))


def _asks_beside(watch: Watch) -> bool:
    """Whether another thread than the one that trains asks a loader, and not one of ours: there is somebody's line."""
    trains = watch.thread or watch.sleeper
    return trains not in (0, get_ident()) and spot(2) is not None


def _rebuilt(watch: Watch, loader: Any) -> Spot | None:
    """Where the script made the loader that a package makes anew for it, as Accelerate and Lightning do: one that does
    the same with the same data. None where there is none, or no telling which."""
    wrapped = {id(one) for one in datasets(loader.dataset)}
    found = {
        made
        for known, made in watch.made.items()
        if known.num_workers == loader.num_workers
        and known.collate_fn is loader.collate_fn
        and id(known.dataset) in wrapped
    }
    return found.pop() if len(found) == 1 else None


def loader_seen(watch: Watch, loader: Any) -> LoaderSeen:
    seen = watch.by_loader.get(loader)
    if seen is not None:
        return seen
    made = watch.made.get(loader)
    facts = _facts(watch, loader, made)
    gone = (one for one in watch.loaders if one.loader is None and made is not None)
    seen = next((one for one in gone if one.made is made and one.facts == facts), None)
    if seen is None:
        seen = LoaderSeen(len(watch.loaders), loader, made, facts)
        watch.loaders.append(seen)
    else:
        seen.made_anew(loader)
    watch.by_loader[loader] = seen
    return seen


def _facts(watch: Watch, loader: Any, made: Any) -> Loader | None:
    from fulltilt.launch.watch.seen import described, with_data

    facts = None
    try:
        facts = described(loader, made)
        return with_data(facts, loader, tell=watch.notes.append)
    except Exception as error:  # a data set's own code is asked, and the script must not fail for us
        watch.notes.append(f"a loader could not be described in full: {type(error).__name__}: {error}")
        return facts


def _look(watch: Watch, seen: LoaderSeen, loader: Any) -> None:
    """Whether its workers, which are about to start, get something else than those before them."""
    if seen.changes:
        return
    try:
        state = loader_state(loader)
    except Exception as error:  # a data set's own code is asked, and the script must not fail for us
        watch.notes.append(f"whether a data set changes could not be seen: {type(error).__name__}: {error}")
        return
    seen.changes, seen.state = seen.state not in (None, state), state


def timed_next(watch: Watch, mark: list[Any], following: Any) -> Any:
    """One `next` of a loader; `mark`: whose it is, what its epoch's start took (None after it), batches given."""
    seen, start_ns, given = mark
    timeline = watch.timeline
    timeline.cut_for(DATA_WAIT if start_ns is None else EPOCH_START)
    if timeline.evaluating or watch.span_samples:
        watch.span_over()
    began_ns = 0 if start_ns is None else timeline.clock()
    gpu = watch.gpu
    if gpu is not None:
        if gpu.wants_waits:
            gpu.wait_began()
        else:
            gpu = None
    inside, watch.inside = watch.inside, True
    try:
        if watch.replay is None:
            batch = following()
        else:
            if not watch.replay.begun:
                watch.floor = watch.steps + 1
            batch = watch.replay.following(seen, given, following)
    except StopIteration:
        watch.sources.clear()  # nothing may follow
        timeline.current = EPOCH_START  # workers that end, and start again
        timeline.ended = True
        raise
    finally:
        watch.inside = inside
        if gpu is not None:
            gpu.wait_ended()
        timeline.leave()
        watch.last_loader = seen
    mark[2] = given + 1
    watch.sources.next_batch()
    if start_ns is not None:
        seen.waits_ns.append(start_ns + timeline.clock() - began_ns)
        mark[1] = None
        if seen.batch_bytes is None:
            seen.batch_bytes = size_bytes(batch)
    watch.span_samples += samples(batch) or (0 if seen.facts is None else seen.facts.batch_size or 0)
    return batch


class Watched:
    """An iterator that is not torch's own, as `fulltilt.launch.apply.install` gives for a loader."""

    def __init__(self, watch: Watch, seen: LoaderSeen, iterator: Iterator[Any], start_ns: int) -> None:
        self._watch = watch
        self._loader = seen.loader  # lives as long as the loop
        self._iterator = iterator
        self._mark: list[Any] = [seen, start_ns, 0]

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if get_ident() != self._watch.thread:
            self._mark[1] = None
            self._mark[0].elsewhere = self._mark[0].elsewhere or _asks_beside(self._watch)
            return next(self._iterator)
        return timed_next(self._watch, self._mark, self._iterator.__next__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)
