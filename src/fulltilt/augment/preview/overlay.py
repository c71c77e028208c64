"""A mask over its image: a translucent colour per class with a solid contour; the ignore index hatched in gray."""

from __future__ import annotations

import colorsys
from typing import Any

import numpy as np

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Labels = np.ndarray[Any, np.dtype[np.int64]]
Colour = tuple[int, int, int]

_COLOURS: tuple[Colour, ...] = (
    (255, 77, 77), (64, 160, 255), (255, 196, 0), (60, 200, 120),
    (190, 110, 255), (255, 130, 30), (0, 205, 210), (255, 105, 190),
)  # fmt: skip
_OPACITY = 0.42
_HATCH: tuple[Colour, Colour] = ((148, 148, 148), (205, 205, 205))
_HATCH_PERIOD = 8
_GOLDEN = 0.618034


def colour_of(label: int) -> Colour:
    """The same colour for a class in every picture; neighbours differ."""
    if 1 <= label <= len(_COLOURS):
        return _COLOURS[label - 1]
    lightness = (0.55, 0.7, 0.42)[label % 3]
    red, green, blue = colorsys.hls_to_rgb((label * _GOLDEN) % 1.0, lightness, 0.75)
    return round(red * 255), round(green * 255), round(blue * 255)


def hatching(height: int, width: int) -> Pixels:
    """Diagonal stripes in two grays."""
    stripe = (np.add.outer(np.arange(height), np.arange(width)) // (_HATCH_PERIOD // 2)) % 2
    grays: Pixels = np.array(_HATCH, dtype=np.uint8)[stripe]
    return grays


def overlay(image: Pixels, labels: Labels, *, ignore: int | None, fill: bool = True) -> Pixels:
    """H × W × 3 with the labels drawn over it, or only their contours; label 0 is background and stays as it is."""
    out = image.astype(np.float32)
    shown = labels != 0
    for label in np.unique(labels[shown]).tolist() if fill else ():
        here = labels == label
        if label == ignore:
            out[here] = out[here] * 0.25 + hatching(*labels.shape)[here] * np.float32(0.75)
        else:
            out[here] = out[here] * (1.0 - _OPACITY) + np.array(colour_of(label), dtype=np.float32) * _OPACITY
    edge = _contour(labels) & shown & (labels != (0 if ignore is None else ignore))
    for label in np.unique(labels[edge]).tolist():
        out[edge & (labels == label)] = colour_of(label)
    return np.rint(out).astype(np.uint8)


def _contour(labels: Labels) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Pixels within two of a differing neighbour across a side, the picture's own border not counting."""
    edge = np.zeros(labels.shape, dtype=bool)
    for step in (1, 2):
        down, across = labels[step:] != labels[:-step], labels[:, step:] != labels[:, :-step]
        edge[step:] |= down
        edge[:-step] |= down
        edge[:, step:] |= across
        edge[:, :-step] |= across
    return edge
