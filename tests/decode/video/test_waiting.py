"""Threads that sleep while they wait for the GPU: what is asked of the driver, which is played here."""

from __future__ import annotations

import ctypes

import pytest

from fulltilt.decode.video import waiting
from fulltilt.decode.video.waiting import wait_asleep

MAPS_HOST_MEMORY, YIELDS, SLEEPS = 0x8, 0x2, 0x4


class Driver:
    def __init__(self, refuses=0):
        self.flags, self._refuses = MAPS_HOST_MEMORY | YIELDS, refuses

    def cuDeviceGet(self, device, number):  # noqa: N802  # as it is called there
        device._obj.value = 10 + number
        return 0

    def cuDevicePrimaryCtxGetState(self, device, flags, is_active):  # noqa: N802
        assert device.value == 11
        flags._obj.value, is_active._obj.value = self.flags, 1
        return 0

    def cuDevicePrimaryCtxSetFlags_v2(self, device, flags):  # noqa: N802
        assert device.value == 11
        self.flags = self.flags if self._refuses else flags.value
        return self._refuses


@pytest.fixture
def driver(monkeypatch):
    driver = Driver()
    monkeypatch.setattr(waiting.ctypes, "CDLL", lambda _: driver)
    return driver


def test_asleep_and_back(driver):
    assert wait_asleep(1) is None
    assert driver.flags == MAPS_HOST_MEMORY | SLEEPS
    assert wait_asleep(1, asleep=False) is None
    assert driver.flags == MAPS_HOST_MEMORY


def test_refused(driver, monkeypatch):
    monkeypatch.setattr(driver, "_refuses", 708)
    assert wait_asleep(1) == "CUDA error 708"
    assert driver.flags == MAPS_HOST_MEMORY | YIELDS


def test_without_a_driver(monkeypatch):
    def missing(_):
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert "libcuda.so.1" in wait_asleep(0)
