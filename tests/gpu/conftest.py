"""Tests that need an NVIDIA GPU. FULLTILT_REQUIRE_GPU=1 turns their skip into a failure, so that none is missed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.gpu.needs import do_without

TORCH_SAYS = (
    "ignore:Synchronization debug mode is a prototype",
    "ignore:.*Profiler clears events at the end of each cycle",
    "ignore:.*torch.jit.script:DeprecationWarning",
    "ignore:TensorFloat32 tensor cores",
    "ignore:Please use the new API settings to control TF32",
)
"""What torch itself warns of when its own tools are used."""

if os.environ.get("PYTHONPATH"):  # `src`, say: processes that tests start in other folders have to find it, too
    parts = os.environ["PYTHONPATH"].split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(part).absolute()) for part in parts if part)


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for said in TORCH_SAYS:
                item.add_marker(pytest.mark.filterwarnings(said))


@pytest.fixture(autouse=True, scope="session")
def gpu():
    import torch

    if not torch.cuda.is_available():
        do_without("torch sees no GPU")
    return torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def waiting_allowed(gpu):
    """A test that fails while nothing may wait for the device takes no other with it."""
    import torch

    yield
    torch.cuda.set_sync_debug_mode("default")
