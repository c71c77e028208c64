"""Packages that are not there: folders that look installed, on a path of their own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Install = Callable[..., None]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """`installed("torchvision", "0.28.0", build="+cu130", requires=["torch (==2.13.0)"], code="raise ...")`.

    The package is found here and by child processes, before any real one of its name.
    """
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))

    def install(
        module: str,
        version: str,
        *,
        build: str = "",
        requires: tuple[str, ...] = (),
        code: str = "",
        version_file: str | None = None,
    ) -> None:
        package = site / module
        package.mkdir()
        (package / "__init__.py").write_text(code)
        if version_file is None and build:
            version_file = f"__version__ = '{version}{build}'\n"
        if version_file is not None:
            (package / "version.py").write_text(version_file)
        metadata = site / f"{module}-{version}.dist-info"
        metadata.mkdir()
        needs = "".join(f"Requires-Dist: {need}\n" for need in requires)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: {version}\n{needs}")
        monkeypatch.delitem(sys.modules, module, raising=False)  # a loaded one would be the one that is found
        importlib.invalidate_caches()

    return install
