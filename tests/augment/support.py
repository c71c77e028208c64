"""What the tests of augmentation share. The references here are written from the definitions, not from the code."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fulltilt.augment import GPUAugmentation, Ragged, engine, gpu, reference
from fulltilt.augment.batch import make_batch
from fulltilt.augment.layout import Uniform

# --- the two paths -------------------------------------------------------------------------------------------------


@dataclass
class Path:
    """One way to run an augmentation. Calling it moves inputs to where it runs, and results back."""

    name: str
    device: str
    guards: list[tuple[Tensor, int]] = field(default_factory=list)
    """Buffers that the engine's outputs lie in, and how many elements on each side nobody may write."""

    def __call__(self, aug: GPUAugmentation, *args: Any, **kwargs: Any) -> Any:
        out = aug(*(_to(a, self.device) for a in args), **{k: _to(v, self.device) for k, v in kwargs.items()})
        self.check_guards()
        return _to(out, "cpu")

    def rows(self, aug: GPUAugmentation, images: Any, index: Tensor | None = None) -> Tensor:
        """The rows that a call would draw, without touching a pixel or moving the running index."""
        batch = make_batch(_to(images, self.device), None, aug._layout)
        aug.to(self.device)
        spec = aug._spec(batch, counted=False)
        with ExitStack() as stack:
            if self.name == "kernels":
                stack.enter_context(mock.patch.object(gpu, "_prepare", gpu.Pass))  # not to be kept
                stack.enter_context(mock.patch("fulltilt.augment.kernels.warp.warp", _NoKernel()))
                stack.enter_context(mock.patch("fulltilt.augment.kernels.blur.blur", _NoKernel()))
            else:
                stack.enter_context(mock.patch.object(reference, "warp", lambda *call: (call[1], None)))
            drawn = engine.augment(batch, spec, aug._dials(), _to(index, self.device))[2]
        self.guards.clear()
        return drawn.cpu()

    def check_guards(self) -> None:
        for buffer, margin in self.guards:
            whole = buffer.view(torch.uint8)
            edge = margin * buffer.element_size()
            assert bool((whole[:edge] == POISON).all()), "written before the beginning of an output"
            assert bool((whole[-edge:] == POISON).all()), "written past the end of an output"
        self.guards.clear()


class _NoKernel:
    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **kwargs: None


def _to(value: Any, device: str) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Ragged):
        moved = {name: getattr(value, name).to(device) for name in ("data", "offsets", "sizes")}
        kept = {name: getattr(value, name) for name in ("channels", "interleaved", "smallest", "keep")}
        return Ragged(**moved, **kept)
    if isinstance(value, tuple | list):
        return type(value)(_to(v, device) for v in value)
    return value


_ON_CPU = engine.on_cpu
"""As it is, wherever `kernels` is in force."""


@contextmanager
def torch_path() -> Iterator[Path]:
    with mock.patch.object(engine, "on_cpu", _ON_CPU):
        yield Path("torch", "cpu")


@contextmanager
def kernels() -> Iterator[Path]:
    """The kernels: on a GPU where there is one, otherwise in Triton's interpreter, with CPU tensors."""
    found = Path("kernels", "cuda" if torch.cuda.is_available() else "cpu")
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(gpu, "torch", _Poisoned(found.guards)))
        if found.device == "cpu":
            import triton

            if not triton.knobs.runtime.interpret:
                pytest.fail("no GPU, and Triton was imported without TRITON_INTERPRET=1: kernels can't be tested")
            stack.enter_context(mock.patch.object(engine, "on_cpu", engine.on_gpu))
            stack.enter_context(_no_idle_work())
        yield found


@contextmanager
def _no_idle_work() -> Iterator[None]:
    """Triton's interpreter without work that comes to nothing, which is most of its time.

    It adapts its language at every call of one kernel's function by another, although it is adapted from the launch to
    its end; and it works out whether integers overflow, which it tells only when it debugs.
    """
    from triton import language
    from triton.runtime import interpreter

    adapt, builder = interpreter._patch_lang, interpreter.interpreter_builder

    def once(function: Any) -> Any:
        languages = [one for one in function.__globals__.values() if one is language or one is language.core]
        if any(language.core.is_builtin(one.load) for one in languages):
            return adapt(function)
        return interpreter._LangPatchScope()  # nothing to put back

    told = replace(builder.options, sanitize_overflow=builder.options.debug)
    with mock.patch.object(interpreter, "_patch_lang", once), mock.patch.object(builder, "options", told):
        yield


POISON = 0xFF
"""Fills new outputs. As a float of any width it is NaN, as a label 255 or −1: what is not written shows."""
_MARGIN = 64


class _Poisoned:
    """torch, except that new tensors are full of poison and have guards on both sides."""

    def __init__(self, guards: list[tuple[Tensor, int]]) -> None:
        self._guards = guards

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, shape: Sequence[int], **options: Any) -> Tensor:
        dtype = options.get("dtype") or torch.float32
        form = torch.empty(shape, **(options | {"device": "meta"}))
        buffer = torch.empty(form.numel() + 2 * _MARGIN, dtype=dtype, device=options.get("device"))
        buffer.view(torch.uint8).fill_(POISON)
        self._guards.append((buffer, _MARGIN))
        return buffer.as_strided(form.shape, form.stride(), _MARGIN)

    def empty_like(self, like: Tensor, **options: Any) -> Tensor:
        form = torch.empty_like(like, **(options | {"device": "meta"}))
        buffer = torch.empty(form.numel(), dtype=form.dtype, device=like.device)
        buffer.view(torch.uint8).fill_(POISON)
        return buffer.as_strided(form.shape, form.stride())


def rounding(path: Path, dtype: torch.dtype) -> float:
    """The largest error of writing a number below 1 in this type. Triton's interpreter cuts bfloat16 off."""
    if dtype == torch.uint8:
        return 0.5 / 255
    ulp = torch.finfo(dtype).eps / 2
    return ulp if dtype == torch.bfloat16 and path.name == "kernels" and path.device == "cpu" else ulp / 2


# --- inputs --------------------------------------------------------------------------------------------------------


def plain(**options: Any) -> GPUAugmentation:
    """An augmentation that does what is said here and nothing else."""
    return GPUAugmentation(
        **({"horizontal_flip_prob": 0.0, "rotation_degrees": 0.0, "brightness": 0.0, "contrast": 0.0} | options)
    )


def photo(*shape: int, seed: int = 0) -> Tensor:
    """Bytes with detail at every scale."""
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def dots(count: int, height: int = 1, width: int = 1) -> Tensor:
    """Many images that take no memory: for draws, which don't look at pixels."""
    return torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(count, 1, height, width)


def labels(*shape: int, classes: int = 7, dtype: torch.dtype = torch.int64, seed: int = 1) -> Tensor:
    return torch.randint(0, classes, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# --- the generator, from its paper, in plain numbers ---------------------------------------------------------------


def philox(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Philox4x32-10: Salmon et al., 2011, section 3.3."""
    c, k = list(counter), list(key)
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [second >> 32 ^ c[1] ^ k[0], second & 0xFFFFFFFF, first >> 32 ^ c[3] ^ k[1], first & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def word(seed: int, epoch: int, index: int, purpose: int) -> int:
    counter = (index & 0xFFFFFFFF, index >> 32 & 0xFFFFFFFF, epoch, purpose // 4)
    return philox(counter, (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF))[purpose % 4]


def uniform(purpose: int, *, index: int = 0, seed: int = 0, epoch: int = 0) -> float:
    return (word(seed, epoch, index, purpose) >> 8) / 2**24


# --- geometry in float64 -------------------------------------------------------------------------------------------


def matrix(*lines: Sequence[float]) -> Tensor:
    return torch.tensor(lines, dtype=torch.float64)


def shift(x: float, y: float) -> Tensor:
    return matrix((1, 0, x), (0, 1, y), (0, 0, 1))


def stretch(x: float, y: float) -> Tensor:
    return matrix((x, 0, 0), (0, y, 0), (0, 0, 1))


def rotate(degrees: float) -> Tensor:
    """Clockwise on the screen, whose y points down."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return matrix((cos, -sin, 0), (sin, cos, 0), (0, 0, 1))


def shear(x_degrees: float, y_degrees: float) -> Tensor:
    """As torchvision has it: along x, then along y."""
    x, y = math.tan(math.radians(x_degrees)), math.tan(math.radians(y_degrees))
    return matrix((1, 0, 0), (-y, 1, 0), (0, 0, 1)) @ matrix((1, -x, 0), (0, 1, 0), (0, 0, 1))


def homography(source: Tensor, target: Tensor) -> Tensor:
    """The matrix that takes four source points to four target points, from the eight equations."""
    equations, values = [], []
    for (x, y), (u, v) in zip(source.tolist(), target.tolist(), strict=True):
        equations += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        values += [u, v]
    solved = torch.linalg.solve(torch.tensor(equations, dtype=torch.float64), torch.tensor(values, dtype=torch.float64))
    return torch.cat([solved, torch.ones(1, dtype=torch.float64)]).view(3, 3)


def about_centre(forward: Tensor, size: tuple[int, int]) -> Tensor:
    """Output pixel → input pixel for a map that keeps size and is given about the centre."""
    x, y = (size[1] - 1) / 2, (size[0] - 1) / 2
    return shift(x, y) @ torch.linalg.inv(forward) @ shift(-x, -y)


def places(inverse: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """x and y in the input of every output pixel."""
    oy, ox = torch.meshgrid(*(torch.arange(s, dtype=torch.float64) for s in size), indexing="ij")
    p = torch.stack([ox, oy, torch.ones_like(ox)], -1) @ inverse.to(torch.float64).T
    return p[..., 0] / p[..., 2], p[..., 1] / p[..., 2]


PADDING = {"constant": "zeros", "reflect": "reflection", "edge": "border"}


def sample(image: Tensor, inverse: Tensor, size: tuple[int, int], fill: float | str = 0.0) -> Tensor:
    """C×H×W on the [0, 1] scale through torch's own sampler, in float64."""
    height, width = image.shape[-2:]
    x, y = places(inverse, size)
    grid = torch.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], -1)
    level = 0.0 if isinstance(fill, str) else fill
    padding = PADDING[fill] if isinstance(fill, str) else "zeros"
    out = F.grid_sample((image.double() - level)[None], grid[None], padding_mode=padding, align_corners=False)
    return out[0] + level


def sample_labels(
    mask: Tensor, inverse: Tensor, size: tuple[int, int], fill: float | str = 0.0, mask_fill: int = 0
) -> tuple[Tensor, Tensor]:
    """The nearest labels, halves up, and where float32 can tell which is nearest."""
    height, width = mask.shape
    x, y = places(inverse, size)
    if fill == "reflect":
        x, y = mirror(x, width), mirror(y, height)
    near_x, near_y = torch.floor(x + 0.5).long(), torch.floor(y + 0.5).long()
    found = mask[near_y.clamp(0, height - 1), near_x.clamp(0, width - 1)]
    if not isinstance(fill, str):
        inside = (near_x >= 0) & (near_x < width) & (near_y >= 0) & (near_y < height)
        found = torch.where(inside, found, torch.tensor(mask_fill, dtype=mask.dtype))
    return found, clear_of_halves(x) & clear_of_halves(y)


def clear_of_halves(x: Tensor, tolerance: float = 1e-3) -> Tensor:
    between = (x + 0.5) - torch.floor(x + 0.5)
    return (between > tolerance) & (between < 1 - tolerance)


def mirror(x: Tensor, size: int) -> Tensor:
    """Reflected at −0.5 and size − 0.5."""
    t = torch.remainder(x + 0.5, 2 * size)
    return torch.minimum(t, 2 * size - t) - 0.5


def u(purpose: Uniform | int, index: int) -> float:
    """The uniform number of sample `index` with seed 0 in epoch 0."""
    return uniform(int(purpose), index=index)


def both_sides(reach: float, purpose: Uniform, index: int) -> float:
    return reach * (2 * u(purpose, index) - 1)
