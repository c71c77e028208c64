"""The public face: augmentations as `nn.Module`s that take whole batches on whatever device they are.

aug = GPUAugmentation(horizontal_flip_prob=0.5, rotation_degrees=15, brightness=0.2, contrast=0.2)
images, masks = aug(images, masks)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from fulltilt.augment.batch import SPAN, Batch, Layout, Ragged, make_batch
from fulltilt.augment.engine import augment
from fulltilt.augment.followers import follow, takes_masks
from fulltilt.augment.gpu import Pass, prepared
from fulltilt.augment.keyed import Keyed, checked_index
from fulltilt.augment.layout import Ops
from fulltilt.augment.op import compiled_augment
from fulltilt.augment.points import check_points, forward_matrices, move_boxes, move_points
from fulltilt.augment.settings import Settings, problems_in
from fulltilt.augment.spec import Dials, Spec
from fulltilt.errors import InputError

_PASSES_KEPT = 64
_MOVING = Ops.TURN | Ops.AFFINE | Ops.PERSPECTIVE | Ops.RESIZED_CROP | Ops.RANDOM_CROP
_DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32)
_OWN = ("seed", "dtype", "channels_last", "layout", "then", "check_inputs")
"""Keywords of the module that are no settings."""


class _Shape(NamedTuple):
    samples: int
    frames: int


class GPUAugmentation(Keyed):
    """Augments whole batches in one pass over the pixels, with a draw of its own for every sample.

    Call it with images, and masks, boxes and key points that go with them; what comes back has the same structure,
    images as N×C×H×W (clips as N×T×C×H×W). In `eval()` mode nothing random happens: only resize, normalisation and
    dtype. Every option of `Settings` is a keyword; those below belong to the module.

    A sample's draw depends on (seed, epoch, index) and on nothing else: not on the batch, the rank or the device. Pass
    `index` (the samples' numbers in the data set) to have the same sample augmented alike after a resume and at any
    world size; without it, samples are counted from 0 in each epoch.
    """

    def __init__(
        self,
        horizontal_flip_prob: float = 0.5,
        rotation_degrees: float | tuple[float, float] = 15,
        brightness: float | tuple[float, float] = 0.2,
        contrast: float | tuple[float, float] = 0.2,
        *,
        seed: int = 0,
        dtype: torch.dtype | None = None,
        channels_last: bool | None = None,
        layout: Layout = "auto",
        then: Sequence[Callable[..., Any]] = (),
        check_inputs: bool = False,
        **options: Any,
    ) -> None:
        """
        Args:
            dtype: of the images that come out; None: float32 for 8-bit input, the input's own otherwise.
            channels_last: memory format of the images that come out; None: as the input's.
            layout: where the input's channels are, when "auto" can't tell from its shape.
            then: modules to call afterwards, in training only: Kornia's (masks go along) or anything that takes images.
            check_inputs: look for NaN and for floats outside [0, 1] (waits for the device, so it is off by default;
                then NaN reads as 0 and values are cut to [0, 1]).
        """
        settings = _settings(
            horizontal_flip_prob=horizontal_flip_prob,
            rotation_degrees=rotation_degrees,
            brightness=brightness,
            contrast=contrast,
            **options,
        )
        super().__init__(seed)
        if dtype is not None and dtype not in _DTYPES:
            raise InputError(f"dtype={dtype} must be one of {', '.join(map(str, _DTYPES))}")
        if dtype == torch.uint8 and settings.normalize is not None:
            raise InputError(
                "dtype=torch.uint8 can't hold normalised values: leave out normalize, or pass a float dtype"
            )
        if channels_last not in (None, True, False):
            raise InputError(f"channels_last={channels_last!r} must be True, False or None (as the input's)")
        if layout not in ("auto", "channels_first", "channels_last"):
            raise InputError(f"layout={layout!r} must be 'auto', 'channels_first' or 'channels_last'")
        self.settings = settings
        self._dtype = dtype
        self._channels_last = channels_last
        self._layout: Layout = layout
        if not isinstance(then, Sequence | nn.ModuleList) or not all(callable(module) for module in then):
            raise InputError(f"then={then!r} must be a list of modules or functions")
        self.then = nn.ModuleList(m if isinstance(m, nn.Module) else _Called(m) for m in then)
        self._check_inputs = check_inputs
        self._ops, self._eval_ops = settings.ops, settings.eval_ops
        self._passes: dict[Any, tuple[_Shape, Pass]] = {}
        self._held: Dials | None = None
        self._full: Tensor
        self._rest: Tensor
        self._norm: Tensor | None
        self._strength: Tensor
        self.register_buffer("_full", torch.tensor(settings.vector()), persistent=False)
        self.register_buffer("_rest", torch.tensor(settings.at_rest().vector()), persistent=False)
        self.register_buffer("_norm", _norm_of(settings), persistent=False)
        self.register_buffer("_strength", torch.ones(1))

    def forward(
        self,
        images: Tensor | Ragged | Sequence[Tensor],
        masks: Tensor | Ragged | Sequence[Tensor] | None = None,
        *,
        boxes: Tensor | None = None,
        keypoints: Tensor | None = None,
        index: Tensor | None = None,
    ) -> Any:
        """Images alone, or a tuple of images and whatever else was given, in the order of the arguments."""
        if self.training and len(self.then) and not (boxes is None and keypoints is None):
            raise InputError("boxes and keypoints don't go through the modules in `then`: leave out one or the other")
        shape, out, labels, rows = self._augmented(images, masks, index)
        if self.training and len(self.then):
            out, labels = follow(self.then, out, labels)
        results: list[Tensor] = [out.view(shape.samples, shape.frames, *out.shape[1:]) if _is_clip(images) else out]
        if labels is not None:
            results.append(labels if _plain(masks) else labels.view(_mask_shape(masks, labels)))
        if boxes is not None or keypoints is not None:
            matrices = forward_matrices(rows)
            if boxes is not None:
                boxes = check_points("boxes", boxes, shape.samples, 4, out.device)
                tilted = self.training and Ops.PERSPECTIVE in self._ops
                results.append(move_boxes(boxes, matrices, (out.shape[-2], out.shape[-1]), tilted=tilted))
            if keypoints is not None:
                keypoints = check_points("keypoints", keypoints, shape.samples, 2, out.device)
                results.append(move_points(keypoints, matrices))
        return results[0] if len(results) == 1 else tuple(results)

    def _augmented(self, images: Any, masks: Any, index: Tensor | None) -> tuple[_Shape, Tensor, Tensor | None, Tensor]:
        """The fused pass. On a GPU a batch shaped like an earlier one is launched without another look at it."""
        compiling = torch.compiler.is_compiling()
        key = None
        if not compiling and not self._check_inputs and isinstance(images, Tensor) and images.is_cuda:
            mask_key = (masks.shape, masks.dtype, masks.get_device()) if isinstance(masks, Tensor) else masks is None
            shape_key = (images.shape, images.stride(), images.dtype, images.get_device())
            key = (shape_key, mask_key, self.training, index is None)
            if (known := self._passes.get(key)) is not None:
                shape, run = known
                return shape, *run(images, masks, self._dials(), checked_index(index, shape.samples, images.device))
        batch = make_batch(images, masks, self._layout)
        self._move(batch.data.device)
        if self._check_inputs:
            _check_values(batch)
        spec = self._spec(batch, counted=index is None)
        shape = _Shape(samples=batch.count, frames=batch.frames)
        index = checked_index(index, shape.samples, batch.data.device)
        # Clips whose frames don't lie at equal steps were copied: the pass fits the copy, not the next such clips.
        if key is not None and batch.data.data_ptr() == images.data_ptr():
            if len(self._passes) >= _PASSES_KEPT:
                self._passes.clear()
            self._passes[key] = shape, prepared(batch, spec, indexed=index is not None)
        return shape, *(compiled_augment if compiling else augment)(batch, spec, self._dials(), index)

    def _dials(self) -> Dials:
        if self._held is None or torch.compiler.is_compiling():
            buffers = {"state": self._state, "full": self._full, "rest": self._rest, "strength": self._strength}
            dials = Dials(**buffers, norm=self._norm)
            if torch.compiler.is_compiling():
                return dials
            self._held = dials
        return self._held

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._held = None
        self._passes.clear()
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._held = None  # with assign=True the buffers are others now

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_held": None, "_passes": {}}  # compiled kernels are neither copied nor pickled

    @property
    def moves(self) -> bool:
        """Whether pixels may leave their places: what belongs to places has to go along."""
        sized = self.settings.output_size is not None or self.settings.eval_crop is not None
        return sized or (self.training and (bool(self._ops & _MOVING) or any(map(takes_masks, self.then))))

    @property
    def strength(self) -> float:
        """0 (flips and crops only) to 1 (as set). A number on the device: reading it waits, setting it doesn't."""
        return float(self._strength)

    @strength.setter
    def strength(self, value: float) -> None:
        if not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
            raise InputError(f"strength={value!r} must be a number from 0 to 1")
        self._strength.fill_(value)

    def extra_repr(self) -> str:
        defaults = Settings()
        changed = [
            f"{f.name}={getattr(self.settings, f.name)!r}"
            for f in fields(Settings)
            if getattr(self.settings, f.name) != getattr(defaults, f.name)
        ]
        return ", ".join(changed)

    def _spec(self, batch: Batch, *, counted: bool) -> Spec:
        size = self.settings.output_size or (batch.height, batch.width)
        if size == (0, 0):
            raise InputError("images of different sizes need an output size: pass size=(height, width)")
        if size[0] * size[1] * batch.channels >= SPAN:
            raise InputError(
                f"an output of {batch.channels}×{size[0]}×{size[1]} has 2^31 elements or more: ask for less"
            )
        if self._norm is not None and len(self._norm) != batch.channels:
            raise InputError(f"normalize has {len(self._norm)} channels, images have {batch.channels}")
        if batch.masks is not None:
            _check_mask_fill(self.settings, batch.masks.dtype)
        dtype = self._dtype
        if dtype is None:
            dtype = torch.float32 if batch.data.dtype in (torch.uint8, torch.float64) else batch.data.dtype
        return Spec.of(
            self.settings,
            ops=self._ops if self.training else self._eval_ops,
            out_size=size,
            dtype=dtype,
            channels_last=batch.interleaved if self._channels_last is None else self._channels_last,
            counts=counted and self.training,
        )


class MinimalGPUAugmentation(GPUAugmentation):
    """Flips only: the light end."""

    def __init__(self, horizontal_flip_prob: float = 0.5, **options: Any) -> None:
        base = {"rotation_degrees": 0.0, "brightness": 0.0, "contrast": 0.0}
        super().__init__(horizontal_flip_prob=horizontal_flip_prob, **(base | options))


class StrongGPUAugmentation(GPUAugmentation):
    """The heavy end: geometry, colour, tone, noise, blur and erasing."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**(STRONG | options))


class ProgressiveAugmentation(GPUAugmentation):
    """From one augmentation to another as training goes on: `set_epoch` moves one number on the device.

    `minimal` up to `switch_epoch`, then `strong`; with `ramp_epochs` the change is spread over as many epochs. Options
    that are not ranges or probabilities (size, fill, normalisation, …) are given once, as keywords, and hold for both.
    """

    def __init__(
        self,
        *,
        switch_epoch: int = 50,
        ramp_epochs: int = 0,
        minimal: dict[str, Any] | None = None,
        strong: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            minimal, strong: options of the two ends; by default those of Minimal- and StrongGPUAugmentation.
        """
        for name, epochs in (("switch_epoch", switch_epoch), ("ramp_epochs", ramp_epochs)):
            if not isinstance(epochs, int) or epochs < 0:
                raise InputError(f"{name}={epochs!r} must be a whole number ≥ 0")
        own = {f.name for f in fields(Settings)}
        shared = {name: value for name, value in options.items() if name in own}
        start = _settings(**(MINIMAL | shared | (minimal or {})))
        end = _settings(**(STRONG | shared | (strong or {})))
        _check_alike(start, end)
        super().__init__(**(STRONG | options | (strong or {})))
        self.switch_epoch, self.ramp_epochs = switch_epoch, ramp_epochs
        self._ops = start.ops | end.ops
        self._rest.copy_(torch.tensor(start.vector()))
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        since = epoch - self.switch_epoch
        self.strength = float(since >= 0) if not self.ramp_epochs else min(max(since / self.ramp_epochs, 0.0), 1.0)


MINIMAL: dict[str, Any] = {"horizontal_flip_prob": 0.5}
STRONG: dict[str, Any] = {
    "horizontal_flip_prob": 0.5,
    "rotation_degrees": 30.0,
    "scale": 0.2,
    "translate": 0.1,
    "shear_degrees": 10.0,
    "brightness": 0.4,
    "contrast": 0.4,
    "saturation": 0.4,
    "hue": 0.1,
    "gray_prob": 0.1,
    "gamma": 0.2,
    "noise_std": 0.02,
    "blur_prob": 0.2,
    "blur_sigma": (0.1, 1.5),
    "erase_prob": 0.25,
}


PRESETS: Mapping[str, type[GPUAugmentation]] = {
    "default": GPUAugmentation,
    "minimal": MinimalGPUAugmentation,
    "strong": StrongGPUAugmentation,
    "progressive": ProgressiveAugmentation,
}
"""What a configuration calls them."""


class _Called(nn.Module):
    """A plain callable among modules."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, images: Tensor) -> Tensor:
        return self.function(images)  # type: ignore[no-any-return]


def _settings(**options: Any) -> Settings:
    if problems := problems_in(options, beside=_OWN):
        raise InputError("augmentation settings: " + "; ".join(problems))
    return Settings(**options)


def _check_alike(start: Settings, end: Settings) -> None:
    """What no number between two ends can express has to be the same at both."""
    pivots = ("contrast_pivot",) if "mean" in (start.contrast_pivot, end.contrast_pivot) else ()
    for name in ("size", "random_resized_crop", "random_crop", "crop_padding", "eval_crop", "fill", "mask_fill",
                 "antialias", "normalize", "erase_value", *pivots):  # fmt: skip
        if getattr(start, name) != getattr(end, name):
            raise InputError(
                f"{name} is {getattr(start, name)!r} in minimal and {getattr(end, name)!r} in strong; "
                f"pass it once, as {name}=…, for both"
            )


def _check_mask_fill(settings: Settings, dtype: torch.dtype) -> None:
    """A label that the masks can't hold would become another one."""
    if isinstance(settings.fill, str) or not settings.ops & Ops.OUTSIDE or dtype.is_floating_point:
        return
    low, high = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    if not low <= settings.mask_fill <= high:
        raise InputError(f"mask_fill={settings.mask_fill} doesn't fit masks of {dtype}, which hold {low} to {high}")


def _norm_of(settings: Settings) -> Tensor | None:
    """C × 2: what to multiply by and what to add."""
    if settings.mean_std is None:
        return None
    mean, std = (torch.tensor(values, dtype=torch.float64) for values in settings.mean_std)
    return torch.stack([1.0 / std, -mean / std], 1).float().contiguous()


def _is_clip(images: Any) -> bool:
    return isinstance(images, Tensor) and images.dim() == 5


def _plain(masks: Any) -> bool:
    return isinstance(masks, Tensor) and masks.dim() == 3


def _mask_shape(masks: Any, labels: Tensor) -> tuple[int, ...]:
    """The dimensions that the masks came with, at the new size."""
    count, *size = labels.shape
    if isinstance(masks, Tensor):
        return (*masks.shape[:-2], *size)
    single = isinstance(masks, Sequence) and masks[0].dim() == 3
    return (count, 1, *size) if single else (count, *size)


def _check_values(batch: Batch) -> None:
    if not batch.data.dtype.is_floating_point or not batch.data.numel():
        return
    whole = batch.ragged.keep if batch.ragged is not None and batch.ragged.keep else [batch.data]
    low, high = torch.stack([torch.stack(images.aminmax()) for images in whole]).aminmax()
    if not (float(low) >= 0.0 and float(high) <= 1.0):
        hint = ". Divide by 255?" if high > 1.0 else ""
        raise InputError(f"float images must lie in [0, 1] and hold no NaN; found {low:g} to {high:g}{hint}")
