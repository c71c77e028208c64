"""A small video backbone that stays as it is, adapters that are trained, and heads that judge every frame.

    clip ─► frames ─► patches ─► [ frozen block ─► adapter ] × n ─► one vector per frame ─► temporal layers ─► heads
                                                     │
                       down ─► neighbouring frames mixed ─► up, added to what came in

Frozen blocks look at single frames. Motion is seen by the adapters, a few per cent of the weights, and by the layers
after them: so a backbone that was trained on pictures or short clips is taken to long videos.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from fulltilt.errors import InputError

_FIRST_MIX = ((0.0, 1.0, 0.0), (-3.0, 3.0, 0.0), (0.0, -3.0, 3.0))
"""Of the frame before, the frame and the one after: channels by turns begin with what is there and what changes."""
_FRAMES_SCALE = 8.0
"""Distances are learnt in units of so many frames."""


class Detector(nn.Module):
    """B×T×H×W×3 uint8 → B×T×(1 + classes + 2).

    For each frame: the scores of no action and of each class, and how many frames ago the action began and how many on
    it ends. T may be any number; H and W are multiples of the patch times 2 for each width but the first.
    """

    def __init__(
        self,
        classes: int = 4,
        *,
        widths: tuple[int, ...] = (96, 192, 384),
        blocks: int = 2,
        patch: int = 4,
        reduction: int = 4,
        hidden: int = 256,
        dilations: tuple[int, ...] = (1, 2, 4, 8, 16),
        weights: str | None = None,
    ) -> None:
        """
        Args:
            widths: of the stages; each after the first has half the sides of the one before.
            blocks: of each stage, with an adapter after each.
            reduction: how much narrower an adapter is than what it adapts.
            hidden: width of the temporal layers.
            weights: a file with the backbone's own, as `torch.save(backbone.state_dict(), …)` has written them. Without
                one they are drawn, the same in every run.
        """
        super().__init__()
        self.backbone = Backbone(tuple(widths), blocks, patch)
        if weights is not None:
            self.backbone.load_state_dict(_loaded(weights))
        self.backbone.requires_grad_(False)
        self.adapters = nn.ModuleList(Adapter(width, reduction) for width in widths for _ in range(blocks))
        self.enter = nn.Conv1d(widths[-1], hidden, 1)
        self.temporal = nn.ModuleList(_Temporal(hidden, dilation) for dilation in dilations)
        self.classify = nn.Conv1d(hidden, 1 + classes, 3, padding=1)
        self.bound = nn.Conv1d(hidden, 2, 3, padding=1)

    def forward(self, clips: Tensor) -> Tensor:
        batch, frames = clips.shape[:2]
        images = clips.flatten(0, 1).permute(0, 3, 1, 2)  # channels last already
        maps = self.backbone.stem(images.to(self.backbone.stem.weight.dtype) / 127.5 - 1)
        for block, adapter in zip(self.backbone.blocks, self.adapters, strict=True):
            maps = adapter(block(maps), frames)
        vectors = maps.mean((-2, -1)).view(batch, frames, -1).transpose(1, 2)
        states = self.enter(vectors)
        for layer in self.temporal:
            states = layer(states)
        states = functional.gelu(states)
        distances = _FRAMES_SCALE * functional.softplus(self.bound(states).float())
        return torch.cat([self.classify(states).float(), distances], 1).transpose(1, 2)


class Backbone(nn.Module):
    """Convolutions on single frames; what a frame's maps become does not depend on other frames."""

    def __init__(self, widths: tuple[int, ...], blocks: int, patch: int) -> None:
        super().__init__()
        if not widths or blocks < 1 or any(width % 8 for width in widths):
            raise InputError(f"widths are {widths} and blocks {blocks}; expected multiples of 8, and 1 or more blocks")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # it stands for weights that were trained elsewhere: the same for everyone
            self.stem = nn.Conv2d(3, widths[0], patch, stride=patch)
            self.blocks = nn.ModuleList()
            for stage, width in enumerate(widths):
                before = widths[max(0, stage - 1)]
                self.blocks.append(_Block(before, width, halve=stage > 0))
                self.blocks.extend(_Block(width, width) for _ in range(blocks - 1))


class Adapter(nn.Module):
    """A narrow way around a block in which each frame hears of those before and after it; at first it changes nothing.

    Mixing is a weighted sum of three shifted copies, which costs one pass where a convolution over time would need the
    maps in another order.
    """

    def __init__(self, width: int, reduction: int) -> None:
        super().__init__()
        narrow = max(8, width // reduction)
        self.down = nn.Conv2d(width, narrow, 1)
        weights = torch.tensor(_FIRST_MIX).repeat(-(-narrow // len(_FIRST_MIX)), 1)[:narrow]
        self.mix = nn.Parameter(weights.T.reshape(3, 1, 1, narrow, 1, 1).contiguous())
        self.up = nn.Conv2d(narrow, width, 1)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)  # type: ignore[arg-type]

    def forward(self, maps: Tensor, frames: int) -> Tensor:
        """`maps` are those of clips of so many frames, one after another."""
        narrow = functional.gelu(self.down(maps))
        clips = narrow.view(-1, frames, *narrow.shape[1:])
        before = functional.pad(clips[:, :-1], (0, 0, 0, 0, 0, 0, 1, 0))
        after = functional.pad(clips[:, 1:], (0, 0, 0, 0, 0, 0, 0, 1))
        mixed = self.mix[0] * before + self.mix[1] * clips + self.mix[2] * after
        return maps + self.up(functional.gelu(mixed.flatten(0, 1)))  # type: ignore[no-any-return]


class _Block(nn.Module):
    def __init__(self, before: int, after: int, *, halve: bool = False) -> None:
        super().__init__()
        self.shrink = nn.Conv2d(before, after, 2, stride=2) if halve else nn.Identity()
        self.convolve = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.normalise = nn.GroupNorm(8, after)  # of a frame alone: no batch, no neighbour has a say

    def forward(self, maps: Tensor) -> Tensor:
        maps = self.shrink(maps)
        seen = self.convolve(maps)
        # Under autocast a norm gives fp32, in which everything after it would be kept.
        return maps + functional.gelu(self.normalise(seen).to(seen.dtype))


class _Temporal(nn.Module):
    """Frames further and further away are heard of."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.normalise = nn.GroupNorm(1, width)
        self.convolve = nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation)

    def forward(self, states: Tensor) -> Tensor:
        return states + self.convolve(functional.gelu(self.normalise(states)))  # type: ignore[no-any-return]


def _loaded(path: str) -> dict[str, Tensor]:
    try:
        found: dict[str, Tensor] = torch.load(path, weights_only=True, map_location="cpu")
    except OSError as error:
        raise InputError(f"weights: {path} can't be read ({error.strerror})") from error
    return found
