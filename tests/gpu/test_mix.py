"""Mixup and CutMix on a GPU: the CPU's results, no synchronisation, CUDA graphs, torch.compile."""

from __future__ import annotations

import os

import pytest
import torch

from fulltilt.augment import CutMix, Mixup, MixupOrCutMix

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() and os.environ.get("FULLTILT_REQUIRE_GPU") != "1", reason="torch sees no GPU"
    ),
    pytest.mark.parametrize("kind", [Mixup, CutMix, MixupOrCutMix]),
]


def batch(count: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.rand(count, 3, 40, 48, device="cuda").contiguous(memory_format=torch.channels_last)
    return images, torch.randint(0, 10, (count,), device="cuda")


def test_the_same_as_on_the_cpu(kind):
    images, labels = batch()
    found = kind(10, seed=3)(images, labels)
    expected = kind(10, seed=3)(images.cpu(), labels.cpu())
    torch.testing.assert_close([part.cpu() for part in found], list(expected), rtol=0, atol=2e-6)
    assert found[0].is_contiguous(memory_format=torch.channels_last)


def test_nothing_waits_for_the_device(kind):
    images, labels = batch()
    mix = kind(10).cuda()
    mix(images, labels)
    torch.cuda.set_sync_debug_mode("error")
    try:
        mix(images, labels)
        mix.set_epoch(1)
        mix(images, labels, index=torch.arange(64, device="cuda"))
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_every_replay_of_a_graph_draws_anew(kind):
    images, labels = batch()
    mix, plain = kind(10, seed=1).cuda(), kind(10, seed=1).cuda()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        mix(images, labels)
    torch.cuda.current_stream().wait_stream(side)
    mix.set_epoch(0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = mix(images, labels)
    mix.set_epoch(0)
    for _ in range(3):
        graph.replay()
        torch.testing.assert_close([part.clone() for part in out], list(plain(images, labels)), rtol=0, atol=2e-6)


def test_compiled_in_one_graph(kind):
    images, labels = batch()
    mix, plain = kind(10, seed=1).cuda(), kind(10, seed=1).cuda()
    compiled = torch.compile(mix, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(list(compiled(images, labels)), list(plain(images, labels)), rtol=0, atol=2e-6)


def test_a_label_out_of_range_is_a_row_of_zeros_or_an_error(kind):
    images, labels = batch(4)
    labels[2] = 10
    _, soft = kind(10, prob=0.0)(images, labels)
    assert soft.sum(1).tolist() == [1.0, 1.0, 0.0, 1.0]
    with pytest.raises(ValueError, match="labels must lie in 0 to 9"):
        kind(10, check_inputs=True)(images, labels)
