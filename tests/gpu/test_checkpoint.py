"""Checkpoints of a model on a GPU: right whatever the step does meanwhile, and nothing waits for them."""

from __future__ import annotations

import gc
import time

import pytest
import torch
from torch import nn

from fulltilt.train.checkpoint import Checkpoints, rng, staging

pytestmark = pytest.mark.gpu


def model_and_optimizer(width: int = 64):
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, 10),
    )
    model = model.to("cuda", memory_format=torch.channels_last)
    return model, torch.optim.AdamW(model.parameters(), 1e-3)


def step(model, optimizer, images):
    optimizer.zero_grad()
    model(images).square().mean().backward()
    optimizer.step()


def state_of(model, optimizer):
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": rng.take()}


def cloned(value):
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone(memory_format=torch.preserve_format)
    if isinstance(value, dict):
        return {key: cloned(item) for key, item in value.items()}
    return [cloned(item) for item in value] if isinstance(value, list) else value


def same(ours, expected, path=""):
    if isinstance(expected, torch.Tensor):
        assert torch.equal(ours, expected), path
        assert ours.stride() == expected.stride(), path
    elif isinstance(expected, dict):
        assert ours.keys() == expected.keys(), path
        for key, value in expected.items():
            same(ours[key], value, f"{path}.{key}")


@pytest.mark.parametrize("memory", ["plenty", "short", "not kept"])
def test_steps_after_save_do_not_change_it(tmp_path, monkeypatch, memory):
    """With a copy on the GPU, without one, and with one that is given back after each save."""
    if memory == "short":
        monkeypatch.setattr(staging, "_free_bytes", lambda _device: 0)
    if memory == "not kept":
        monkeypatch.setattr(staging, "_KEPT_DEVICE_BYTES", 0)
    model, optimizer = model_and_optimizer(256)
    images = torch.randn(32, 3, 64, 64, device="cuda").to(memory_format=torch.channels_last)
    with Checkpoints(tmp_path) as checkpoints:
        for number in range(4):
            for _ in range(3):
                step(model, optimizer, images)
            expected = cloned(state_of(model, optimizer))
            torch.cuda._sleep(100_000_000)  # so that the copies begin after save has returned
            checkpoints.save(state_of(model, optimizer), step=number, epoch=0)
            for _ in range(20):
                step(model, optimizer, images)
            loaded = checkpoints.load()
            same(loaded["model"], expected["model"])
            same(loaded["optimizer"], expected["optimizer"])
            same(loaded["rng"], expected["rng"])


def test_save_does_not_wait_for_the_gpu(tmp_path):
    model, optimizer = model_and_optimizer()
    images = torch.randn(8, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    step(model, optimizer, images)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state_of(model, optimizer), step=0, epoch=0)  # pins its memory
        checkpoints.wait()
        torch.cuda.set_sync_debug_mode("error")
        try:
            state = state_of(model, optimizer)
            torch.cuda._sleep(2_000_000_000)  # about a second
            began = time.perf_counter()
            checkpoints.save(state, step=1, epoch=0)
            took = time.perf_counter() - began
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert took < 0.1
        assert checkpoints.latest().name.endswith("step-0.safetensors")
        assert checkpoints.load()["model"].keys() == model.state_dict().keys()


def test_a_large_copy_is_given_back(tmp_path):
    weights = {"model": {"w": torch.ones(64 << 20, device="cuda")}}  # 256 MiB
    torch.cuda.synchronize()
    gc.collect()  # what tests before this one have left would be given back meanwhile
    before = torch.cuda.memory_allocated()
    with Checkpoints(tmp_path) as checkpoints:
        for number in range(2):
            checkpoints.save(weights, step=number, epoch=0)
            checkpoints.wait()
        assert torch.cuda.memory_allocated() == before
        assert checkpoints.load()["model"]["w"].sum() == 64 << 20


@pytest.mark.alone
def test_saving_every_fifty_steps_costs_little(tmp_path):
    """25 million parameters with AdamW: 300 MB each time. The figure itself belongs to the benchmarks."""
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(2048, 2048), nn.ReLU()))).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    inputs = torch.randn(32768, 2048, device="cuda")

    def seconds(checkpoints) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        for number in range(1, 101):
            step(model, optimizer, inputs)
            if checkpoints is not None and number % 50 == 0:
                checkpoints.save(state_of(model, optimizer), step=number, epoch=0)
        torch.cuda.synchronize()
        return time.perf_counter() - began

    with Checkpoints(tmp_path) as checkpoints:
        seconds(checkpoints)
        checkpoints.wait()
        ratios = []
        for _ in range(3):
            plain = seconds(None)
            ratios.append(seconds(checkpoints) / plain)
            checkpoints.wait()
    print(f"with checkpoints {[f'{ratio:.4f}' for ratio in ratios]} of the time without")
    assert sorted(ratios)[1] < 1.02
