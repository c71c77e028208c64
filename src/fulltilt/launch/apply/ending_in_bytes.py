"""A Compose whose last members are put off: what it makes of an image is an Unfinished tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fulltilt.launch.apply.chains import TailPlace
from fulltilt.launch.apply.stand_in import StandIn
from fulltilt.launch.apply.unfinished import LEVELS, Table, Unfinished

Form = tuple[Any, ...]

_MODES = {"L": 1, "RGB": 3}
"""Of Pillow: those whose bytes are what ToTensor divides by 255."""
_CHANNELS = (1, 3)
_SIDE = 16
"""Of an image that has every byte once."""


class Ending(StandIn):
    """In the place of the Compose, where all that it is given is an image; else it does its work itself."""

    def __init__(self, place: TailPlace) -> None:
        super().__init__(place.compose)
        self._tail = place.tail
        self._tables: dict[Form, tuple[Table, bool] | None] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        members = self._compose.transforms
        begins = len(members) - len(self._tail)
        same = begins >= 0 and all(ours is its for ours, its in zip(self._tail, members[begins:], strict=True))
        if len(args) != 1 or kwargs or not same:  # several images, or the data set has exchanged its transforms
            return self._compose(*args, **kwargs)
        image = _through(members[:begins], args[0])
        form = _form(image)
        if form is None:
            return _through(self._tail, image)
        if form not in self._tables:
            self._tables[form] = self._table(form, image)
        found = self._tables[form]
        if found is None:
            return _through(self._tail, image)
        table, spread = found
        return Unfinished(_pixels(image), table, last=not isinstance(image, Tensor), spread=spread)

    def _table(self, form: Form, image: Any) -> tuple[Table, bool] | None:
        """For images of a form, of which this is the first; and whether channels are last in memory."""
        try:
            values = _through(self._tail, _every_byte(form))
        except Exception:  # whatever it is: the transforms will say it of the image itself
            return None
        channels = form[-1]
        plain = isinstance(values, Tensor) and values.is_floating_point() and not values.requires_grad
        if not plain or values.shape != (channels, _SIDE, _SIDE):
            return None
        table = Table.of(values.as_subclass(Tensor).reshape(channels, LEVELS))
        pixels = _pixels(image)  # before the transforms, which may work in place
        expected = _through(self._tail, image)
        spread = not expected.is_contiguous()
        found = Unfinished(pixels, table, last=not isinstance(image, Tensor), spread=spread)
        alike = (expected.shape, expected.dtype) == (found.shape, found.dtype)
        if not alike or (spread and expected.stride() != found.stride()):
            return None
        return (table, spread) if torch.equal(expected, found.done()) else None


def _through(members: Any, image: Any) -> Any:
    for member in members:
        image = member(image)
    return image


def _form(image: Any) -> Form | None:
    """In what way an image is bytes, with its channels last; None where it is not."""
    if hasattr(image, "getbands") and hasattr(image, "mode"):
        return ("Pillow", image.mode, _MODES[image.mode]) if image.mode in _MODES else None
    if isinstance(image, Tensor):
        plain = image.dtype == torch.uint8 and image.dim() == 3 and image.device.type == "cpu"
        # What is made of it one by one lies in memory as it does.
        return (
            ("torch", (type(image), image.is_contiguous()), len(image)) if plain and len(image) in _CHANNELS else None
        )
    if str(getattr(image, "dtype", "")) != "uint8" or not hasattr(image, "__array__") or image.ndim not in (2, 3):
        return None
    channels = 1 if image.ndim == 2 else image.shape[2]
    return ("numpy", image.ndim, channels) if channels in _CHANNELS else None


def _every_byte(form: Form) -> Any:
    """An image of a form that has all of them in each channel."""
    import numpy as np

    kind, which, channels = form
    gray = np.arange(LEVELS, dtype=np.uint8).reshape(_SIDE, _SIDE)
    deep = np.repeat(gray[..., None], channels, axis=2)
    if kind == "Pillow":
        from PIL import Image

        return Image.fromarray(gray if which == "L" else deep)
    if kind == "numpy":
        return gray if which == 2 else deep
    return which[0](torch.from_numpy(deep).permute(2, 0, 1).contiguous())


def _pixels(image: Any) -> Tensor:
    """A copy: whoever made the image may go on to write in it."""
    import numpy as np

    if isinstance(image, Tensor):
        return image.as_subclass(Tensor).detach().clone(memory_format=torch.contiguous_format)
    array = np.array(image)
    return torch.from_numpy(array[..., None] if array.ndim == 2 else array)
