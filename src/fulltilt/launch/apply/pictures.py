"""What a worker hands over instead of augmented floats: bytes of images, of whatever sizes, one behind the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fulltilt.augment import Ragged
from fulltilt.nested import map_parts

_MODES = ("L", "RGB", "RGBA")
"""Of Pillow: those whose bytes are what ToTensor would have divided by 255."""


class Picture:
    """An image that the GPU is to augment, in the place of the tensor that the transforms would have made.

    A data set that does anything with it but return it gets that tensor after all: nothing breaks, nothing is won.
    """

    __slots__ = ("_done", "_finish", "pixels")

    def __init__(self, pixels: Tensor | None, finish: Callable[[], Tensor]) -> None:
        self.pixels = pixels
        """H×W×C; None where it can't be had: an image of floats, a palette."""
        self._finish = finish
        self._done: Tensor | None = None

    def done(self) -> Tensor:
        """By the transforms themselves."""
        if self._done is None:
            self._done = self._finish()
        return self._done

    @property
    def as_it_is(self) -> bool:
        """Nobody has asked for the tensor, and there are pixels."""
        return self._done is None and self.pixels is not None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.done(), name)

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # fmt: skip
        return function(*_finished(args), **_finished(kwargs or {}))


def _finished(value: Any) -> Any:
    return map_parts(Picture, Picture.done, value)


def _operators() -> None:
    """Those are looked up on the class."""
    names = "getitem len iter add radd sub rsub mul rmul truediv rtruediv neg pow float array"
    for name in names.split():
        method = f"__{name}__"

        def call(self: Picture, *args: Any, _method: str = method, **kwargs: Any) -> Any:
            return getattr(self.done(), _method)(*_finished(args), **kwargs)

        setattr(Picture, method, call)


_operators()


def pixels_of(image: Any) -> Tensor | None:
    """H×W×C bytes of an image of Pillow's, of numpy's or of torch's; None where it has none."""
    if hasattr(image, "getbands") and hasattr(image, "mode"):
        return _of_array(_array(image)) if image.mode in _MODES else None
    if isinstance(image, Tensor):
        plain = image.dtype == torch.uint8 and image.dim() == 3
        return image.as_subclass(Tensor).permute(1, 2, 0).contiguous() if plain else None
    return _of_array(image) if str(getattr(image, "dtype", "")) == "uint8" else None


def _array(image: Any) -> Any:
    import numpy as np

    return np.array(image)


def _of_array(array: Any) -> Tensor | None:
    import numpy as np

    if array.ndim not in (2, 3):
        return None
    pixels = torch.from_numpy(np.ascontiguousarray(array))
    return pixels[..., None] if array.ndim == 2 else pixels


@dataclass(slots=True)
class Pictures:
    """A batch of them on its way."""

    data: Tensor
    """Flat."""
    offsets: Tensor
    sizes: Tensor
    channels: int
    smallest: int
    size: tuple[int, int] | None
    """Where all have the same."""
    finished: list[tuple[int, Tensor]]
    """Those that the transforms have made themselves, and their places."""

    def pin_memory(self, *_: Any) -> Pictures:
        self.data = self.data.pin_memory()
        return self

    def ragged(self, device: torch.device) -> Ragged:
        return Ragged(
            data=self.data.to(device, non_blocking=True),
            offsets=self.offsets.to(device, non_blocking=True),
            sizes=self.sizes.to(device, non_blocking=True),
            channels=self.channels,
            smallest=self.smallest,
        )


def join(batch: Sequence[Picture], *, collate_fn_map: Any = None) -> Any:  # noqa: ARG001
    """As torch's default_collate joins tensors: into memory that the training process sees, where a worker does it."""
    raw = [one.pixels for one in batch if one.as_it_is and one.pixels is not None]
    if not raw:
        return torch.stack([one.done() for one in batch])
    channels = {pixels.shape[2] for pixels in raw}
    if len(channels) > 1:
        raise RuntimeError(f"images of one batch have different numbers of channels: {sorted(channels)}")
    total = sum(pixels.numel() for pixels in raw)
    if torch.utils.data.get_worker_info() is not None:
        shared: Any = torch.UntypedStorage
        data = torch.tensor([], dtype=torch.uint8).set_(shared._new_shared(total))
    else:
        data = torch.empty(total, dtype=torch.uint8)
    offsets, at = [], 0
    for pixels in raw:
        offsets.append(at)
        data[at : at + pixels.numel()].copy_(pixels.reshape(-1))
        at += pixels.numel()
    sizes = [(pixels.shape[0], pixels.shape[1]) for pixels in raw]
    return Pictures(
        data=data,
        offsets=torch.tensor(offsets, dtype=torch.int64),
        sizes=torch.tensor(sizes, dtype=torch.int32),
        channels=channels.pop(),
        smallest=min(min(size) for size in sizes),
        size=sizes[0] if len(set(sizes)) == 1 else None,
        finished=[(place, one.done()) for place, one in enumerate(batch) if not one.as_it_is],
    )
