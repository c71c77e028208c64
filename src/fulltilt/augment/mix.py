"""Two samples made into one, images and labels: Mixup and CutMix, on whatever device the batch is.

mix = CutMix(num_classes=1000)
images, targets = mix(images, labels)        # targets: N × 1000, what torch.nn.CrossEntropyLoss takes

Plain torch operations, so torch.compile fuses them, and state that lives on the device, so a CUDA graph draws anew at
every replay. Nothing waits for the device. As in `draws.py` a sample's numbers depend on (seed, epoch, index) alone;
its partner is another sample of the same batch, so that one does depend on who is in it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fulltilt.augment.beta import beta_table, look_up
from fulltilt.augment.keyed import Keyed, checked_index
from fulltilt.augment.philox import sample_words, to_uniform
from fulltilt.errors import InputError

_FIRST_BLOCK = 1 << 16
"""Where these modules' counters begin: far from the blocks of `draws.py`, so that one seed serves both."""

# What each of a sample's eight words is for.
_PARTNER, _SHARE, _IF, _SWITCH, _CENTRE_X, _CENTRE_Y = range(6)


class _Mix(Keyed):
    """What the modules below have in common: checks, draws, partners, labels."""

    def __init__(
        self,
        num_classes: int | None,
        *,
        alphas: dict[str, float],
        prob: float,
        per_sample: bool,
        seed: int,
        check_inputs: bool,
    ) -> None:
        super().__init__(seed)
        if num_classes is not None and (type(num_classes) is not int or num_classes < 1):
            raise InputError(f"num_classes={num_classes!r} must be a whole number ≥ 1, or None for soft labels")
        _check_share("prob", prob)
        self.num_classes = num_classes
        self.alphas = alphas
        self.prob = float(prob)
        self.per_sample = per_sample
        self.check_inputs = check_inputs
        self._tables: Tensor
        tables = torch.stack([beta_table(alpha, name=name) for name, alpha in alphas.items()])
        self.register_buffer("_tables", tables, persistent=False)

    def extra_repr(self) -> str:
        shown = {"num_classes": self.num_classes, **self.alphas, "prob": self.prob, "per_sample": self.per_sample}
        return ", ".join(f"{name}={value}" for name, value in shown.items())

    def _start(self, images: Tensor, index: Tensor | None) -> tuple[Tensor, Tensor]:
        """Each sample's partner and its eight uniforms; the running index moves on."""
        count = len(images)
        self._move(images.device)
        place = checked_index(index, count, images.device)
        if place is None:
            place = self._state[2] + torch.arange(count, device=images.device)
            self._state[2].add_(count)
        words = sample_words(self._state[0], self._state[1], place, 8, first_block=_FIRST_BLOCK)
        order = torch.argsort(words[:, _PARTNER], stable=True)
        # One ring through the whole batch in a random order: nobody is their own partner (unless alone).
        partner = torch.empty_like(order).scatter(0, order, order.roll(1))
        uniforms = to_uniform(words)
        return partner, uniforms if self.per_sample else uniforms[:1].expand(count, -1)

    def _applies(self, uniforms: Tensor) -> Tensor:
        return uniforms[:, _IF] < self.prob

    def _soft(self, images: Tensor, labels: Tensor) -> Tensor:
        """The labels as N × classes, after checks that wait for nothing."""
        count = len(images)
        if labels.device != images.device:
            raise InputError(f"labels is on {labels.device} and images on {images.device}: move one")
        if labels.dtype.is_floating_point:
            if labels.dim() != 2 or len(labels) != count or self.num_classes not in (None, labels.shape[1]):
                wanted = f"{count}×{self.num_classes or 'classes'}"
                raise InputError(f"soft labels must be {wanted}, found {tuple(labels.shape)}")
            return labels
        if labels.shape != (count,) or labels.dtype == torch.bool or labels.dtype.is_complex:
            raise InputError(
                f"labels must be {count} whole numbers or soft labels {count}×classes in floats; "
                f"found {tuple(labels.shape)} {labels.dtype}"
            )
        if self.num_classes is None:
            raise InputError("whole-number labels need num_classes: how many classes are there?")
        if (self.check_inputs or labels.device.type == "cpu") and count and not torch.compiler.is_compiling():
            low, high = (int(value) for value in labels.aminmax())
            if low < 0 or high >= self.num_classes:
                raise InputError(f"labels must lie in 0 to {self.num_classes - 1}, found {low} to {high}")
        # By comparison, not by scatter: a label out of range gives a row of zeros instead of a write elsewhere.
        return (labels[:, None] == torch.arange(self.num_classes, device=labels.device)).to(torch.float32)


class Mixup(_Mix):
    """(1 − λ)·sample + λ·partner, for images and labels; λ from Beta(alpha, alpha) (Zhang et al., 2018).

    λ is rounded to the images' dtype before it is used, so that labels say exactly what was mixed. In `eval()` mode
    images pass and labels become soft. A batch of one has no partner and stays as it is.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        *,
        alpha: float = 0.2,
        prob: float = 1.0,
        per_sample: bool = True,
        seed: int = 0,
        check_inputs: bool = False,
    ) -> None:
        """
        Args:
            num_classes: needed for whole-number labels; soft labels (N × classes, floats) say it themselves.
            alpha: 0.001 to 100. Below 1 mostly one of the two is seen, 1 is uniform, above 1 mostly both.
            prob: share of the samples (or, with per_sample=False, of the batches) that are mixed.
            per_sample: a λ for each sample; False: one for the whole batch.
            check_inputs: check labels on a GPU too, which waits for it. On the CPU they always are (not when compiled);
                unchecked, a label out of range becomes a row of zeros.
        """
        super().__init__(
            num_classes,
            alphas={"alpha": alpha},
            prob=prob,
            per_sample=per_sample,
            seed=seed,
            check_inputs=check_inputs,
        )

    def forward(self, images: Tensor, labels: Tensor, *, index: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mixed images, in the dtype and memory format that they came with, and soft labels."""
        _check_images(images, floats=True)
        soft = self._soft(images, labels)
        if not self.training or not len(images):
            return images, soft
        partner, uniforms = self._start(images, index)
        share = look_up(self._tables[0], uniforms[:, _SHARE], self.alphas["alpha"]).to(images.dtype)
        share = torch.where(self._applies(uniforms), share, 0.0)
        mixed = torch.lerp(images, images[partner], _over(share, images))
        return mixed, _blend(soft, soft[partner], share)


class CutMix(_Mix):
    """A box of the partner pasted into the sample; labels by area (Yun et al., 2019).

    The box's area is drawn from Beta(alpha, alpha), its centre is uniform over the image, and it is cut at the border:
    labels count the pixels that were really pasted. Masks, where given, get the same box. In `eval()` mode images and
    masks pass and labels become soft. A batch of one has no partner and stays as it is.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        *,
        alpha: float = 1.0,
        prob: float = 1.0,
        per_sample: bool = True,
        seed: int = 0,
        check_inputs: bool = False,
    ) -> None:
        """Arguments as for `Mixup`; alpha is 1 (uniform) in the paper."""
        super().__init__(
            num_classes,
            alphas={"alpha": alpha},
            prob=prob,
            per_sample=per_sample,
            seed=seed,
            check_inputs=check_inputs,
        )

    def forward(
        self,
        images: Tensor,
        labels: Tensor | None = None,
        *,
        masks: Tensor | None = None,
        index: Tensor | None = None,
    ) -> Any:
        """Images and whatever else was given, in the order of the arguments: (images, soft labels, masks)."""
        _check_images(images, floats=False)
        if labels is None and masks is None:
            raise InputError("CutMix needs labels, masks or both: images alone would no longer match theirs")
        soft = None if labels is None else self._soft(images, labels)
        if masks is not None:
            _check_masks(masks, images)
        if self.training and len(images):
            partner, uniforms = self._start(images, index)
            inside = _box(self._tables[0], self.alphas["alpha"], uniforms, images) & _over(
                self._applies(uniforms), images
            )
            images = torch.where(inside, images[partner], images)
            if soft is not None:
                soft = _blend(soft, soft[partner], _area(inside))
            if masks is not None:
                shape = (len(masks), *(1,) * (masks.dim() - 3), *masks.shape[-2:])
                masks = torch.where(inside.view(shape), masks[partner], masks)
        return tuple(given for given in (images, soft, masks) if given is not None)


class MixupOrCutMix(_Mix):
    """One of the two for each sample: CutMix with probability `switch_prob`, Mixup otherwise."""

    def __init__(
        self,
        num_classes: int | None = None,
        *,
        mixup_alpha: float = 0.8,
        cutmix_alpha: float = 1.0,
        switch_prob: float = 0.5,
        prob: float = 1.0,
        per_sample: bool = True,
        seed: int = 0,
        check_inputs: bool = False,
    ) -> None:
        """Arguments as for `Mixup`; the two alphas are those that vision transformers are usually trained with."""
        super().__init__(
            num_classes,
            alphas={"mixup_alpha": mixup_alpha, "cutmix_alpha": cutmix_alpha},
            prob=prob,
            per_sample=per_sample,
            seed=seed,
            check_inputs=check_inputs,
        )
        _check_share("switch_prob", switch_prob)
        self.switch_prob = float(switch_prob)

    def forward(self, images: Tensor, labels: Tensor, *, index: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mixed images, in the dtype and memory format that they came with, and soft labels."""
        _check_images(images, floats=True)
        soft = self._soft(images, labels)
        if not self.training or not len(images):
            return images, soft
        partner, uniforms = self._start(images, index)
        inside = _box(self._tables[1], self.alphas["cutmix_alpha"], uniforms, images)
        share = look_up(self._tables[0], uniforms[:, _SHARE], self.alphas["mixup_alpha"]).to(images.dtype)
        cut, applies = uniforms[:, _SWITCH] < self.switch_prob, self._applies(uniforms)
        # Both are one blend: Mixup's weight is the same everywhere, CutMix's is 0 or 1.
        weight = torch.where(_over(cut, images), inside.to(images.dtype), _over(share, images))
        weight = torch.where(_over(applies, images), weight, 0.0)
        share = torch.where(applies, torch.where(cut, _area(inside), share), 0.0)
        return torch.lerp(images, images[partner], weight), _blend(soft, soft[partner], share)


def _box(table: Tensor, alpha: float, uniforms: Tensor, images: Tensor) -> Tensor:
    """N × 1 … × H × W: where the partner is pasted."""
    height, width = images.shape[-2:]
    side = torch.sqrt(look_up(table, uniforms[:, _SHARE], alpha))
    rows, columns = torch.arange(height, device=images.device), torch.arange(width, device=images.device)
    along_y = _between(rows, side, uniforms[:, _CENTRE_Y], height)
    along_x = _between(columns, side, uniforms[:, _CENTRE_X], width)
    inside = along_y[:, :, None] & along_x[:, None, :]
    return inside.view(len(images), *(1,) * (images.dim() - 3), height, width)


def _between(places: Tensor, side: Tensor, centre: Tensor, size: int) -> Tensor:
    length = torch.floor(side * size + 0.5)
    first = torch.floor(centre * size) - torch.floor(length * 0.5)
    return (places >= first[:, None]) & (places < (first + length)[:, None])


def _area(inside: Tensor) -> Tensor:
    """N: the share of each image that is its partner's."""
    return inside.flatten(1).sum(1) / math.prod(inside.shape[1:])


def _blend(own: Tensor, other: Tensor, share: Tensor) -> Tensor:
    """Labels, with `share` of the other's."""
    share = share.to(torch.float32)[:, None]
    return ((1.0 - share) * own + share * other).to(own.dtype)


def _over(values: Tensor, images: Tensor) -> Tensor:
    """One value per sample, shaped to spread over its pixels."""
    return values.view(-1, *(1,) * (images.dim() - 1))


def _check_images(images: Tensor, *, floats: bool) -> None:
    if images.dim() not in (4, 5) or min(images.shape[1:]) < 1:
        raise InputError(
            f"images has shape {tuple(images.shape)}; expected N×C×H×W or, for clips, N×T×C×H×W, no side but N being 0"
        )
    if floats and not images.dtype.is_floating_point:
        raise InputError(f"images has dtype {images.dtype}; only floats can be mixed: mix after GPUAugmentation")


def _check_masks(masks: Tensor, images: Tensor) -> None:
    lead, size = images.shape[:-3], images.shape[-2:]
    if masks.shape not in (lead + size, (*lead, 1, *size)) or masks.device != images.device:
        raise InputError(
            f"masks is {tuple(masks.shape)} on {masks.device}; for images {tuple(images.shape)} it must be "
            f"{(*lead, *size)} or {(*lead, 1, *size)} on {images.device}"
        )


def _check_share(name: str, value: float) -> None:
    if not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
        raise InputError(f"{name}={value!r} must be a number from 0 to 1")
