"""Versions, read from files without importing what they are of."""

from __future__ import annotations

import platform
import subprocess
import sys

import torch as real_torch

from fulltilt.machine.software import is_installed, read_versions, torch_build, version_of

TORCH_VERSION_FILE = """from typing import Optional

__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip', 'rocm', 'xpu']
__version__ = '2.11.0+cu130'
debug = False
cuda: Optional[str] = '13.0'
hip: Optional[str] = None
"""


def test_what_is_said_of_torch_is_what_torch_says():
    build = torch_build()
    assert build.version == real_torch.__version__
    assert build.cuda == real_torch.version.cuda


def test_a_cuda_build(installed):
    installed("torch", "2.11.0", version_file=TORCH_VERSION_FILE, code="raise RuntimeError('imported')")
    build = torch_build()
    assert (build.version, build.cuda) == ("2.11.0+cu130", "13.0")


def test_the_version_file_names_the_build_and_the_metadata_does_not(installed):
    installed("torchvision", "0.28.0", build="+cu130")
    assert version_of("torchvision") == "0.28.0+cu130"


def test_a_version_file_that_is_no_list_of_texts_gives_way_to_the_metadata(installed):
    installed("kornia", "0.9.1", version_file="from elsewhere import __version__\n")
    assert version_of("kornia") == "0.9.1"
    installed("triton", "3.6.0", version_file="this is not Python")
    assert version_of("triton") == "3.6.0"


def test_what_is_not_installed_has_no_version():
    assert version_of("no_such_package_anywhere") is None
    assert version_of("no_such_package.inside") is None
    assert not is_installed("no_such_package_anywhere")


def test_an_empty_folder_is_no_installation(tmp_path, monkeypatch):
    (tmp_path / "left_over_folder").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not is_installed("left_over_folder")


def test_a_distribution_of_another_name(installed):
    installed("simplejpeg_twin", "1.9.0")
    assert version_of("simplejpeg_twin", "no-such-distribution", "simplejpeg_twin") == "1.9.0"


def test_all_versions():
    versions = read_versions(driver="580.159.04", driver_cuda="13.0")
    assert versions.python == platform.python_version()
    assert (versions.driver, versions.driver_cuda) == ("580.159.04", "13.0")


def test_nothing_heavy_is_imported():
    code = (
        "import sys; from fulltilt.machine.software import read_versions; read_versions()\n"
        "print([name for name in ('torch', 'triton', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
