"""Every check of pixels runs on both paths: torch on the CPU, and the kernels (interpreted where there is no GPU)."""

from __future__ import annotations

import pytest
from tests.augment.support import kernels, torch_path


@pytest.fixture(params=["torch", "kernels"])
def path(request: pytest.FixtureRequest):
    with kernels() if request.param == "kernels" else torch_path() as found:
        yield found


@pytest.fixture
def kernel_path():
    with kernels() as found:
        yield found
