"""GPM against the fake driver: two samples compared, the interval respected, every sample freed."""

from __future__ import annotations

import pynvml as real
import pytest
from tests.machine.fake_nvml import a100_mig, h200, install, v100

from fulltilt.errors import GpuLostError
from fulltilt.machine.gpm import Gpm
from fulltilt.machine.nvml import Driver


def busy(gpu):
    gpu.gpm = {
        real.NVML_GPM_METRIC_SM_UTIL: 91.5,
        real.NVML_GPM_METRIC_SM_OCCUPANCY: 12.25,
        real.NVML_GPM_METRIC_ANY_TENSOR_UTIL: 70.0,
        real.NVML_GPM_METRIC_DRAM_BW_UTIL: 33.0,
        real.NVML_GPM_METRIC_PCIE_RX_PER_SEC: 1000.0,
    }
    return gpu


def test_the_first_reading_has_nothing_to_compare_with(monkeypatch):
    fake = install(monkeypatch, [busy(h200())])
    with Driver() as driver:
        gpm = Gpm(driver, driver.devices()[0])
        assert gpm.read(0.0) == {}
        found = gpm.read(1.0)
        gpm.close()
        gpm.close()
    assert found == pytest.approx(
        {"sm": 91.5, "occupancy": 12.25, "tensor": 70.0, "dram": 33.0, "pcie_rx_mb_s": 1048.576}
    )
    assert not fake.samples, "every sample was freed, none twice"


def test_less_than_100_ms_measures_nothing_and_keeps_the_older_sample(monkeypatch):
    fake = install(monkeypatch, [busy(h200())])
    with Driver() as driver:
        gpm = Gpm(driver, driver.devices()[0])
        gpm.read(0.0)
        taken = fake.calls.count("nvmlGpmSampleGet")
        assert gpm.read(0.05) == {}
        assert fake.calls.count("nvmlGpmSampleGet") == taken
        assert gpm.read(0.11)["sm"] == 91.5
        gpm.close()


def test_a_slice_is_read_through_its_gpu(monkeypatch):
    gpu = a100_mig()
    busy(gpu.slices[2])
    install(monkeypatch, [gpu])
    with Driver() as driver:
        gpm = Gpm(driver, driver.devices()[0].slices[1])
        gpm.read(0.0)
        assert gpm.read(1.0)["sm"] == 91.5
        gpm.close()


def test_support_is_asked_of_the_card(monkeypatch):
    install(monkeypatch, [h200(), v100()])
    with Driver() as driver:
        assert [Gpm.supports(driver, device) for device in driver.devices()] == [True, False]


def test_a_lost_card_is_an_error_not_a_zero(monkeypatch):
    fake = install(monkeypatch, [busy(h200())])
    with Driver() as driver:
        gpm = Gpm(driver, driver.devices()[0])
        gpm.read(0.0)
        fake.gpus[0].fail("NVML_ERROR_GPU_IS_LOST")
        with pytest.raises(GpuLostError):
            gpm.read(1.0)
        gpm.close()


def test_a_pair_that_cannot_be_compared_is_unmeasured(monkeypatch):
    fake = install(monkeypatch, [busy(h200())])

    def refuse(request):
        raise real.NVMLError(real.NVML_ERROR_UNKNOWN)

    with Driver() as driver:
        gpm = Gpm(driver, driver.devices()[0])
        gpm.read(0.0)
        monkeypatch.setattr(fake, "nvmlGpmMetricsGet", refuse, raising=False)
        assert gpm.read(1.0) == {}
        gpm.close()
