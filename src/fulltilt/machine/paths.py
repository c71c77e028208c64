"""The optional fast paths: for each, whether this machine has it, or why not.

Importing torchvision takes up to ten seconds, so a path is normally judged from what is installed: the package, the
build it was made for, the GPU, the driver's libraries. `try_them` uses each once and reports what happened.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from fulltilt.machine.gpus import Gpus
from fulltilt.machine.probe import failure
from fulltilt.machine.software import TorchBuild, distribution_version, version_of


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionalPath:
    """Something that makes training faster where it is there, and is never required."""

    name: str
    purpose: str
    available: bool
    provider: str | None = None
    """The package that gives it, where it is installed."""
    version: str | None = None
    tried: bool = False
    """Whether it was really used once, or judged from what is installed."""
    reason: str | None = None
    """Why it is not available."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Site:
    """What the judging looks at."""

    torch: TorchBuild | None
    cuda_problem: str | None


_Check = Callable[[str, _Site], str | None]
"""Given a package's version: why it won't work here, or None."""


def cuda_problem(gpus: Gpus, torch: TorchBuild | None) -> str | None:
    """Why torch can't compute on a GPU here, or None."""
    if gpus.problem is not None:
        return gpus.problem
    if not gpus.visible:
        return "no GPU is visible to this process (CUDA_VISIBLE_DEVICES)"
    if torch is None:
        return "torch is not installed"
    if torch.cuda is None:
        return f"torch {torch.version} is built without CUDA"
    if gpus.driver_cuda is not None and _major(gpus.driver_cuda) < _major(torch.cuda):
        return (
            f"the driver {gpus.driver} runs CUDA up to {gpus.driver_cuda}, torch is built for {torch.cuda}; "
            "update the driver, or install a torch for its CUDA"
        )
    return None


def _torch_has_cuda(version: str, site: _Site) -> str | None:  # noqa: ARG001
    return site.cuda_problem


def _fits_torch(version: str, site: _Site) -> str | None:
    """A torchvision's binary fits one version of torch and one build of it; beside another it fails to import."""
    if site.torch is None:
        return "torch is not installed"
    wanted = _pinned_torch()
    if wanted and wanted != site.torch.version.partition("+")[0]:
        return f"torchvision {version} fits torch {wanted} only, found {site.torch.version}"
    if "+cu" in version and site.torch.cuda is None:
        return f"torchvision {version} is built for CUDA, torch {site.torch.version} without: it fails to import"
    return None


def _has_nvjpeg(version: str, site: _Site) -> str | None:
    if "+cpu" in version:
        return f"torchvision {version} is built without nvJPEG"
    return _fits_torch(version, site)


def _has_cuvid(version: str, site: _Site) -> str | None:  # noqa: ARG001
    if site.cuda_problem is not None or _loads("libnvcuvid.so.1"):
        return None
    return "the driver's libnvcuvid.so.1 is missing; in a container add video to NVIDIA_DRIVER_CAPABILITIES"


def pyav_problem(version: str, site: _Site | None = None) -> str | None:  # noqa: ARG001
    """Why videos can't be read with a PyAV of this version, or None."""
    if _major(version) in _PYAV:
        return None
    return f"videos need PyAV {' or '.join(map(str, _PYAV))}, found {version} ({GET_PYAV})"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Provider:
    module: str | None
    """None: its distributions hold a library and nothing to import."""
    package: str
    install: str
    probe: str
    """The least code that proves it."""
    distributions: tuple[str, ...] = ()
    check: _Check | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spec:
    name: str
    purpose: str
    needs_gpu: bool = False
    providers: tuple[_Provider, ...]
    """The first that works gives the path."""


GET_PYAV: Final = "pip install 'av>=18,<20'"
GET_NVDEC: Final = "pip install 'PyNvVideoCodec>=2'"
GET_KORNIA: Final = "pip install 'kornia>=0.8'"
"""The packages of our extras, as pyproject.toml bounds them: so the line works wherever fulltilt came from."""
_PYAV = (18, 19)
"""That the decoders are tested with. From one to the next, types and arguments change."""
_NVJPEG = "from fulltilt.decode.gpu import GpuDecoder; GpuDecoder('cuda')"
"""Whoever brings the library, this is what finds it and decodes a first picture."""
_TORCHVISION = _Provider(
    module="torchvision",
    package="torchvision",
    install="pip install torchvision",
    probe="import torchvision.transforms.v2",
    check=_fits_torch,
)
_SPECS = (
    _Spec(
        name="cuda",
        purpose="torch on the GPU",
        needs_gpu=True,
        providers=(
            _Provider(
                module="torch",
                package="torch",
                install="pip install torch",
                probe="import torch; torch.zeros(1, device='cuda').item()",
                check=_torch_has_cuda,
            ),
        ),
    ),
    _Spec(
        name="triton",
        purpose="augmentation in one kernel",
        needs_gpu=True,
        providers=(
            _Provider(module="triton", package="triton", install="pip install triton", probe="import triton.language"),
        ),
    ),
    _Spec(
        name="nvjpeg",
        purpose="JPEG decoding on the GPU",
        needs_gpu=True,
        providers=(
            replace(_TORCHVISION, probe=_NVJPEG, check=_has_nvjpeg),
            _Provider(
                module=None,
                package="nvidia-nvjpeg",
                distributions=("nvidia-nvjpeg", "nvidia-nvjpeg-cu12"),
                install="pip install nvidia-nvjpeg",
                probe=_NVJPEG,
            ),
        ),
    ),
    _Spec(
        name="nvdec",
        purpose="video decoding on the GPU",
        needs_gpu=True,
        providers=(
            _Provider(
                module="PyNvVideoCodec",
                package="PyNvVideoCodec",
                install=GET_NVDEC,
                probe="import PyNvVideoCodec",
                check=_has_cuvid,
            ),
        ),
    ),
    _Spec(
        name="pyav",
        purpose="video decoding on the CPU",
        providers=(_Provider(module="av", package="PyAV", install=GET_PYAV, probe="import av", check=pyav_problem),),
    ),
    _Spec(name="torchvision", purpose="its transforms, and nvJPEG", providers=(_TORCHVISION,)),
    _Spec(
        name="kornia",
        purpose="Kornia operations after our kernel",
        providers=(_Provider(module="kornia", package="kornia", install=GET_KORNIA, probe="import kornia"),),
    ),
)


def find_paths(gpus: Gpus, torch: TorchBuild | None, *, try_them: bool = False) -> tuple[OptionalPath, ...]:
    """Judge every path; `try_them` uses each once, in processes of their own and all at the same time."""
    site = _Site(torch=torch, cuda_problem=cuda_problem(gpus, torch))
    judged = [(spec, provider, _judge(spec, provider, site)) for spec in _SPECS for provider in spec.providers]
    if try_them:
        with ThreadPoolExecutor(max_workers=len(judged)) as pool:
            paths = list(pool.map(lambda one: _try(site, *one), judged))
    else:
        paths = [path for _, _, path in judged]
    return tuple(_best([path for path in paths if path.name == spec.name]) for spec in _SPECS)


def _best(paths: list[OptionalPath]) -> OptionalPath:
    """The first that is available, otherwise the first that is installed: its reason is the nearest to a remedy."""
    return min(paths, key=lambda path: (not path.available, path.provider is None))


def _judge(spec: _Spec, provider: _Provider, site: _Site) -> OptionalPath:
    if provider.module is None:
        version = distribution_version(*provider.distributions)
    else:
        version = version_of(provider.module, *provider.distributions)
    reasons: list[str] = []
    if version is None:
        reasons.append(f"{provider.package} is not installed ({provider.install})")
    elif provider.check is not None and (reason := provider.check(version, site)) is not None:
        reasons.append(reason)
    if spec.needs_gpu and site.cuda_problem is not None and site.cuda_problem not in reasons:
        reasons.append("needs CUDA")
    return OptionalPath(
        name=spec.name,
        purpose=spec.purpose,
        available=not reasons,
        provider=None if version is None else provider.package,
        version=version,
        reason="; ".join(reasons) or None,
    )


def _try(site: _Site, spec: _Spec, provider: _Provider, path: OptionalPath) -> OptionalPath:
    if path.provider is None or (spec.needs_gpu and site.cuda_problem is not None):
        return path  # there is nothing to try, or nothing to try it on
    problem = failure(provider.probe)
    if problem is None:
        return replace(path, available=True, tried=True, reason=None)
    judgement = f" ({path.reason})" if path.reason else ""
    return replace(path, available=False, tried=True, reason=f"trying it failed: {problem}{judgement}")


def _pinned_torch() -> str | None:
    try:
        requirements = importlib.metadata.requires("torchvision") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = [re.match(r"torch\s*\(?==\s*([\w.]+)", requirement) for requirement in requirements]
    return next((match[1] for match in found if match), None)


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _major(version: str) -> int:
    return int(version.partition(".")[0])
