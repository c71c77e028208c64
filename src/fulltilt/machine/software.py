"""Which versions are installed, read from their files: importing torch alone takes seconds."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import platform
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """What is installed; what is not is absent."""

    fulltilt: str
    python: str
    torch: str | None = None
    cuda: str | None = None
    """The CUDA that torch was built for; absent for a CPU build."""
    triton: str | None = None
    driver: str | None = None
    driver_cuda: str | None = None
    """The newest CUDA that the driver runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """The installed torch, from its version file."""

    version: str
    cuda: str | None
    """None for a build without CUDA."""


def read_versions(*, driver: str | None = None, driver_cuda: str | None = None) -> Versions:
    """Everything but the driver's, which NVML knows and the caller gives."""
    from fulltilt import __version__

    torch = torch_build()
    return Versions(
        fulltilt=__version__,
        python=platform.python_version(),
        torch=torch.version if torch else None,
        cuda=torch.cuda if torch else None,
        triton=version_of("triton"),
        driver=driver,
        driver_cuda=driver_cuda,
    )


def torch_build() -> TorchBuild | None:
    """The torch that `import torch` would give, or None."""
    values = _version_file("torch")
    version = values.get("__version__") or version_of("torch")
    return TorchBuild(version=version, cuda=values.get("cuda")) if version else None


def version_of(module: str, *distributions: str) -> str | None:
    """A package's version: from its version file, which names the build (`+cu130`), or else from its metadata."""
    if not is_installed(module):
        return None
    from_file = _version_file(module).get("__version__")
    if from_file:
        return from_file
    return distribution_version(*(distributions or (module,))) or "unknown version"


def distribution_version(*names: str) -> str | None:
    """The version of the first of these distributions that is installed, whatever lies in it."""
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def is_installed(module: str) -> bool:
    """Whether `import module` would find something; imports nothing but the packages around it."""
    return _spec_origin(module) is not None


def _spec_origin(module: str) -> str | None:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # no such package around it, or a module put there by hand
        return None
    if spec is None or spec.loader is None:  # a folder without code (a namespace) is not an installation
        return None
    return spec.origin or ""


def _version_file(module: str) -> dict[str, str]:
    """The plain texts assigned in a package's version.py, without running it."""
    origin = _spec_origin(module)
    if not origin:
        return {}
    try:
        tree = ast.parse((Path(origin).parent / "version.py").read_text())
    except (OSError, SyntaxError, UnicodeDecodeError):
        return {}
    values: dict[str, str] = {}
    for line in tree.body:
        match line:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))):
                values[name] = text
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str(text))):
                values[name] = text
    return values
