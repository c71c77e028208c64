"""Optional paths: available, or why not."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from fulltilt.machine import paths
from fulltilt.machine.gpus import Gpu, Gpus
from fulltilt.machine.paths import cuda_problem, find_paths
from fulltilt.machine.software import TorchBuild

GPU = Gpus(gpus=(Gpu(index=0),), visible=1, driver="580.159.04", driver_cuda="13.0")
NO_GPU = Gpus(problem="no GPU can be read: no NVIDIA driver is installed")
CUDA = TorchBuild(version="2.13.0+cu130", cuda="13.0")
CPU = TorchBuild(version="2.13.0+cpu", cuda=None)


def found(gpus: Gpus, torch: TorchBuild | None, *, try_them: bool = False):
    return {path.name: path for path in find_paths(gpus, torch, try_them=try_them)}


@pytest.fixture
def nothing_installed(monkeypatch):
    monkeypatch.setattr(paths, "version_of", lambda *names: None)
    monkeypatch.setattr(paths, "distribution_version", lambda *names: None)


def test_the_paths_are_these_in_this_order():
    names = [path.name for path in find_paths(NO_GPU, CPU)]
    assert names == ["cuda", "triton", "nvjpeg", "nvdec", "pyav", "torchvision", "kornia"]


@pytest.mark.parametrize(
    ("gpus", "torch", "says"),
    [
        (NO_GPU, CUDA, "no NVIDIA driver is installed"),
        (Gpus(gpus=(Gpu(index=0),), visible=0), CUDA, "CUDA_VISIBLE_DEVICES"),
        (GPU, None, "torch is not installed"),
        (GPU, CPU, "torch 2.13.0+cpu is built without CUDA"),
        (
            Gpus(gpus=GPU.gpus, visible=1, driver="570.1", driver_cuda="12.8"),
            CUDA,
            "the driver 570.1 runs CUDA up to 12.8, torch is built for 13.0",
        ),
    ],
)
def test_why_torch_cannot_use_the_gpu(gpus, torch, says):
    assert says in cuda_problem(gpus, torch)
    assert says in found(gpus, torch)["cuda"].reason


def test_a_newer_minor_version_of_cuda_than_the_drivers_is_no_problem():
    assert cuda_problem(GPU, TorchBuild(version="2.13.0+cu132", cuda="13.2")) is None


def test_what_is_missing_says_how_to_get_it(nothing_installed):
    got = found(GPU, CUDA)
    assert not any(path.available for path in got.values())
    assert got["pyav"].reason == "PyAV is not installed (pip install 'av>=18,<20')"
    assert got["kornia"].reason == "kornia is not installed (pip install 'kornia>=0.8')"
    assert got["nvjpeg"].reason == "torchvision is not installed (pip install torchvision)"


def test_what_is_missing_and_could_not_be_used_says_both(nothing_installed):
    assert found(NO_GPU, CPU)["nvdec"].reason == (
        "PyNvVideoCodec is not installed (pip install 'PyNvVideoCodec>=2'); needs CUDA"
    )


@pytest.mark.parametrize("version", ["18.1.0", "19.0.2"])
def test_what_needs_no_gpu_is_available_without_one(installed, version):
    installed("av", version, code="raise RuntimeError('imported')")
    path = found(NO_GPU, CPU)["pyav"]
    assert (path.available, path.provider, path.version, path.tried) == (True, "PyAV", version, False)


@pytest.mark.parametrize("version", ["17.1.0", "20.0.0"])
def test_a_version_that_the_decoders_are_not_written_for(installed, version):
    installed("av", version)
    path = found(NO_GPU, CPU)["pyav"]
    assert (path.available, path.reason) == (
        False,
        f"videos need PyAV 18 or 19, found {version} (pip install 'av>=18,<20')",
    )


def test_a_torchvision_for_cuda_beside_a_torch_without(installed):
    installed("torchvision", "0.28.0", build="+cu130", requires=["torch (==2.13.0)"])
    path = found(NO_GPU, CPU)["torchvision"]
    assert not path.available
    assert path.reason == ("torchvision 0.28.0+cu130 is built for CUDA, torch 2.13.0+cpu without: it fails to import")


@pytest.mark.parametrize("requirement", ["torch (==2.11.0)", "torch==2.11.0"])
def test_a_torchvision_of_another_torch(installed, requirement):
    installed("torchvision", "0.26.0", build="+cu130", requires=["numpy", requirement])
    assert found(GPU, CUDA)["torchvision"].reason == (
        "torchvision 0.26.0+cu130 fits torch 2.11.0 only, found 2.13.0+cu130"
    )


def test_nvjpeg_comes_with_a_torchvision_for_cuda(installed):
    installed("torchvision", "0.28.0", build="+cu130", requires=["torch (==2.13.0)"])
    got = found(GPU, CUDA)
    assert (got["nvjpeg"].available, got["nvjpeg"].provider) == (True, "torchvision")
    assert got["torchvision"].available


def test_nvjpeg_does_not_come_with_a_torchvision_for_the_cpu(installed):
    installed("torchvision", "0.28.0", build="+cpu", requires=["torch (==2.13.0)"])
    got = found(GPU, CUDA)
    assert got["nvjpeg"].reason == "torchvision 0.28.0+cpu is built without nvJPEG"
    assert got["torchvision"].available


@pytest.mark.parametrize("name", ["nvidia-nvjpeg", "nvidia-nvjpeg-cu12"])
def test_nvjpeg_by_itself(monkeypatch, tmp_path, name):
    """A library without a module, which nobody can import."""
    monkeypatch.setattr(paths, "version_of", lambda module, *names: None)
    (tmp_path / f"{name.replace('-', '_')}-13.0.4.dist-info").mkdir()
    (tmp_path / f"{name.replace('-', '_')}-13.0.4.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: 13.0.4")
    monkeypatch.syspath_prepend(str(tmp_path))
    path = found(GPU, CUDA)["nvjpeg"]
    assert (path.available, path.provider, path.version) == (True, "nvidia-nvjpeg", "13.0.4")


def test_hints_are_as_the_extras_are_bounded():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    bounds = [bound.partition(";")[0] for bound in [*extras["video"], *extras["kornia"]]]
    assert [f"pip install '{bound}'" for bound in bounds] == [paths.GET_PYAV, paths.GET_NVDEC, paths.GET_KORNIA]


@pytest.mark.parametrize("there", [True, False])
def test_nvdec_needs_the_drivers_video_library(installed, monkeypatch, there):
    installed("PyNvVideoCodec", "2.2.3")
    monkeypatch.setattr(paths, "_loads", lambda library: there)
    path = found(GPU, CUDA)["nvdec"]
    assert path.available is there
    assert there or "NVIDIA_DRIVER_CAPABILITIES" in path.reason


def test_a_library_that_is_not_there_does_not_load():
    assert not paths._loads("libno_such_library.so.7")


def test_trying_a_path_imports_it(installed):
    installed("av", "18.1.0", code="print('noise')")
    path = found(NO_GPU, CPU, try_them=True)["pyav"]
    assert (path.available, path.tried) == (True, True)


def test_trying_a_path_that_fails_gives_the_reason_in_one_line(installed):
    installed(
        "torchvision",
        "0.28.0",
        build="+cu130",
        requires=["torch (==2.13.0)"],
        code="raise RuntimeError('operator torchvision::nms does not exist')",
    )
    path = found(NO_GPU, CPU, try_them=True)["torchvision"]
    assert (path.available, path.tried) == (False, True)
    assert path.reason.startswith("trying it failed: RuntimeError: operator torchvision::nms does not exist (")
    assert "\n" not in path.reason


def test_what_was_judged_to_fail_and_works_is_available(installed, tmp_path):
    installed("torchvision", "0.26.0", build="+cu130", requires=["torch==2.11.0"])
    (tmp_path / "site/torchvision/transforms").mkdir()
    (tmp_path / "site/torchvision/transforms/__init__.py").touch()
    (tmp_path / "site/torchvision/transforms/v2.py").touch()
    path = found(NO_GPU, CPU, try_them=True)["torchvision"]
    assert (path.available, path.tried, path.reason) == (True, True, None)


def test_what_needs_a_gpu_is_not_tried_without_one(installed):
    installed("PyNvVideoCodec", "2.2.3", code="import os; os.abort()")
    path = found(NO_GPU, CPU, try_them=True)["nvdec"]
    assert (path.available, path.tried, path.reason) == (False, False, "needs CUDA")
