"""The boundary to the driver, against a fake driver: what it lists, what it calls unmeasured, what it calls lost."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest
from tests.machine.fake_nvml import Refuse, a100_mig, h200, install, lost_gpu, v100

from fulltilt.errors import UnavailableError
from fulltilt.machine.nvml import Driver, GpuLostError


def test_opening_and_closing_are_balanced(monkeypatch):
    fake = install(monkeypatch, [h200()])
    with Driver() as driver:
        assert fake.open_count == 1
        with Driver():
            assert fake.open_count == 2
    driver.close()
    assert fake.open_count == 0


def test_threads_take_turns(monkeypatch):
    fake = install(monkeypatch, [h200()])
    inside, most = 0, 0

    def entered(name):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.002)
        inside -= 1

    monkeypatch.setattr(fake, "_enter", entered)

    def look():
        with Driver() as driver:
            for gpu in driver.devices():
                driver.read("nvmlDeviceGetPowerUsage", gpu.handle)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_an_error_inside_still_closes(monkeypatch):
    fake = install(monkeypatch, [h200()])
    with pytest.raises(RuntimeError), Driver():
        raise RuntimeError
    assert fake.open_count == 0


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("NVML_ERROR_LIBRARY_NOT_FOUND", "no NVIDIA driver is installed"),
        ("NVML_ERROR_DRIVER_NOT_LOADED", "not loaded"),
        ("NVML_ERROR_NO_PERMISSION", "refuses this user"),
        ("NVML_ERROR_LIB_RM_VERSION_MISMATCH", "reboot"),
        ("NVML_ERROR_UNKNOWN", "did not start"),
    ],
)
def test_no_driver_is_one_sentence(monkeypatch, error, says):
    install(monkeypatch, init_error=error)
    with pytest.raises(UnavailableError, match=says) as caught:
        Driver()
    assert "\n" not in str(caught.value)


def test_a_missing_package_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(UnavailableError, match="nvidia-ml-py is missing"):
        Driver()


def test_a_whole_gpu(monkeypatch):
    install(monkeypatch, [v100(), h200()])
    with Driver() as driver:
        first, second = driver.devices()
    assert (first.index, second.index) == (0, 1)
    assert second.uuid == "GPU-4d8f0a1c-52a5-6f0e-9c1b-000000000000"
    assert second.pci == "0000:19:00.0"  # as lspci and /sys write it
    assert not second.mig
    assert second.units == (second,)


def test_a_domain_that_needs_eight_digits_keeps_them(monkeypatch):
    gpu = h200()
    gpu.answers["nvmlDeviceGetPciInfo"].busId = b"00010001:0A:00.0"
    install(monkeypatch, [gpu])
    with Driver() as driver:
        assert driver.devices()[0].pci == "00010001:0a:00.0"


def test_a_divided_gpu_lists_its_slices(monkeypatch):
    install(monkeypatch, [h200(), a100_mig()])
    with Driver() as driver:
        gpu = driver.devices()[1]
    assert gpu.mig
    assert gpu.units == gpu.slices
    assert [part.slice_index for part in gpu.slices] == [0, 2]  # the empty position is skipped
    assert [part.gpu_instance for part in gpu.slices] == [2, 3]
    assert {part.index for part in gpu.slices} == {1}
    assert all(part.uuid.startswith("MIG-") and part.pci == gpu.pci for part in gpu.slices)
    assert gpu.slices[0].parent is gpu.handle


def test_a_divided_gpu_without_slices_offers_nothing_to_compute_on(monkeypatch):
    gpu = a100_mig()
    gpu.slices.clear()
    install(monkeypatch, [gpu])
    with Driver() as driver:
        assert driver.devices()[0].units == ()


def test_a_lost_gpu_is_listed_with_its_problem_and_the_others_go_on(monkeypatch):
    install(monkeypatch, [lost_gpu(), h200()])
    with Driver() as driver:
        gone, fine = driver.devices()
    assert gone.handle is None
    assert "GPU is lost" in gone.problem
    assert fine.problem is None
    assert fine.index == 1


def test_a_gpu_that_is_lost_while_it_is_described_is_listed_with_its_problem(monkeypatch):
    gpu = h200()
    gpu.answers["nvmlDeviceGetUUID"] = Refuse("NVML_ERROR_GPU_IS_LOST")
    install(monkeypatch, [gpu])
    with Driver() as driver:
        assert "stopped answering" in driver.devices()[0].problem


def test_a_figure_is_its_value(monkeypatch):
    gpu = h200()
    gpu.answers["nvmlDeviceGetName"] = b"NVIDIA H200"  # what some versions of nvidia-ml-py return
    install(monkeypatch, [gpu])
    with Driver() as driver:
        assert driver.read("nvmlDeviceGetName", gpu) == "NVIDIA H200"
        assert driver.read("nvmlDeviceGetTemperature", gpu, driver.api.NVML_TEMPERATURE_GPU) == 31


@pytest.mark.parametrize(
    "error",
    ["NVML_ERROR_NOT_SUPPORTED", "NVML_ERROR_NO_PERMISSION", "NVML_ERROR_FUNCTION_NOT_FOUND", "NVML_ERROR_NO_DATA"],
)
def test_an_unmeasured_figure_is_none(monkeypatch, error):
    gpu = h200()
    gpu.answers["nvmlDeviceGetPowerUsage"] = Refuse(error)
    install(monkeypatch, [gpu])
    with Driver() as driver:
        assert driver.read("nvmlDeviceGetPowerUsage", gpu) is None


def test_a_function_that_the_package_does_not_know_is_unmeasured(monkeypatch):
    install(monkeypatch, [h200()])
    with Driver() as driver:
        assert driver.read("nvmlDeviceGetSomethingOf2031", driver.devices()[0].handle) is None


@pytest.mark.parametrize("error", ["NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_RESET_REQUIRED", "NVML_ERROR_UNKNOWN"])
def test_a_gpu_that_answers_nothing_is_lost(monkeypatch, error):
    gpu = h200()
    install(monkeypatch, [gpu])
    with Driver() as driver:
        handle = driver.devices()[0].handle
        gpu.fail(error)
        with pytest.raises(GpuLostError, match="stopped answering"):
            driver.read("nvmlDeviceGetTemperature", handle, 0)


def test_one_unknown_error_alone_is_not_a_lost_gpu(monkeypatch):
    gpu = h200()
    gpu.answers["nvmlDeviceGetPowerUsage"] = Refuse("NVML_ERROR_UNKNOWN")
    install(monkeypatch, [gpu])
    with Driver() as driver:
        assert driver.read("nvmlDeviceGetPowerUsage", gpu) is None
        assert driver.read("nvmlDeviceGetTemperature", gpu, 0) == 31


def test_a_driver_that_failed_otherwise_says_in_what(monkeypatch):
    install(monkeypatch, [h200()])
    driver = Driver()
    driver.close()
    with pytest.raises(UnavailableError, match="nvmlDeviceGetCount: Uninitialized"):
        driver.devices()


def test_importing_the_boundary_imports_no_driver():
    code = "import sys, fulltilt.machine.nvml; print('pynvml' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
