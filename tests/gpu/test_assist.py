"""Tensors handed over to CPU tasks from a real GPU: right values, no wait, bounded memory."""

from __future__ import annotations

import time

import pytest
import torch

from fulltilt import CPUAssistedTraining
from fulltilt.assist.handover import Handover

pytestmark = pytest.mark.gpu


def test_values_are_those_of_the_moment_of_submitting():
    """The tensor's memory is written again at once, by the stream that the step runs on."""
    with CPUAssistedTraining(2) as assist:
        pending = []
        for n in range(200):
            outputs = torch.full((256, 1024), float(n), device="cuda").requires_grad_() * 1
            pending.append(
                assist.submit(lambda t: (t.device.type, t.requires_grad, float(t.min()), float(t.max())), outputs)
            )
            del outputs  # the allocator may give its memory to the next
        for n, future in enumerate(pending):
            assert future.result(30) == ("cpu", False, n, n)
        assert assist.stats().held_bytes == 0


def test_submitting_does_not_wait_for_the_gpu():
    with CPUAssistedTraining(1) as assist:
        small = torch.ones(1024, device="cuda")
        assist.submit(torch.sum, small).result(30)  # the stream and the pinned memory are there
        torch.cuda.synchronize()
        began = time.perf_counter()
        torch.cuda._sleep(1_000_000_000)  # about half a second of the GPU's clock
        doubled = small * 2
        future = assist.submit(torch.sum, doubled)
        submitted = time.perf_counter() - began
        assert not future.done()
        assert float(future.result(30)) == 2048
        waited = time.perf_counter() - began
    assert submitted < 0.1 < waited


def test_layouts_and_structures_survive():
    images = torch.rand(2, 3, 8, 8, device="cuda").to(memory_format=torch.channels_last)
    given = {"images": images, "part": images[:, 1:, ::2], "wide": images[:, :1].expand(2, 5, 8, 8), "n": 3}
    taken, size, ready = Handover().take(given)
    ready()
    assert size >= images.numel() * 4
    assert taken["images"].is_pinned()
    assert taken["images"].is_contiguous(memory_format=torch.channels_last)
    for name in ("images", "part", "wide"):
        assert torch.equal(taken[name], given[name].cpu())
    assert taken["n"] == 3


def test_pinned_memory_is_bounded():
    limit = 8 << 20
    with CPUAssistedTraining(1, max_pinned_bytes=limit) as assist:
        tensor = torch.ones(1 << 20, device="cuda")  # 4 MiB
        most = 0
        for _ in range(30):
            assist.submit(lambda t: time.sleep(0.005), tensor)
            most = max(most, assist.stats().held_bytes)
    assert 0 < most <= limit
