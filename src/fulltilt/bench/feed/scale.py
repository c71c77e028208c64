"""How much of everything is measured: all of it on a GPU, a taste of it without one."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Sizes and lengths of a run."""

    device: str
    photos: int
    photo_size: tuple[int, int]
    """Width and height, about."""
    photo_bytes: int
    batch: int
    crop: int
    """Side of what the model sees."""
    steps: int
    """Of a case; fewer where they take longer than `seconds`."""
    warm_steps: int
    limit_steps: int
    seconds: float
    ladder_seconds: float
    settle_seconds: float
    """How long the automatic number of workers may look before it is measured."""
    unet_photos: int
    unet_side: int
    unet_base: int
    """Channels of the U-Net's first level."""
    unet_batch: int
    windows: int
    window_seconds: float
    grid_seconds: float
    grid_settle_seconds: float
    """How long the automatic number may look; 0 does not wait for it and holds it to no target."""
    peers: bool
    """Whether DataLoaders with worker processes are measured: they take long to start."""

    @property
    def gpu(self) -> bool:
        return self.device != "cpu"


_FULL = Scale(
    device="cuda", photos=6144, photo_size=(500, 375), photo_bytes=80_000, batch=256, crop=224,
    steps=80, warm_steps=12, limit_steps=25, seconds=4.0, ladder_seconds=1.2, settle_seconds=75.0,
    unet_photos=512, unet_side=512, unet_base=32, unet_batch=32,
    windows=200_000, window_seconds=1.5, grid_seconds=1.5, grid_settle_seconds=60.0, peers=True,
)  # fmt: skip


def scale_for(*, gpu: bool, quick: bool, count: int) -> Scale:
    """What this machine is asked for; `count` photos at most."""
    if not gpu:
        return replace(
            _FULL, device="cpu", photos=min(count, 96), photo_size=(160, 120), photo_bytes=12_000,
            batch=min(8, count), crop=32, steps=4, warm_steps=1, limit_steps=3, seconds=1.0, ladder_seconds=0.2,
            settle_seconds=0.0, unet_photos=min(count, 8), unet_side=64, unet_base=4, unet_batch=min(4, count),
            windows=2_000, window_seconds=0.1, grid_seconds=0.1 if quick else 1.5,
            grid_settle_seconds=0.0 if quick else 60.0, peers=False,
        )  # fmt: skip
    scale = replace(_FULL, photos=count, batch=min(_FULL.batch, count))
    if not quick:
        return scale
    return replace(
        scale, photos=min(count, 1024), steps=20, warm_steps=6, limit_steps=10, seconds=2.0, ladder_seconds=0.4,
        settle_seconds=0.0, unet_photos=64, windows=50_000, window_seconds=0.5, grid_seconds=0.3,
        grid_settle_seconds=0.0, peers=False,
    )  # fmt: skip
