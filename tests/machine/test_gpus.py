"""GPUs as the driver tells them, against a fake driver."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from tests.machine.fake_nvml import Refuse, a100_mig, h200, install, lost_gpu, v100

from fulltilt.machine.gpus import read_gpus


@pytest.fixture(autouse=True)
def _no_cuda_here(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)


def test_a_whole_gpu(monkeypatch):
    install(monkeypatch, [h200()])
    found = read_gpus({})
    (gpu,) = found.gpus
    assert gpu.name == "NVIDIA H200"
    assert (gpu.index, gpu.cuda_index, gpu.pci) == (0, 0, "0000:19:00.0")
    assert gpu.memory_bytes == 150_754_820_096
    assert gpu.compute_capability == "9.0"
    assert (gpu.multiprocessors, gpu.decoders, gpu.jpeg_engines) == (132, 7, 7)
    assert gpu.gpm is True
    assert (found.driver, found.driver_cuda, found.problem) == ("580.159.04", "13.0", None)


def test_the_driver_is_let_go(monkeypatch):
    fake = install(monkeypatch, [h200()])
    read_gpus({})
    assert fake.open_count == 0


def test_what_a_card_does_not_tell_is_absent(monkeypatch):
    install(monkeypatch, [v100()])
    (gpu,) = read_gpus({}).gpus
    assert (gpu.decoders, gpu.jpeg_engines, gpu.multiprocessors) == (None, None, None)  # it can't be divided
    assert gpu.gpm is False


def test_a_card_that_keeps_everything_back_is_still_listed(monkeypatch):
    gpu = v100()
    gpu.answers = {"nvmlDeviceGetUUID": Refuse("NVML_ERROR_NO_PERMISSION")}
    install(monkeypatch, [gpu])
    (seen,) = read_gpus({}).gpus
    assert (seen.index, seen.uuid, seen.name, seen.memory_bytes, seen.compute_capability) == (0, None, None, None, None)
    assert seen.problem is None


def test_slices_are_ordinary_devices(monkeypatch):
    install(monkeypatch, [a100_mig()])
    found = read_gpus({"CUDA_VISIBLE_DEVICES": "MIG-6a1b2c3d-0000-5000-8000-000000000002"})
    first, second = found.gpus
    assert [gpu.slice_index for gpu in found.gpus] == [0, 2]
    assert first.name == "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
    assert (first.multiprocessors, first.decoders, first.jpeg_engines) == (42, 2, 0)
    assert first.memory_bytes == 20 * 1024**3
    assert first.compute_capability == "8.0"  # the GPU's
    assert (first.cuda_index, second.cuda_index) == (None, 0)
    assert found.visible == 1


def test_a_divided_gpu_without_slices_says_how_to_make_one(monkeypatch):
    gpu = a100_mig()
    gpu.slices.clear()
    install(monkeypatch, [gpu])
    found = read_gpus({})
    assert "nvidia-smi mig -cgi" in found.gpus[0].problem
    assert found.visible == 0


def test_a_lost_gpu_beside_a_good_one(monkeypatch):
    install(monkeypatch, [lost_gpu(), h200()])
    found = read_gpus({})
    assert "GPU is lost" in found.gpus[0].problem
    assert found.gpus[1].name == "NVIDIA H200"
    assert found.visible == 1


def test_a_gpu_that_is_lost_on_the_way(monkeypatch):
    gpu = h200()
    gpu.answers["nvmlDeviceGetName"] = Refuse("NVML_ERROR_GPU_IS_LOST")
    install(monkeypatch, [gpu])
    (seen,) = read_gpus({}).gpus
    assert "stopped answering" in seen.problem
    assert seen.uuid is not None


def test_no_driver_is_an_ordinary_case(monkeypatch):
    install(monkeypatch, init_error="NVML_ERROR_LIBRARY_NOT_FOUND")
    found = read_gpus({})
    assert found.gpus == ()
    assert found.visible == 0
    assert "no NVIDIA driver is installed" in found.problem


def test_a_driver_without_a_gpu(monkeypatch):
    install(monkeypatch, [])
    assert "finds no GPU" in read_gpus({}).problem


def test_where_cuda_runs_it_is_asked(monkeypatch):
    """Two different GPUs: the environment can't tell, but CUDA, once started, can."""
    first, second = v100(), h200()
    install(monkeypatch, [first, second])
    uuids = [gpu.answers["nvmlDeviceGetUUID"].removeprefix("GPU-") for gpu in (second, first)]
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 2,
        get_device_properties=lambda index: SimpleNamespace(uuid=uuids[index]),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert [gpu.cuda_index for gpu in read_gpus({}).gpus] == [1, 0]


def test_cuda_is_not_started_to_be_asked(monkeypatch):
    install(monkeypatch, [v100(), h200()])
    cuda = SimpleNamespace(is_initialized=lambda: False)  # anything further would raise AttributeError
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert [gpu.cuda_index for gpu in read_gpus({}).gpus] == [None, None]
