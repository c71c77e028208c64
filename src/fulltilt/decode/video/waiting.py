"""How threads wait for the GPU. CUDA lets them look for the answer again and again, each with a core of its own.

That is soonest for one thread. A dozen decoder sessions, which mostly wait, would take a dozen cores from the decoders
of the CPU beside them.
"""

from __future__ import annotations

import ctypes
from typing import Any

_WAYS, _ASLEEP = 0x7, 0x4
"""Of a context's flags: the bits that say how to wait, and the one for sleeping (CU_CTX_SCHED_BLOCKING_SYNC)."""


def wait_asleep(device: int, *, asleep: bool = True) -> str | None:
    """Have all threads of this process sleep while they wait for a GPU, or not; why not, where CUDA refuses."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        change: Any = driver.cuDevicePrimaryCtxSetFlags_v2
    except (OSError, AttributeError) as error:  # no driver, or one from before CUDA 11
        return str(error)
    number, flags, is_active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
    failed: Any = driver.cuDeviceGet(ctypes.byref(number), device)
    failed = failed or driver.cuDevicePrimaryCtxGetState(number, ctypes.byref(flags), ctypes.byref(is_active))
    if not failed:
        wanted = flags.value & ~_WAYS | (_ASLEEP if asleep else 0)
        failed = change(number, ctypes.c_uint(wanted))
    return f"CUDA error {failed}" if failed else None
