"""A plain DataLoader among several processes: each gets its own part of every step's samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Sampler, SequentialSampler

from fulltilt.errors import InputError
from fulltilt.feed.base import Feed, OrderedFeed
from fulltilt.feed.datasets.loader_feed import LoaderFeed, goes_own_way, with_batches
from fulltilt.feed.order import Order
from fulltilt.machine.ranks import rank, several, world
from fulltilt.nested import map_tensors
from fulltilt.train.ranks.group import launched
from fulltilt.train.ranks.together import everybodys


class RankBatches(Sampler[list[int]]):
    """A rank's batches in the order of our feeds: a function of seed and epoch, begun anywhere."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.epoch, self.start = 0, 0
        """The epoch, and the samples of it that all ranks had taken when it was gone on with."""

    def set_epoch(self, epoch: int) -> None:
        self.epoch, self.start = epoch, 0

    def __len__(self) -> int:
        return self.order.steps()

    def __iter__(self) -> Iterator[list[int]]:
        return (step.indices.tolist() for step in self.order.epoch(self.epoch, self.start))


class SharedLoaderFeed(LoaderFeed):
    """A DataLoader shared out: its place is a number of samples, good for any number of processes."""

    def __init__(self, loader: DataLoader[Any], order: Order, *, device: torch.device) -> None:
        self._order_batches = RankBatches(order)
        super().__init__(
            with_batches(
                loader, self._order_batches, generator=loader.generator, persistent_workers=loader.persistent_workers
            ),
            device=device,
            ahead=1,
        )

    @property
    def order(self) -> Order:
        return self._order_batches.order

    def __iter__(self) -> Iterator[Any]:
        if not self._resumes:
            # What is gone through from its beginning is the next epoch, whoever tells so.
            self._order_batches.set_epoch(self._epoch + (self._batches > 0))
        return super().__iter__()

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self._order_batches.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """As a feed of ours has it: one may go on where the other was."""
        order, batches = self.order, self._order_batches
        taken = batches.start + self._batches * order.batch_size * order.world
        position = min(taken, order.length) if self._batches or self._resumes else 0
        same = {"seed": order.seed, "shuffle": order.shuffle, "length": order.length}
        return {"epoch": self._epoch, "position": position, **same}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "position" not in state and state.get("batches"):
            raise InputError(
                "the checkpoint's place in the data is that of a DataLoader in one process, whose order several can't "
                "go on with: resume in one process, or from a checkpoint of several"
            )
        position = int(state.get("position", 0))
        for name in ("seed", "shuffle", "length") if position else ():
            if state[name] != getattr(self.order, name):
                raise InputError(
                    f"this loader has {name}={getattr(self.order, name)!r}, the saved one had {state[name]!r}: "
                    "what is left of the epoch would not be what was left of that one"
                )
        self.set_epoch(int(state["epoch"]))
        self.take_over(begun=bool(self._epoch or position))
        self._order_batches.start, self._resumes = position, position > 0
        self._random, self._begins = self._generator_state(), False


def share(loader: Any, device: torch.device, *, name: str, seed: int) -> Feed | None:
    """A DataLoader's feed for this rank, where it has to be shared out; None where it has been, or need not be."""
    if not (several() or launched()) or not isinstance(loader, DataLoader):
        return None
    if isinstance(loader.dataset, IterableDataset):
        return None  # has to share itself out
    own = goes_own_way(loader)
    if own and not several():
        return None
    samplers = (loader.sampler, loader.batch_sampler)
    if any(hasattr(sampler, "num_replicas") or hasattr(sampler, "rank") for sampler in samplers):
        return None  # a DistributedSampler, or like one
    sampler, size = loader.sampler, loader.batch_size
    random = type(sampler) is RandomSampler and not sampler.replacement
    plain = size is not None and type(loader.batch_sampler) is BatchSampler
    whole = random or type(sampler) is SequentialSampler
    length = len(loader.dataset)  # type: ignore[arg-type]
    if own or not plain or not whole or size is None or (whole and len(sampler) != length):  # type: ignore[arg-type]
        kind = type(sampler if plain else loader.batch_sampler).__name__
        found = f"{type(loader).__name__}, which has an __iter__ of its own," if own else f"a DataLoader with {kind}"
        raise InputError(
            f"{name}: {found} can't be shared among {world()} ranks, and each would train on all of "
            "it; give it a DistributedSampler, or a sampler that has num_replicas and rank and gives a rank its own"
        )
    order = Order(
        length=length,
        batch_size=size,
        shuffle=random,
        seed=seed,
        drop_last=loader.drop_last,
        rank=rank(),
        world=world(),
    )
    return SharedLoaderFeed(loader, order, device=device)


def check_place(source: Feed, state: dict[str, Any]) -> dict[str, Any]:
    """A feed's saved place, for the feed of now: that of several processes may be one process's to go on from."""
    if isinstance(source, SharedLoaderFeed) or not isinstance(source, LoaderFeed) or "random" in state:
        return state
    if "position" not in state:
        raise InputError(
            f"the saved place ({', '.join(state)}) is not that of a DataLoader: use the loader or feed that it was "
            "saved with"
        )
    if state["position"]:
        raise InputError(
            "the checkpoint was made in the middle of an epoch by several processes, which a plain DataLoader's own "
            "order can't go on with: start this one process with torchrun --nproc-per-node 1, or use a feed"
        )
    return {"epoch": state["epoch"], "batches": 0, "samples": 0, "random": None, "begins": True}


def batches_done(source: Feed, state: dict[str, Any]) -> int | None:
    """Batches of the epoch before a saved place, counted as this number of processes takes them."""
    order = getattr(source, "order", None)
    if not isinstance(order, Order):
        return None
    return order.steps() - order.steps(int(state.get("position", 0)))


def check_shared(source: Feed, batches: int | None, *, name: str) -> bool:
    """Whether every rank knows that all have as many batches. Other numbers of them, or all samples, are an error."""
    if not several():
        return True
    if isinstance(source, OrderedFeed) and source.order.world != world():
        raise InputError(
            f"{name} was made before the process group was: it would give every one of {world()} ranks all samples. "
            "Make feeds inside `with fulltilt.train.process_group():`, or after torch.distributed.init_process_group()"
        )
    counts = everybodys(-1 if batches is None else batches)
    if -1 in counts:
        return False
    if len(set(counts)) > 1:
        numbers = ", ".join(f"{count:.0f}" for count in counts)
        raise InputError(
            f"{name}: the ranks' numbers of batches differ ({numbers}), but they step together: give each as many"
        )
    return True


def own_samples(source: Feed, batch: int) -> int | None:
    """Of an epoch's batch (counted from 1): its samples that are not there only to fill up the last step; None: all."""
    order = getattr(source, "order", None)
    if not isinstance(order, Order) or order.world == 1 or order.drop_last or batch != order.steps():
        return None
    each = order.batch_size * order.world
    left = order.length - (batch - 1) * each
    part = -(-left // order.world)
    return max(0, min(part, left - order.rank * part))


def first_samples(batch: Any, count: int) -> Any:
    """A batch's first samples; tensors of another length go along whole."""
    length = len(batch[0])

    def cut(part: Tensor) -> Tensor:
        return part[:count] if part.dim() and len(part) == length else part

    return map_tensors(cut, batch)
