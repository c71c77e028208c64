"""DataLoaders, as the script makes and iterates them.

Their arguments are changed where that leaves order and maths alone: `changed_arguments` says when it does not.
Draws: torch seeds worker n with a base seed plus n, so another number of workers draws other random numbers within the
samples, as a restart with another seed would. Verification takes that out of the comparison (`watch/draws.py`); where
the run is to be the same, too, `undrawn` names the loaders that may have another number (`search/redrawn.py`).
"""

from __future__ import annotations

import atexit
import functools
import inspect
import multiprocessing
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fulltilt.launch.apply import living_on
from fulltilt.launch.apply.batches import Batches, LentIterator
from fulltilt.launch.apply.next_epoch import NextEpoch
from fulltilt.launch.apply.resident import tensors_of
from fulltilt.launch.settings import loader_name
from fulltilt.launch.watch.batches import length
from fulltilt.launch.watch.changed import loader_state
from fulltilt.launch.watch.held import generator, open_file
from fulltilt.launch.watch.places import place, spot
from fulltilt.launch.watch.transforms import datasets

Note = Callable[[str], None]


def install(settings: Mapping[str, Any], note: Note) -> None:
    wanted = {name.removeprefix("loader."): value for name, value in settings.items() if name.startswith("loader.")}
    if not wanted:
        return
    if wanted.get("persistent_workers"):
        living_on.install()
    if wanted.pop("keep_memory", False):
        _keep_memory(note)
    from torch.utils.data import DataLoader

    ours: weakref.WeakKeyDictionary[Any, _Made] = weakref.WeakKeyDictionary()
    DataLoader.__init__ = _making(DataLoader.__init__, wanted, ours, note)  # type: ignore[method-assign]
    DataLoader.__iter__ = _iterating(DataLoader.__iter__, wanted, ours, note)  # type: ignore[method-assign]


def _keep_memory(note: Note) -> None:
    """Tell the C library's allocator to hold on to what images are made in: workers inherit it when they are forked.

    A worker has little else on its heap, so every image that it drops goes back to the system, and the next one is
    faulted in anew, page by page: a quarter of a decoding worker's time, measured on 1024 × 768 photographs.
    """
    import ctypes

    mmap_threshold, trim_threshold = -3, -1  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        note("keep_memory: left out, this C library's allocator can't be told")
        return
    # 32 MB is the most that glibc takes for the first.
    if not (library.mallopt(mmap_threshold, 32 << 20) and library.mallopt(trim_threshold, 256 << 20)):
        note("keep_memory: the C library's allocator did not take it")


def changed_arguments(wanted: Mapping[str, Any], given: Mapping[str, Any], *, note: Note) -> dict[str, Any]:
    """What a DataLoader is made with instead of what the script says. Only what changes is in it."""
    import torch
    from torch.utils.data import IterableDataset

    dataset = given["dataset"]
    workers = _workers(wanted, given, note)
    changed: dict[str, Any] = {} if workers == given["num_workers"] else {"num_workers": workers}
    if workers == 0:  # torch refuses these where there are no workers
        changed.update({} if given["prefetch_factor"] is None else {"prefetch_factor": None})
        changed.update({"persistent_workers": False} if given["persistent_workers"] else {})
    else:
        names = [name for name in ("prefetch_factor", "persistent_workers") if name in wanted]
        changed.update({name: wanted[name] for name in names if given[name] != wanted[name]})
    if changed.get("persistent_workers") and isinstance(dataset, IterableDataset):
        del changed["persistent_workers"]  # its place would be carried from epoch to epoch
    elif changed.get("persistent_workers") and generator(dataset) is not None:
        del changed["persistent_workers"]
        note("persistent_workers: left alone for a data set with a generator of its own, which new workers begin anew")
    if "pin_memory" in wanted and bool(wanted["pin_memory"]) != given["pin_memory"]:
        if wanted["pin_memory"] and not torch.cuda.is_available():
            note("pin_memory: left out, torch has no GPU here")
        else:
            changed["pin_memory"] = bool(wanted["pin_memory"])
    if "batch_size" in wanted and _trains(given):
        changed["batch_size"] = int(wanted["batch_size"])
    return changed


def _for_this(wanted: Mapping[str, Any], given: Mapping[str, Any], note: Note) -> Mapping[str, Any]:
    """What is wanted of a loader that is being made: other workers of those alone that are known to draw nothing."""
    undrawn = wanted.get("undrawn")
    if undrawn is None or "num_workers" not in wanted:
        return wanted
    *_, inner = datasets(given["dataset"])
    name = loader_name(place(spot(2)), type(inner).__name__, length(given["dataset"]))
    if name in undrawn:
        return wanted
    note(f"num_workers: left alone for {name}, whose samples were not seen to draw nothing")
    return {key: value for key, value in wanted.items() if key != "num_workers"}


def _trains(given: Mapping[str, Any]) -> bool:
    """Whether a loader that is being made looks like one to train from: in batches, and not in the data's order."""
    from torch.utils.data import SequentialSampler

    sampler = given["sampler"]
    shuffles = bool(given["shuffle"]) or (sampler is not None and not isinstance(sampler, SequentialSampler))
    return given["batch_sampler"] is None and given["batch_size"] not in (None, 1) and shuffles


def _workers(wanted: Mapping[str, Any], given: Mapping[str, Any], note: Note) -> int:
    dataset, now = given["dataset"], int(given["num_workers"])
    chosen = int(wanted.get("num_workers", now))
    if chosen == now:
        return now
    why = _why_as_many(dataset, now, chosen)
    if why is not None:
        note(f"num_workers: left alone {why}")
        return now
    batches = _batches(dataset, given)
    return chosen if batches is None else min(chosen, max(batches, 1))


def _why_as_many(dataset: Any, now: int, chosen: int) -> str | None:
    """Why a loader keeps the workers that it has."""
    from torch.utils.data import IterableDataset

    if isinstance(dataset, IterableDataset):
        return "for an IterableDataset, whose samples and order depend on it"
    if tensors_of(dataset) is not None:
        return "for samples that lie in memory"
    if multiprocessing.current_process().daemon:
        return "in a process that may have no children"
    draws = generator(dataset) if 0 in (now, chosen) else None
    if draws is not None:
        return f"for a data set with a generator of its own ({draws}), which would begin anew with each epoch"
    kept = open_file(dataset) if chosen > now and now <= 1 else None  # with more, the script has seen to it
    if kept is not None:
        return f"for a data set that keeps a file open ({kept}): workers would share its place"
    return None


def _batches(dataset: Any, given: Mapping[str, Any]) -> int | None:
    """In an epoch; more workers than that would never be given work."""
    if given["batch_sampler"] is not None:
        return length(given["batch_sampler"])
    samples = length(dataset)
    if samples is None or given["batch_size"] is None:
        return None
    return -(-samples // int(given["batch_size"]))


class _Made:
    """What was changed on a loader, for its iterations to come."""

    def __init__(self, changed: Mapping[str, Any]) -> None:
        self.more = "num_workers" in changed
        self.keeps = bool(changed.get("persistent_workers"))
        self.kept = changed.get("persistent_workers") is False
        """Its workers would have lived on, but it has none any more."""
        self.began = False
        self.state: tuple[Any, ...] = ()
        """What the workers have, when they started."""
        self.lent: Callable[[], Any] = lambda: None
        """What the script has of its workers that live on."""
        self.epochs: NextEpoch | None = None
        """Its next one, which they begin before this one is over."""

    def is_in_use(self) -> bool:
        """A loop over it goes on: `next(iter(loader))` within one must not begin its epoch anew. Else the workers are
        free for another."""
        lent = self.lent()
        if lent is None or lent.goes_on:
            return lent is not None
        lent.ended = True
        return False


def _making(original: Callable[..., None], wanted: Mapping[str, Any], ours: Any, note: Note) -> Callable[..., None]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs)  # a TypeError is the script's own
        given.apply_defaults()
        changed = changed_arguments(_for_this(wanted, given.arguments, note), given.arguments, note=note)
        given.arguments.update(changed)
        with _many_workers_are_meant("num_workers" in changed):
            original(*given.args, **given.kwargs)
        ours[self] = _Made(changed)

    return init


@contextmanager
def _many_workers_are_meant(ours: bool) -> Iterator[None]:
    """Where they wait more than they work, more of them than cores are no mistake; torch warns of them."""
    with warnings.catch_warnings():
        if ours:
            warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


def _iterating(original: Callable[..., Any], wanted: Mapping[str, Any], ours: Any, note: Note) -> Callable[..., Any]:
    batches = Batches(ahead=bool(wanted.get("ahead")), resident=bool(wanted.get("resident")), note=note)
    living: weakref.WeakSet[Any] = weakref.WeakSet()

    def end_at_exit(loader: Any) -> None:
        """Workers that live on are told to end before torch waits 5 s for each, as it may at exit."""
        iterator = loader._iterator
        if iterator is None or iterator in living:
            return
        living.add(iterator)
        # Registered behind torch's own, so it runs before that.
        atexit.register(_end_workers, weakref.ref(iterator), weakref.ref(loader), batches)

    @functools.wraps(original)
    def iterate(self: Any) -> Any:
        made: _Made | None = ours.get(self)
        if made is None:  # of a subclass that makes itself otherwise
            return original(self)
        if made.keeps and made.is_in_use():
            with _many_workers_are_meant(made.more):
                return batches.iterator(self, type(self)._get_iterator, beside=True)
        if self.persistent_workers:
            batches.leave(self)
        begin = original
        if made.keeps:
            now = loader_state(self)
            if self._iterator is not None and not living_on.are_alive(self._iterator):
                self._iterator = None  # ended by Ctrl-C, say, after which the script goes on: new ones start
            if self._iterator is not None and now != made.state:
                self._iterator = None  # workers would go on with the data set as it was: new ones start
                note("persistent_workers: the data set or collate_fn changes between epochs: workers start anew")
            elif self._iterator is not None and made.epochs is not None and made.epochs.goes_on(self._iterator):
                begin = _begun_already
            elif self._iterator is not None:
                # New workers would draw theirs here; without it every later draw would be another one.
                self._iterator._shared_seed = living_on.draw_seed(self.generator)  # which is sent to the workers
            made.state = now
        undrawn, init = _seed_undrawn(self, made.kept and made.began), _init_seen(self, made.keeps)
        with _many_workers_are_meant(made.more), undrawn, init:
            made.began = True
            iterator = batches.iterator(self, begin)
        if made.keeps and self._iterator is not None:
            end_at_exit(self)
            iterator = iterator if iterator is not self._iterator else LentIterator(iterator)
            made.lent = weakref.ref(iterator)
            iterator.epochs = made.epochs = made.epochs or NextEpoch(self)
            if begin is original:
                made.epochs.begun(self._iterator, made.state)
        return iterator

    return iterate


def _begun_already(loader: Any) -> Any:
    return loader._iterator


def _end_workers(iterator_of: Callable[[], Any], loader_of: Callable[[], Any], batches: Batches) -> None:
    iterator, loader = iterator_of(), loader_of()
    if loader is not None:
        batches.leave(loader)
    if iterator is not None:
        iterator._shutdown_workers()


@contextmanager
def _init_seen(loader: Any, holds: bool) -> Iterator[None]:
    """Workers that start now are to live on: whether their `worker_init_fn` seeds has to be known."""
    init = loader.worker_init_fn
    if not holds or init is None:
        yield
        return
    loader.worker_init_fn = living_on.Init(init)
    try:
        yield
    finally:
        loader.worker_init_fn = init


@contextmanager
def _seed_undrawn(loader: Any, holds: bool) -> Iterator[None]:
    """A new iterator draws a seed, where the script's workers, which live on, would not have drawn one."""
    import torch

    generator = loader.generator or torch.default_generator
    state = generator.get_state() if holds else None
    yield
    if state is not None:
        generator.set_state(state)
