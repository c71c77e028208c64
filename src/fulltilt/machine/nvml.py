"""The one boundary to NVML, the NVIDIA driver's interface for managing GPUs: nvidia-ml-py's module `pynvml`.

Nothing else in fulltilt imports `pynvml`. It is imported when a driver is opened, so a machine without one pays
nothing, and a test that puts its own module under that name has replaced the whole driver.

    with Driver() as driver:                      UnavailableError, in one sentence, when there is no driver
        for gpu in driver.devices():              whole GPUs, in NVML's order, each with its MIG slices
            driver.read("nvmlDeviceGetPowerUsage", gpu.handle)        a value, None or GpuLostError
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from typing import Any

from fulltilt.errors import GpuLostError, UnavailableError
from fulltilt.machine.closing import Closing

_NO_DRIVER = {
    "NVML_ERROR_LIBRARY_NOT_FOUND": "no NVIDIA driver is installed (libnvidia-ml.so.1 was not found)",
    "NVML_ERROR_DRIVER_NOT_LOADED": "the NVIDIA driver is installed but not loaded, or there is no GPU",
    "NVML_ERROR_NO_PERMISSION": "the NVIDIA driver refuses this user (no permission on /dev/nvidiactl)",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": (
        "the NVIDIA driver was updated under the running kernel module (versions differ); reboot or reload it"
    ),
}

# The card or the driver has no such figure, or keeps it from this user: unmeasured, which is not zero.
_UNMEASURED = (
    "NVML_ERROR_NOT_SUPPORTED",
    "NVML_ERROR_NO_PERMISSION",
    "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVML_ERROR_NOT_FOUND",
    "NVML_ERROR_NO_DATA",
    "NVML_ERROR_NOT_READY",
    "NVML_ERROR_TIMEOUT",
    "NVML_ERROR_INVALID_ARGUMENT",  # what some calls answer for a MIG slice instead of "not supported"
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
    "NVML_ERROR_DEPRECATED",
)

_LOST = ("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_RESET_REQUIRED", "NVML_ERROR_GPU_NOT_FOUND")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU, or a MIG slice of one, as the driver lists it."""

    index: int
    """Position in NVML's order (by PCI address), which CUDA_VISIBLE_DEVICES does not change. A slice has its GPU's."""
    handle: Any = field(default=None, repr=False, compare=False)
    """What NVML calls take; None when there is a `problem`."""
    uuid: str | None = None
    pci: str | None = None
    """As in lspci: `0000:3b:00.0`. A slice has its GPU's."""
    problem: str | None = None
    """Why the driver gives no access to this GPU."""
    mig: bool = False
    """Whether the GPU is divided into slices (its own whole is then closed to CUDA), or is itself a slice."""
    slice_index: int | None = None
    gpu_instance: int | None = None
    """The slice's GPU instance, by which GPM reads it through its GPU's handle."""
    parent: Any = field(default=None, repr=False, compare=False)
    """The handle of the GPU that a slice belongs to."""
    slices: tuple[Device, ...] = ()

    @property
    def label(self) -> str:
        """`0`, or `0:2` for slice 2 of GPU 0: how samples and `--gpu` name it."""
        return str(self.index) if self.slice_index is None else f"{self.index}:{self.slice_index}"

    @property
    def units(self) -> tuple[Device, ...]:
        """What a process can compute on: the slices of a divided GPU, otherwise the GPU itself."""
        return self.slices if self.mig and self.slice_index is None else (self,)


class Driver(Closing):
    """An open connection to the driver; NVML counts them, so several may be open at once."""

    turn = threading.RLock()
    """Calls of all threads take turns. The library says that it is safe without; but a process of which three threads
    sampled at the same time, GPM among it, was once seen to end with a segmentation fault."""

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise UnavailableError(f"no GPU can be read: the package nvidia-ml-py is missing ({error})") from None
        self.api: Any = pynvml
        """The module itself, for its constants and structures; call its functions through `read`."""
        self._open = False
        try:
            with self.turn:
                self.api.nvmlInit()
        except self.api.NVMLError as error:
            known = {getattr(self.api, name): why for name, why in _NO_DRIVER.items()}
            why = known.get(error.value, f"the NVIDIA driver did not start ({error})")
            raise UnavailableError(f"no GPU can be read: {why}") from None
        self._open = True
        self._unmeasured = self._values(_UNMEASURED)
        self._lost = self._values(_LOST)

    def close(self) -> None:
        """Let go of the driver; a second call does nothing."""
        if self._open:
            self._open = False
            with self.turn:
                self.api.nvmlShutdown()

    def read(self, name: str, *args: Any) -> Any:
        """Call the NVML function `name`; None when this card, driver or user can't have the figure.

        Raises GpuLostError when the card behind the handle (the first argument) is gone.
        """
        function = getattr(self.api, name, None)
        if function is None:  # an nvidia-ml-py older than the function
            return None
        try:
            with self.turn:
                value = function(*args)
        except self.api.NVMLError as error:
            if error.value in self._unmeasured:
                return None
            if error.value in self._lost or (error.value == self.api.NVML_ERROR_UNKNOWN and self._silent(args)):
                raise GpuLostError(f"the GPU stopped answering ({error}); the kernel log (dmesg) has the Xid") from None
            if error.value == self.api.NVML_ERROR_UNKNOWN:
                return None
            raise UnavailableError(f"the NVIDIA driver failed in {name}: {error}") from None
        return value.decode() if isinstance(value, bytes) else value

    def devices(self) -> tuple[Device, ...]:
        """The machine's GPUs, in NVML's order; one that can't be opened is listed with its problem."""
        count = self.read("nvmlDeviceGetCount")
        if count is None:
            raise UnavailableError("no GPU can be read: the NVIDIA driver does not say how many there are")
        return tuple(self._device(index) for index in range(count))

    def _device(self, index: int) -> Device:
        try:
            with self.turn:
                handle = self.api.nvmlDeviceGetHandleByIndex(index)
            return self._describe(index, handle)
        except GpuLostError as error:
            return Device(index=index, problem=str(error))
        except self.api.NVMLError as error:
            return Device(index=index, problem=f"the driver gives no access to this GPU ({error})")

    def _describe(self, index: int, handle: Any) -> Device:
        pci = self._pci(handle)
        mode = self.read("nvmlDeviceGetMigMode", handle)
        divided = mode is not None and mode[0] == self.api.NVML_DEVICE_MIG_ENABLE
        return Device(
            index=index,
            handle=handle,
            uuid=self.read("nvmlDeviceGetUUID", handle),
            pci=pci,
            mig=divided,
            slices=self._slices(index, handle, pci) if divided else (),
        )

    def _slices(self, index: int, parent: Any, pci: str | None) -> tuple[Device, ...]:
        found = []
        for position in range(self.read("nvmlDeviceGetMaxMigDeviceCount", parent) or 0):
            handle = self.read("nvmlDeviceGetMigDeviceHandleByIndex", parent, position)
            if handle is None:  # positions are not contiguous: an empty one answers "not found"
                continue
            found.append(
                Device(
                    index=index,
                    handle=handle,
                    uuid=self.read("nvmlDeviceGetUUID", handle),
                    pci=pci,
                    mig=True,
                    slice_index=position,
                    gpu_instance=self.read("nvmlDeviceGetGpuInstanceId", handle),
                    parent=parent,
                )
            )
        return tuple(found)

    def _pci(self, handle: Any) -> str | None:
        info = self.read("nvmlDeviceGetPciInfo", handle)
        if info is None:
            return None
        address = info.busId.decode() if isinstance(info.busId, bytes) else str(info.busId)
        return re.sub(r"^0000(?=[0-9a-f]{4}:)", "", address.lower())  # NVML writes the domain with eight digits

    def _silent(self, args: tuple[Any, ...]) -> bool:
        """Whether the card answers nothing at all: "unknown error" alone may be one broken figure."""
        if not args:
            return False
        try:
            with self.turn:
                self.api.nvmlDeviceGetMemoryInfo(args[0])
        except self.api.NVMLError as error:
            return error.value not in self._unmeasured
        return False

    def _values(self, names: tuple[str, ...]) -> frozenset[int]:
        return frozenset(value for name in names if (value := getattr(self.api, name, None)) is not None)
