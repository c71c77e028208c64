"""Cases for property tests: any input that is allowed, and any settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from tests.augment.support import labels, photo
from torch import Tensor

DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32)
MASK_DTYPES = (torch.uint8, torch.bool, torch.int16, torch.int32, torch.int64, torch.float32, None)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A batch that the augmentation takes, and the same as plain N×C×H×W bytes or floats."""

    images: Tensor
    layout: str
    planes: Tensor
    masks: Tensor | None
    dtype: torch.dtype

    def __repr__(self) -> str:
        masks = None if self.masks is None else (tuple(self.masks.shape), self.masks.dtype)
        form = f"{tuple(self.images.shape)} {self.images.dtype} strides {self.images.stride()}"
        return f"<{form} from {self.images.storage_offset()} as {self.layout}, masks {masks}, to {self.dtype}>"


FORMS = ("NCHW", "NHWC", "slice", "part of each line", "unaligned", "channels_last", "backwards")


def laid_out(form: str, dtype: torch.dtype, n: int, channels: int, h: int, w: int, seed: int = 0) -> tuple[Tensor, str]:
    """The images in one of the forms that they may have in memory, and their layout's name."""
    if form == "slice":
        return _values(dtype, seed, n, channels, h + 1, w + 2)[:, :, 1:, 2:], "channels_first"
    if form == "part of each line":
        return _values(dtype, seed, n, h, w + 3, channels)[:, :, :w], "channels_last"
    if form == "unaligned":  # as when images stand behind a header in one buffer
        skipped = 1 + seed % 3
        return _values(dtype, seed, skipped + n * h * w * channels)[skipped:].view(n, h, w, channels), "channels_last"
    if form == "NHWC":
        return _values(dtype, seed, n, h, w, channels), "channels_last"
    images = _values(dtype, seed, n, channels, h, w)
    if form == "channels_last":
        images = images.contiguous(memory_format=torch.channels_last)
    elif form == "backwards":  # dimensions in an order that nobody expects
        images = images.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    return images, "channels_first"


@st.composite
def cases(draw: Any, *, height: int, width: int, batch: int = 2) -> Case:
    n, h, w = draw(st.integers(1, batch)), draw(st.integers(1, height)), draw(st.integers(1, width))
    channels = draw(st.sampled_from([1, 3, 3, 4, 6]))
    seed = draw(st.integers(0, 1000))
    images, layout = laid_out(draw(st.sampled_from(FORMS)), draw(st.sampled_from(DTYPES)), n, channels, h, w, seed)
    kind = draw(st.sampled_from(MASK_DTYPES))
    masks = None
    if kind is not None:
        one = (1,) if draw(st.booleans()) else ()
        masks = labels(n, *one, h, w, classes=2 if kind == torch.bool else 50, dtype=kind, seed=seed)
    return case_of(images, layout, masks, draw(st.sampled_from(DTYPES)))


def case_of(images: Tensor, layout: str, masks: Tensor | None, dtype: torch.dtype) -> Case:
    planes = images if layout == "channels_first" else images.movedim(-1, 1)
    return Case(images=images, layout=layout, planes=planes, masks=masks, dtype=dtype)


def _values(dtype: torch.dtype, seed: int, *shape: int) -> Tensor:
    return photo(*shape, seed=seed) if dtype == torch.uint8 else (photo(*shape, seed=seed).float() / 255).to(dtype)


SMOOTH: dict[str, Any] = {
    "horizontal_flip_prob": 0.5,
    "vertical_flip_prob": 0.5,
    "quarter_turn_prob": 0.5,
    "rotation_degrees": 40.0,
    "scale": (0.7, 1.6),
    "translate": (0.3, 0.1),
    "shear_degrees": (20.0, 10.0),
    "perspective": 0.4,
    "brightness": 0.4,
    "contrast": 0.4,
    "saturation": 0.6,
    "hue": 0.2,
    "gray_prob": 0.3,
    "invert_prob": 0.3,
    "gamma": 0.5,
    "noise_std": 0.1,
    "erase_prob": 0.6,
    "contrast_pivot": "mean",
    "antialias": False,
    "fill": 0.3,
    "mask_fill": 1,
    "erase_value": 0.6,
}
"""Settings under which a small error stays small."""
STEPS: dict[str, Any] = {"solarize_prob": 0.5, "posterize_prob": 0.5}
"""Settings under which a small error may decide between two values far apart."""


@st.composite
def options(draw: Any, size: tuple[int, int], *, steps: bool = False) -> dict[str, Any]:
    """Some of the settings together, and an output size from half of the input's to more than it."""
    possible = SMOOTH | (STEPS if steps else {})
    chosen = draw(st.sets(st.sampled_from(sorted(possible)), max_size=7))
    found = {name: possible[name] for name in chosen}
    if "fill" in found:
        found["fill"] = draw(st.sampled_from([0.3, "reflect", "edge"]))
    sides = st.tuples(*(st.integers(-(-side // 2), side + 4) for side in size))
    geometry = draw(st.sampled_from(["same size", "resize", "random crop", "resized crop"]))
    if geometry == "resize":
        found["size"] = draw(sides)
    elif geometry == "random crop":
        found |= {"random_crop": draw(sides), "crop_padding": draw(st.integers(0, 4))}
    elif geometry == "resized crop":
        found |= {"size": draw(sides), "random_resized_crop": (0.2, 1.0)}
    return found
