"""What settings do, as one labelled picture.

    the input                    as it is, and as `eval()` mode gives it
    each setting that is on      alone, applied every time, with the value that was drawn
    everything together          as training gets it

A column is a sample: its rotation in the fifth row is its rotation in the full draw too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fulltilt.augment.module import GPUAugmentation
from fulltilt.augment.preview.effects import EFFECTS, draw
from fulltilt.augment.preview.pictures import Picture, known_labels
from fulltilt.augment.preview.sheet import Cell, Row, Sheet
from fulltilt.augment.settings import Settings
from fulltilt.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

COLUMNS = (1, 16)
CELL_PIXELS = (64, 1024)
_WORKING_PIXELS = 512


def working_pixels(settings: Settings) -> int | None:
    """How long a picture's longer side need be to show what these settings do; None: all of it."""
    if settings.random_crop is not None:
        return None  # a crop of so many pixels is a crop of these pixels
    if settings.output_size is None:
        return _WORKING_PIXELS
    return max(settings.output_size) * (4 if settings.random_resized_crop else 2)


def preview(
    pictures: Sequence[Picture],
    settings: Settings,
    *,
    seed: int = 0,
    columns: int = 4,
    cell_pixels: int = 192,
    full_rows: int = 3,
    title: str = "",
    device: str | torch.device = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> Image:
    """The sheet of what `settings` do to the pictures, which are repeated to fill the columns.

    Runs on the CPU unless told otherwise: each row would be another kernel for a GPU to compile, and the draws are the
    same. `progress` is called with the pictures done and all there are to do.
    """
    for name, value, (least, most) in (("columns", columns, COLUMNS), ("cell_pixels", cell_pixels, CELL_PIXELS)):
        if not least <= value <= most:
            raise InputError(f"{name}={value!r} must be from {least} to {most}")
    if not pictures:
        raise InputError("pictures is empty: there is nothing to show")
    on = [effect for effect in EFFECTS if effect.is_on(settings)]
    shown = _Shown(
        pictures=[pictures[k % len(pictures)] for k in range(columns)],
        settings=settings,
        seed=seed,
        device=torch.device(device),
        ignore=_ignore(settings, known_labels(pictures)),
        progress=progress,
        total=len(pictures) + columns * (len(on) + full_rows),
    )
    sheet = Sheet(
        title=title,
        rows=[*shown.inputs(len(pictures)), *shown.alone(), *shown.full(full_rows)],
        columns=columns,
        cell_pixels=cell_pixels,
        labels=known_labels(pictures),
        ignore=shown.ignore,
    )
    return sheet.draw()


@dataclass(kw_only=True)
class _Shown:
    """The rows of one preview."""

    pictures: list[Picture]
    """One per column."""
    settings: Settings
    seed: int
    device: torch.device
    ignore: int | None
    progress: Callable[[int, int], None] | None
    total: int
    done: int = 0
    bases: list[Picture] = field(init=False)
    """What `eval()` mode makes of each: settings that don't crop are shown on these."""

    def __post_init__(self) -> None:
        settings = self.settings
        if settings.random_resized_crop and settings.eval_crop is None:
            settings = settings.changed(eval_crop=1.0)  # the whole image squeezed into a square shows little
        evaluated = self.module(settings).eval()
        bases = {id(picture): self.apply(evaluated, picture, None) for picture in dict.fromkeys(self.pictures)}
        self.bases = [bases[id(picture)] for picture in self.pictures]

    def module(self, settings: Settings) -> GPUAugmentation:
        options = {f.name: getattr(settings, f.name) for f in fields(settings)}
        return GPUAugmentation(seed=self.seed, layout="channels_last", channels_last=True, **options)

    def apply(self, module: GPUAugmentation, picture: Picture, index: int | None) -> Picture:
        """The picture as the module gives it, back on the 8-bit scale."""
        images, masks = picture.image[None].to(self.device), None if picture.mask is None else picture.mask[None]
        place = None if index is None else torch.tensor([index])
        if masks is None:
            out, labels = module(images, index=place), None
        else:
            out, labels = module(images, masks.to(self.device), index=place)
        if self.progress is not None:
            self.done += 1
            self.progress(self.done, self.total)
        return Picture(
            name=picture.name,
            image=_visible(out[0], self.settings),
            mask=None if labels is None else labels[0].cpu(),
        )

    def inputs(self, count: int) -> list[Row]:
        """The pictures themselves; beside a single one, what `eval()` mode makes of it, and its mask."""
        cells = [
            self.cell(picture, f"{picture.name}, {picture.size[1]} x {picture.size[0]}", picture.note)
            for picture in self.pictures[:count]
        ]
        if len(cells) == 1 and len(self.pictures) > 1:
            bare = Picture(name="", image=self.pictures[0].image)
            if self.pictures[0].mask is not None:
                cells.insert(0, self.cell(bare, cells[0].captions[0], self.pictures[0].note))
                cells[1] = self.cell(self.pictures[0], "with its mask")
            if self.bases[0].size != self.pictures[0].size and len(cells) < len(self.pictures):
                height, width = self.bases[0].size
                cells.append(self.cell(self.bases[0], f"in eval() mode, {width} x {height}"))
        return [Row(group="The input", name="input", details=[], cells=cells)]

    def alone(self) -> list[Row]:
        """A row for each setting that is on."""
        rows = []
        for effect in EFFECTS:
            if not effect.is_on(self.settings):
                continue
            alone = effect.alone(self.settings)
            module = self.module(alone)
            cells = []
            for index in range(len(self.pictures)):
                source = self.pictures[index] if effect.crops else self.bases[index]
                result = self.apply(module, source, index)
                text = draw(effect, alone, key=(self.seed, 0, index), in_size=source.size, out_size=result.size)
                cells.append(self.cell(result, text or "", fill=effect.moves))
            details = [effect.range(alone, alone.vector()), effect.often(self.settings)]
            rows.append(
                Row(group="Each alone, every time", name=effect.name, details=list(filter(None, details)), cells=cells)
            )
        return rows

    def full(self, count: int) -> list[Row]:
        """Everything, as often as it is set to happen."""
        module = self.module(self.settings)
        rows = []
        for epoch in range(count):
            module.set_epoch(epoch)
            cells = []
            for index, picture in enumerate(self.pictures):
                result = self.apply(module, picture, index)
                words = self.words((self.seed, epoch, index), picture, result)
                cells.append(self.cell(result, ", ".join(words) or "unchanged"))
            rows.append(Row(group="All together, as in training", name=f"epoch {epoch}", details=[], cells=cells))
        return rows

    def words(self, key: tuple[int, int, int], picture: Picture, result: Picture) -> list[str]:
        words = []
        for effect in EFFECTS:
            if effect.is_on(self.settings):
                text = draw(effect, self.settings, key=key, in_size=picture.size, out_size=result.size)
                if text is not None:
                    words.append(f"{effect.short} {text}".strip().replace(" ", "\u00a0"))  # kept on one line
        return words

    def cell(self, picture: Picture, *captions: str, fill: bool = True) -> Cell:
        image = picture.image.numpy()
        image = image.repeat(3, axis=2) if image.shape[2] == 1 else image
        return Cell(
            image=image,
            labels=None if picture.mask is None else picture.mask.numpy(),
            fill=fill,
            captions=[caption for caption in captions if caption],
        )


def _visible(image: Tensor, settings: Settings) -> Tensor:
    """C × H × W as the module gives it → H × W × C bytes: normalisation is taken back."""
    planes = image.float().cpu()
    if settings.mean_std is not None:
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in settings.mean_std)
        planes = planes * std + mean
    return (planes * 255.0).round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).contiguous()


def _ignore(settings: Settings, labels: list[int]) -> int | None:
    """The mask's fill value, or 255 beside smaller classes; 255 next to 0 alone is an object."""
    if settings.mask_fill != 0:
        return settings.mask_fill
    return 255 if 255 in labels and set(labels) - {0, 255} else None
