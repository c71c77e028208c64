"""Tests that need an NVIDIA GPU. FULLTILT_REQUIRE_GPU=1 turns their skip into a failure, so that none is missed."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True, scope="session")
def gpu():
    import torch

    if not torch.cuda.is_available():
        if os.environ.get("FULLTILT_REQUIRE_GPU") == "1":
            pytest.fail("FULLTILT_REQUIRE_GPU=1, but torch sees no GPU")
        pytest.skip("needs an NVIDIA GPU")
    return torch.device("cuda", 0)
