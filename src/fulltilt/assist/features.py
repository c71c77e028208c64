"""`extract_features`: what an image looks like, in a few numbers: colours, edges, and likeness to known images."""

from __future__ import annotations

import torch
from torch import Tensor

from fulltilt.errors import InputError


def extract_features(
    images: Tensor,
    *,
    colour_bins: int = 16,
    orientations: int = 8,
    cells: int = 2,
    reference: Tensor | None = None,
) -> Tensor:
    """Colour and gradient histograms of images (N, C, H, W) or (C, H, W), uint8 or floats in [0, 1].

    Args:
        colour_bins: bins for each channel; their shares add up to 1.
        orientations: bins of a half turn for the direction of edges, weighted by their strength; 0 and a half turn are
            the same edge.
        cells: edges are counted in a grid of so many cells a side; all of an image's have the length 1.
        reference: features (M, D) of known images: their likeness to each (the cosine) is given instead, (N, M).

    Returns:
        float32 features, (N, C · colour_bins + orientations · cells²) or (N, M); without N for one image.
    """
    images = torch.as_tensor(images)
    for name, value in (("colour_bins", colour_bins), ("orientations", orientations), ("cells", cells)):
        if value < 1:
            raise InputError(f"{name} is {value!r}; it is a number from 1 on")
    if images.dim() == 3:
        more = {"colour_bins": colour_bins, "orientations": orientations, "cells": cells}
        return extract_features(images[None], **more, reference=reference)[0]
    if images.dim() != 4 or min(images.shape[-2:]) < cells:
        raise InputError(
            f"images of shape {tuple(images.shape)} have no features; (N, C, H, W) or (C, H, W) has, from {cells} "
            "pixels a side on"
        )
    if not images.is_floating_point() and images.dtype not in (torch.uint8, torch.bool):
        raise InputError(f"images of {images.dtype} have no known range; uint8 has, or floats from 0 to 1")
    pixels = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    if images.is_floating_point() and not bool(pixels.isfinite().all()):
        raise InputError("images have pixels that are NaN or infinite, so no features")
    features = torch.cat([_colours(pixels, colour_bins), _edges(pixels, orientations, cells)], dim=1)
    if reference is None:
        return features
    if reference.dim() != 2 or reference.shape[1] != features.shape[1]:
        raise InputError(
            f"a reference of shape {tuple(reference.shape)} can't be compared with features of {features.shape[1]} "
            "numbers; extract it with the same settings"
        )
    unit = torch.nn.functional.normalize
    return unit(features, dim=1) @ unit(reference.float(), dim=1).T


def _colours(pixels: Tensor, bins: int) -> Tensor:
    samples, channels = pixels.shape[:2]
    which = (pixels.clamp(0, 1) * bins).long().clamp(max=bins - 1).flatten(2)
    counts = pixels.new_zeros(samples, channels, bins)
    counts.scatter_add_(2, which, pixels.new_ones(which.shape))
    return counts.flatten(1) / which.shape[2]


def _edges(pixels: Tensor, orientations: int, cells: int) -> Tensor:
    grey = torch.nn.functional.pad(pixels.mean(1, keepdim=True), (1, 1, 1, 1), mode="replicate")
    down = (grey[..., 2:, 1:-1] - grey[..., :-2, 1:-1])[:, 0]
    across = (grey[..., 1:-1, 2:] - grey[..., 1:-1, :-2])[:, 0]
    strength = torch.hypot(across, down)
    turn = torch.atan2(down, across).remainder(torch.pi) / torch.pi
    direction = (turn * orientations).long().clamp(max=orientations - 1)
    samples, height, width = strength.shape
    row = (torch.arange(height, device=pixels.device) * cells // height)[:, None]
    column = (torch.arange(width, device=pixels.device) * cells // width)[None]
    which = ((row * cells + column) * orientations + direction).flatten(1)
    sums = pixels.new_zeros(samples, cells * cells * orientations)
    sums.scatter_add_(1, which, strength.flatten(1))
    return torch.nn.functional.normalize(sums, dim=1)
