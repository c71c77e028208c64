"""Whatever the caller has, as one form that both the kernels and the torch path read.

N×C×H×W, N×H×W×C            a dense batch, in any memory layout
N×T×C×H×W, N×T×H×W×C        clips: T frames share one draw
[C×H×W | H×W×C, …], Ragged  images of different sizes
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fulltilt.errors import InputError

Layout = Literal["auto", "channels_first", "channels_last"]

_CHANNELS = (1, 3, 4)
"""Numbers of channels by which `layout="auto"` recognises the channel dimension."""

SPAN = (1 << 31) - 16
"""How far an image's elements may lie apart, and how many an output may have: kernels count in 32 bits within one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Ragged:
    """Images of different sizes, one behind the other in one buffer: what a decoder fills and one copy moves."""

    data: Tensor
    """Flat; each image contiguous, interleaved (H×W×C) or planar (C×H×W)."""
    offsets: Tensor
    """N, int64: where each image begins, in elements."""
    sizes: Tensor
    """N × 2, int32: height and width."""
    channels: int = 3
    interleaved: bool = True
    smallest: int = 1
    """A lower bound of all heights and widths; from 4 on, 8-bit RGB is read faster."""
    keep: Sequence[Tensor] = ()
    """Tensors that `data` reaches into by offset; held so that they live as long as this does."""

    def __post_init__(self) -> None:
        """What can be told without waiting for a GPU. Offsets and sizes themselves have to be right."""
        if self.data.dim() != 1:
            raise InputError(f"Ragged: data has shape {tuple(self.data.shape)}; it must be flat")
        count, device = len(self.offsets), self.data.device
        for name, found, shape, dtype in (
            ("offsets", self.offsets, (count,), torch.int64),
            ("sizes", self.sizes, (count, 2), torch.int32),
        ):
            if found.shape != shape or found.dtype != dtype or found.device != device:
                raise InputError(
                    f"Ragged: {name} is {tuple(found.shape)} {found.dtype} on {found.device}; for {count} images it "
                    f"must be {shape} {dtype} on {device}, where data is"
                )

    @classmethod
    def of(cls, images: Sequence[Tensor], *, layout: Layout = "auto", name: str = "images") -> Ragged:
        """From a list. On a GPU nothing is copied (unless compiled): offsets reach from the first image to the rest."""
        if not images:
            raise InputError(f"{name} is an empty list: there is nothing to tell the size or the device from")
        head = images[0]
        dims, dtype, device = head.dim(), head.dtype, head.device
        if dims not in (2, 3):
            raise InputError(f"{name}[0] has shape {tuple(head.shape)}; expected C×H×W, H×W×C or H×W")
        first = dims == 2 or _channels_first(head.shape, layout, name)
        channels = 1 if dims == 2 else head.shape[0 if first else 2]
        flat, sizes = [], []
        for k, image in enumerate(images):  # every microsecond counts here: lists are long
            shape = image.shape
            if len(shape) != dims or image.dtype != dtype or image.device != device:
                raise InputError(
                    f"{name}[{k}] is {tuple(shape)} {image.dtype} on {image.device}; all must be like the first: "
                    f"{dims} dimensions, {dtype}, {device}"
                )
            size = shape[-2:] if first else shape[:2]
            if (channels != (1 if dims == 2 else shape[0 if first else 2])) or 0 in size:
                raise InputError(f"{name}[{k}] has shape {tuple(shape)}; expected {channels} channels, no side of 0")
            flat.append(image if image.is_contiguous() else image.contiguous())
            sizes.append(size)
        if device.type == "cuda" and not torch.compiler.is_compiling():  # a compiler has no addresses to count from
            begin, width = flat[0].data_ptr(), flat[0].element_size()
            offsets = [(image.data_ptr() - begin) // width for image in flat]
            data = flat[0].view(-1)
        else:
            offsets = [0]
            for image in flat[:-1]:
                offsets.append(offsets[-1] + image.numel())
            data = torch.cat([image.view(-1) for image in flat])
        if max(height * width for height, width in sizes) * channels >= SPAN:
            raise InputError(f"{name}: one of them has 2^31 elements or more: tile it first")
        # From pageable memory the driver has taken a copy when the call returns, and nothing waits for the GPU.
        return cls(
            data=data,
            offsets=torch.tensor(offsets, dtype=torch.int64).to(device, non_blocking=True),
            sizes=torch.tensor(sizes, dtype=torch.int32).to(device, non_blocking=True),
            channels=channels,
            interleaved=not first,
            smallest=min(min(size) for size in sizes),
            keep=flat,
        )

    def __len__(self) -> int:
        return len(self.offsets)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """One call's input."""

    data: Tensor
    """Dense: frames × C × H × W in any strides. Ragged: flat."""
    count: int
    """Samples; each draws once."""
    frames: int = 1
    """Images per sample."""
    channels: int
    height: int = 0
    width: int = 0
    ragged: Ragged | None = None
    masks: Tensor | None = None
    """Dense: frames × H × W, contiguous. Ragged: flat."""
    ragged_masks: Ragged | None = None
    interleaved: bool
    """The input's channels are its fastest dimension."""

    @property
    def scale(self) -> float:
        """What brings stored values to [0, 1]."""
        return 1.0 / 255.0 if self.data.dtype == torch.uint8 else 1.0

    def sizes(self) -> Tensor:
        """count × 2 heights and widths."""
        if self.ragged is not None:
            return self.ragged.sizes
        return torch.tensor([[self.height, self.width]], dtype=torch.int32, device=self.data.device).expand(
            self.count, 2
        )

    def samples(self) -> Iterator[Tensor]:
        """Each sample as frames × C × H × W."""
        if self.ragged is None:
            yield from torch.split(self.data, self.frames) if self.count else ()
            return
        for image in _images(self.ragged):
            yield (image.permute(2, 0, 1) if self.ragged.interleaved else image)[None]

    def sample_masks(self) -> Iterator[Tensor | None]:
        """Each sample's masks as frames × H × W, or None where there are none."""
        if self.ragged_masks is not None:
            for mask in _images(self.ragged_masks):
                yield mask.reshape(1, *mask.shape[-2:]) if not self.ragged_masks.interleaved else mask[None, :, :, 0]
        elif self.masks is not None:
            yield from torch.split(self.masks, self.frames) if self.count else ()
        else:
            yield from (None for _ in range(self.count))


def _images(ragged: Ragged) -> Iterator[Tensor]:
    for offset, (height, width) in zip(ragged.offsets.tolist(), ragged.sizes.tolist(), strict=True):
        shape = (height, width, ragged.channels) if ragged.interleaved else (ragged.channels, height, width)
        yield ragged.data[offset : offset + height * width * ragged.channels].view(shape)


def make_batch(images: Tensor | Ragged | Sequence[Tensor], masks: Any, layout: Layout) -> Batch:
    """The caller's images and masks, checked, as a Batch. Copied are only masks with gaps and clips in uneven steps."""
    if isinstance(images, Tensor):
        return _dense(images, masks, layout)
    _check_list("images", images)
    _check_list("masks", masks)
    ragged = images if isinstance(images, Ragged) else Ragged.of(images, layout=layout)
    _check_dtype(ragged.data)
    labels = None
    if masks is not None:
        labels = masks if isinstance(masks, Ragged) else Ragged.of(masks, layout="channels_first", name="masks")
        if labels.channels != 1 or len(labels) != len(ragged) or not _same_sizes(ragged, labels):
            raise InputError("masks must be one per image, H×W or 1×H×W, each of its image's size")
        if labels.data.device != ragged.data.device:
            raise InputError(f"masks is on {labels.data.device} and images on {ragged.data.device}: move one")
    return Batch(
        data=ragged.data,
        count=len(ragged),
        channels=ragged.channels,
        ragged=ragged,
        masks=None if labels is None else labels.data,
        ragged_masks=labels,
        interleaved=ragged.interleaved,
    )


def _same_sizes(images: Ragged, masks: Ragged) -> bool:
    """As far as can be told without waiting for a GPU: by the tensors behind, or by sizes that are on the host."""
    if images.keep and masks.keep:
        planes = (i.shape[:2] if images.interleaved else i.shape[-2:] for i in images.keep)
        return all(m.shape[-2:] == plane for m, plane in zip(masks.keep, planes, strict=True))
    if images.sizes.device.type == "cpu" and masks.sizes.device.type == "cpu":
        return torch.equal(images.sizes.long(), masks.sizes.long())
    return True


def _dense(images: Tensor, masks: object, layout: Layout) -> Batch:
    if images.dim() not in (4, 5):
        raise InputError(
            f"images has shape {tuple(images.shape)}; expected N×C×H×W, N×H×W×C or, for clips, N×T×C×H×W or N×T×H×W×C. "
            "For a single image pass images[None]"
        )
    _check_dtype(images)
    first = _channels_first(images.shape[-3:], layout, "images")
    clip = images.dim() == 5
    count, frames = images.shape[0], images.shape[1] if clip else 1
    planes = images if first else images.movedim(-1, -3)
    channels, height, width = planes.shape[-3:]
    if min(channels, height, width, frames) < 1:
        raise InputError(f"images has shape {tuple(images.shape)}: no side may be 0 (only N may)")
    if clip:
        planes = planes.flatten(0, 1)
    if sum((size - 1) * stride for size, stride in zip(planes.shape[1:], planes.stride()[1:], strict=True)) >= SPAN:
        raise InputError(f"images of {tuple(images.shape[-3:])} span 2^31 elements or more each: tile them first")
    labels = None
    if masks is not None:
        labels = _dense_masks(masks, images, (height, width))
    return Batch(
        data=planes,
        count=count,
        frames=frames,
        channels=channels,
        height=height,
        width=width,
        masks=labels,
        interleaved=planes.stride(1) == 1 and channels > 1,
    )


def _dense_masks(masks: object, images: Tensor, size: tuple[int, int]) -> Tensor:
    if not isinstance(masks, Tensor):
        raise InputError(f"masks must be a tensor when images is one, found {type(masks).__name__}")
    lead = images.shape[: images.dim() - 3]
    if masks.shape not in (lead + size, (*lead, 1, *size)):
        raise InputError(
            f"masks has shape {tuple(masks.shape)}; for images {tuple(images.shape)} it must be "
            f"{(*lead, *size)} or {(*lead, 1, *size)}: planes of several channels go one by one, with the same index"
        )
    if masks.device != images.device:
        raise InputError(f"masks is on {masks.device} and images on {images.device}: move one")
    if masks.dtype.is_complex:
        raise InputError("masks must hold integers, booleans or floats, not complex numbers")
    return masks.reshape(-1, *size).contiguous()


def _check_list(name: str, found: object) -> None:
    if isinstance(found, Ragged) or (name == "masks" and found is None):
        return
    if isinstance(found, Tensor):
        raise InputError(f"{name} must be a list (or a Ragged) when images are one: each has its image's size")
    inside = isinstance(found, list | tuple) and len(found) > 0
    if isinstance(found, list | tuple) and (not inside or isinstance(found[0], Tensor)):
        return
    kind = f"{type(found).__name__} of {type(found[0]).__name__}" if inside else type(found).__name__  # type: ignore[index]
    raise InputError(f"{name} must be a tensor, a list of tensors or a Ragged; found {kind}")


def _check_dtype(images: Tensor) -> None:
    if images.dtype not in (torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise InputError(
            f"images has dtype {images.dtype}; allowed: torch.uint8 (0 to 255) or float16 to float64 (0 to 1). "
            "Convert with images.to(torch.uint8)"
        )


def _channels_first(shape: Sequence[int], layout: Layout, name: str) -> bool:
    if layout != "auto":
        return layout == "channels_first"
    first, last = shape[0] in _CHANNELS, shape[-1] in _CHANNELS
    if first != last:
        return first
    if first and last and shape[0] != shape[-1]:
        return shape[0] == 3 or shape[-1] != 3
    raise InputError(
        f"{name}: can't tell the channels in a shape ending in {tuple(shape)}; "
        "pass layout='channels_first' or layout='channels_last'"
    )
