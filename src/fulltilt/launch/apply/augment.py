"""A loader's recognised transforms done on the GPU, for a whole batch at once, by GPUAugmentation.

    worker     dataset[i]: its transforms stop where `chains` says ─► Picture ─► default_collate ─► Pictures
    training   next(loader): Pictures ─► the device ─► one or more passes ─► the tensor that the script expects

The random draws are others than the transforms would have made, from the same distributions as far as GPUAugmentation
knows them: a setting of level semantic. Left alone are loaders without workers (the data set there is the script's own,
and is not to be changed), and those that collate in a way of their own.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable
from typing import Any

from fulltilt.launch.apply.chains import PLAIN, Chain, Place, places
from fulltilt.launch.apply.stand_in import StandIn

Note = Callable[[str], None]

_VARIABLE = "FULLTILT_AUGMENT"
"""In the environment of workers whose loader's transforms are moved."""
_RANK_STRIDE = 7_919
"""Ranks count their samples alike: their seeds keep them apart."""


def install(note: Note) -> None:
    """To be installed before whoever watches `__next__`, who is to see batches as the script does."""
    from torch.utils.data import DataLoader
    from torch.utils.data._utils import fetch

    moved: weakref.WeakKeyDictionary[Any, Passes] = weakref.WeakKeyDictionary()
    DataLoader.__iter__ = _iterating(DataLoader.__iter__, moved, note)  # type: ignore[method-assign]
    fetch._BaseDatasetFetcher.__init__ = _fetching(fetch._BaseDatasetFetcher.__init__)  # type: ignore[method-assign]


def moved_by(loader: Any) -> Chain | None:
    """What of a loader's transforms would go to the GPU."""
    from torch.utils.data import IterableDataset, default_collate

    if isinstance(loader.dataset, IterableDataset) or loader.collate_fn is not default_collate:
        return None
    found = places(loader.dataset)
    return found[0].chain if found else None


# the worker's side


def _fetching(made: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(made)
    def init(self: Any, dataset: Any, *rest: Any) -> None:
        from torch.utils.data import get_worker_info

        if os.environ.get(_VARIABLE) and get_worker_info() is not None:
            from torch.utils.data._utils.collate import default_collate_fn_map

            from fulltilt.launch.apply.pictures import Picture, join

            default_collate_fn_map[Picture] = join
            for place in places(dataset):
                vars(place.owner)[place.name] = Stopped(place)
        made(self, dataset, *rest)

    return init


class Stopped(StandIn):
    """A Compose that stops where the GPU takes over."""

    def __init__(self, place: Place) -> None:
        super().__init__(place.compose)
        self._named = place.named
        self._first, self._rest = place.members[: place.chain.stay], place.members[place.chain.stay :]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from fulltilt.launch.apply.pictures import Picture, pixels_of

        alone = (not args and kwargs.keys() == {"image"}) if self._named else (len(args) == 1 and not kwargs)
        if not alone:  # masks, boxes, several images: they have to be drawn for together
            return self._compose(*args, **kwargs)
        image = self._through(self._first, kwargs["image"] if self._named else args[0])
        picture = Picture(pixels_of(image), lambda: self._through(self._rest, image))
        return {"image": picture} if self._named else picture

    def _through(self, members: Any, image: Any) -> Any:
        for member in members:
            image = member(image=image)["image"] if self._named else member(image)
        return image


# the training process's side


def _iterating(original: Callable[..., Any], moved: Any, note: Note) -> Callable[..., Any]:
    @functools.wraps(original)
    def iterate(self: Any) -> Any:
        chain = moved_by(self)
        if chain is None:
            return original(self)
        if self.num_workers == 0:
            note("augment: left alone where the loader has no workers")
            return original(self)
        passes = moved.get(self)
        if passes is None:
            passes = moved[self] = Passes(chain)
        passes.begin_epoch()
        os.environ[_VARIABLE] = "1"  # workers inherit it, forked or spawned
        try:
            iterator = original(self)
        finally:
            del os.environ[_VARIABLE]
        following = vars(iterator).get("_next_data", None)
        if following is None:  # one that lives on has it already
            following = iterator._next_data
            vars(iterator)["_next_data"] = lambda: passes.over(following())
        return iterator

    return iterate


class Passes:
    """A chain's passes, on the device that the script trains on."""

    def __init__(self, chain: Chain) -> None:
        import torch

        from fulltilt.augment import GPUAugmentation
        from fulltilt.launch.watch.watch import rank_and_world

        cuda: Any = torch.cuda
        self._device = torch.device("cuda", cuda.current_device()) if cuda.is_available() else torch.device("cpu")
        seed = (torch.initial_seed() + _RANK_STRIDE * rank_and_world()[0]) % 2**62
        last = len(chain.passes) - 1
        self._passes = [
            (
                GPUAugmentation(
                    **{**PLAIN, **one.options},
                    seed=seed + number,
                    dtype=torch.float32 if chain.floats or number < last else torch.uint8,
                    channels_last=False,
                    layout="channels_first",
                ),
                one.probability,
            )
            for number, one in enumerate(chain.passes)
        ]
        self._sized = any(one.options.keys() & {"size", "random_crop"} for one in chain.passes[:1])
        self._draws = torch.Generator(self._device).manual_seed(seed + len(self._passes))
        self._epoch = -1

    def begin_epoch(self) -> None:
        self._epoch += 1
        for augment, _ in self._passes:
            augment.set_epoch(self._epoch)

    def over(self, batch: Any) -> Any:
        """The batch as the script expects it."""
        from fulltilt.launch.apply.pictures import Pictures
        from fulltilt.nested import map_parts

        return map_parts(Pictures, self._augmented, batch)

    def _augmented(self, pictures: Any) -> Any:
        import torch

        with torch.no_grad():
            images = pictures.ragged(self._device)
            if not self._sized and pictures.size is not None:
                images = images.data.view(-1, *pictures.size, pictures.channels).permute(0, 3, 1, 2)
            for augment, probability in self._passes:
                changed = augment(images)
                if probability < 1.0:
                    drawn = torch.rand(len(changed), device=self._device, generator=self._draws) < probability
                    changed = torch.where(drawn[:, None, None, None], changed, images)
                images = changed
            return _with(images, pictures.finished) if pictures.finished else images


def _with(images: Any, finished: list[tuple[int, Any]]) -> Any:
    """Those that the transforms have made themselves, in their places."""
    import torch

    count = len(images) + len(finished)
    whole = torch.empty((count, *images.shape[1:]), dtype=images.dtype, device=images.device)
    places = [place for place, _ in finished]
    others = [place for place in range(count) if place not in set(places)]
    whole[torch.tensor(others, device=images.device)] = images
    whole[torch.tensor(places, device=images.device)] = torch.stack([one for _, one in finished]).to(
        images.device, images.dtype
    )
    return whole
