"""Transforms with the names, modules and attributes of torchvision's and Albumentations', for where those are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

TORCHVISION = "torchvision.transforms.transforms"
ALBUMENTATIONS = "albumentations.core.composition"


def like(module: str, name: str, call: Callable[..., Any] | None = None, **attributes: Any) -> Any:
    """An object of a class with that name in that module."""
    body: dict[str, Any] = {"__module__": module}
    if call is not None:
        body["__call__"] = lambda self, *args, **kwargs: call(*args, **kwargs)
    made = type(name, (), body)()
    vars(made).update(attributes)
    return made


def tv(name: str, call: Callable[..., Any] | None = None, **attributes: Any) -> Any:
    return like(TORCHVISION, name, call, **attributes)


def al(name: str, call: Callable[..., Any] | None = None, **attributes: Any) -> Any:
    return like(ALBUMENTATIONS, name, call, **{"p": 1.0, **attributes})


def compose(*members: Any) -> Any:
    """torchvision's: one image in, one out."""

    def call(image: Any) -> Any:
        for member in members:
            image = member(image)
        return image

    return tv("Compose", call, transforms=list(members))


def to_tensor() -> Any:
    def call(image: Any) -> torch.Tensor:
        array = np.array(image)
        return torch.from_numpy(array[..., None] if array.ndim == 2 else array).permute(2, 0, 1).float() / 255

    return tv("ToTensor", call)


def normalize(mean: tuple[float, ...] = (0.5, 0.4, 0.3), std: tuple[float, ...] = (0.2, 0.3, 0.4)) -> Any:
    def call(image: torch.Tensor) -> torch.Tensor:
        return (image - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]

    return tv("Normalize", call, mean=mean, std=std, inplace=False)


def flip(p: float = 0.5) -> Any:
    """Draws as torchvision's does."""

    def call(image: Any) -> Any:
        if float(torch.rand(1)) >= p:
            return image
        return image.flip(-1) if isinstance(image, torch.Tensor) else image.transpose(0)

    return tv("RandomHorizontalFlip", call, p=p)
