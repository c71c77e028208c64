"""The batch size on a real GPU that is allowed little of its memory: what is returned trains, and is near the best."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
import torch
from torch import nn

from fulltilt.train import HybridPrecisionTrainer
from fulltilt.tune import get_optimal_batch_size

pytestmark = pytest.mark.gpu

GIB = 1024**3
PLAIN = {"compile": False, "cuda_graph": False, "channels_last": False, "fused": False, "expected_steps": 10}


@pytest.fixture
def limited():
    """The process may take 3 GiB."""
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(3 * GIB / total)
    yield 3 * GIB
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def images():
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 64), (64, 64), (64, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 10))


def batch(size):
    return torch.randn(size, 3, 64, 64), torch.randint(0, 10, (size,))


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3)


def test_what_is_returned_trains_within_the_limit_and_is_near_the_best(limited):
    size = get_optimal_batch_size(images, batch, 32, 4096, 32, optimizer=adam)
    evidence = size.decision.evidence
    assert evidence["room_bytes"] <= limited
    assert evidence["memory_bytes"] <= 0.9 * limited
    ran = [trial for trial in size.trials if trial.memory_bytes is not None and trial.size >= 32]
    assert all(trial.size in range(32, 4097, 32) for trial in ran)
    best = max(trial.samples_per_second for trial in ran if trial.memory_bytes <= evidence["limit_bytes"])
    chosen = next(trial for trial in ran if trial.size == size)
    assert chosen.samples_per_second >= 0.97 * best
    assert evidence["largest_predicted"] < 4096
    for trial in ran:  # memory is the line that it is taken for, but for what convolutions work in
        line = evidence["fixed_bytes"] + trial.size * evidence["bytes_per_sample"]
        assert trial.memory_bytes == pytest.approx(line, abs=0.1 * limited)

    torch.cuda.empty_cache()
    model = images()
    trainer = HybridPrecisionTrainer(model, adam(model.parameters()), compile=False, cuda_graph=False)
    one = batch(size)
    for _ in range(50):
        trainer.train_step(*one)
    torch.cuda.synchronize()
    assert trainer.state_dict()["micro_size"] is None  # never had to be cut


def test_the_largest_that_was_predicted_to_fit_does(limited):
    """Also where the search ended below it, because pace no longer rose."""
    size = get_optimal_batch_size(images, batch, 32, 4096, 32, optimizer=adam, show=False)
    largest = size.decision.evidence["largest_predicted"]
    model = images()
    trainer = HybridPrecisionTrainer(model, adam(model.parameters()), **PLAIN)
    one = batch(largest)
    for _ in range(10):
        trainer.train_step(*one)
    torch.cuda.synchronize()
    assert trainer.state_dict()["micro_size"] is None


class Leaping(nn.Module):
    """From a thousand samples on it takes more than there is, which no line predicts."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        time.sleep(0.02)  # larger batches are always worth it
        if len(x) >= 1000:
            torch.empty(4 * GIB, dtype=torch.uint8, device=x.device)
        return self.layer(x)


def pairs(size):
    return torch.randn(size, 8, device="cuda"), torch.rand(size, 8, device="cuda")


def test_out_of_memory_is_survived_and_the_memory_comes_back(limited):
    model = Leaping().cuda()
    before = torch.cuda.memory_allocated()
    size = get_optimal_batch_size(
        model, pairs, 256, 32768, 256, precision="fp32", loss=nn.functional.mse_loss, show=False
    )
    assert [trial.size for trial in size.trials if trial.problem == "out of memory"]
    assert size < 1000
    assert torch.cuda.memory_allocated() - before < 0.1 * GIB  # what cuBLAS works in stays
    torch.cuda.empty_cache()
    torch.empty(int(2.5 * GIB), dtype=torch.uint8, device="cuda")


def bits(model, optimizer):
    tensors = [*model.state_dict().values(), *(p.grad for p in model.parameters() if p.grad is not None)]
    for state in optimizer.state_dict()["state"].values():
        tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
    tensors += [torch.get_rng_state(), torch.cuda.get_rng_state()]
    plain = [random.getstate(), np.random.get_state()[1].tolist(), [m.training for m in model.modules()]]
    groups = repr(optimizer.state_dict()["param_groups"])
    switches = [torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark]
    raw = [
        (str(t.device), t.dtype, t.stride(), t.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        for t in tensors
    ]
    return raw, plain, groups, switches


@pytest.mark.parametrize("home", ["cpu", "cuda"])
@pytest.mark.parametrize("stepped", [False, True], ids=["fresh", "with state"])
@pytest.mark.parametrize("fused", [None, True])
def test_nothing_is_changed(home, stepped, fused):
    torch.manual_seed(3)
    model = images().to(home)
    optimizer = torch.optim.Adam(model.parameters(), fused=fused if home == "cuda" else None)
    if stepped:
        x, y = (part.to(home) for part in batch(4))
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    held = [*model.parameters(), *model.buffers()]
    places = [tensor.data_ptr() for tensor in held] if home == "cuda" else None
    before = bits(model, optimizer)
    get_optimal_batch_size(model, batch, 8, 32, 8, optimizer=optimizer, show=False)
    assert bits(model, optimizer) == before
    assert all(a is b for a, b in zip(held, [*model.parameters(), *model.buffers()], strict=True))
    assert places is None or places == [tensor.data_ptr() for tensor in held]


def test_fp16_has_its_optimizer_state_when_memory_is_measured():
    def wide():
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 4096, bias=False), nn.Linear(4096, 10))

    taken = []
    for optimizer in (lambda p: torch.optim.SGD(p, lr=1e-6), lambda p: torch.optim.Adam(p, lr=1e-6)):
        size = get_optimal_batch_size(wide, batch, 8, 8, optimizer=optimizer, precision="fp16", show=False)
        taken.append(size.trials[0].memory_bytes)
    weights = 3 * 64 * 64 * 4096 * 4
    assert taken[1] - taken[0] >= 1.9 * weights
