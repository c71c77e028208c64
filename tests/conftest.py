"""For all tests: Triton's interpreter where there is no GPU, property tests that are the same on every run, and
one thread for each.
"""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

from hypothesis import settings

settings.register_profile("fulltilt", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("fulltilt")

# Tests share the cores: threads that wait for their last one, which waits for a core, take several times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def _gpu_is_usable() -> bool:
    """Guessed without importing torch (most tests don't need it) or starting the driver (which a fork would break)."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1") or metadata.version("torch").endswith("+cpu"):
        return False
    return Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()


# Triton decides at its first import, whoever causes it, so this can't wait until the kernels are tested.
if not _gpu_is_usable():
    os.environ["TRITON_INTERPRET"] = "1"
