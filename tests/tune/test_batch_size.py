"""The search on the CPU with real models: what it returns ran, and nothing is left changed."""

from __future__ import annotations

import copy
import json
import logging
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from torch import nn

import fulltilt
from fulltilt.errors import InputError, UnavailableError
from fulltilt.tune import BatchSize, get_optimal_batch_size

ROOT = Path(__file__).parents[2]
MIB = 1024**2
FEW = {"min_batch": 4, "max_batch": 16, "step": 4, "device": "cpu", "show": False}


class Counting(nn.Module):
    """Counts its calls in an attribute, in a buffer in place and in one that is replaced."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.register_buffer("in_place", torch.zeros(1))
        self.register_buffer("replaced", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        self.in_place += 1
        self.replaced = self.replaced + 1
        random.random()
        np.random.rand()
        return x


def network():
    return nn.Sequential(
        nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), Counting(), nn.Linear(32, 3)
    )  # fmt: skip


def batch(size):
    return torch.randn(size, 8), torch.randint(0, 3, (size,))


class Sized:
    """Gives batches, remembers how many samples were asked for."""

    def __init__(self, make=batch):
        self.make, self.asked = make, []

    def __call__(self, size):
        self.asked.append(size)
        return self.make(size)


def bits(value):
    """Anything, as something that can be compared bit for bit."""
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), tuple(value.shape), value.stride(), value.detach().contiguous().numpy().tobytes())
    if isinstance(value, dict):
        return {key: bits(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [bits(part) for part in value]
    return repr(value)


def everything(model, optimizer):
    return bits(
        {
            "weights": model.state_dict(),
            "grads": [parameter.grad for parameter in model.parameters()],
            "training": [module.training for module in model.modules()],
            "calls": [module.calls for module in model.modules() if isinstance(module, Counting)],
            "optimizer": optimizer.state_dict(),
            "noted": {key: value for key, value in vars(optimizer).items() if isinstance(value, bool | int)},
            "random": [random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2:]],
            "torch": torch.get_rng_state(),
            "switches": [torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark],
        }
    )


@pytest.mark.parametrize("stepped", [False, True], ids=["fresh", "with state"])
@pytest.mark.parametrize("make_optimizer", [torch.optim.Adam, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)])
@pytest.mark.parametrize("training", [True, False])
def test_nothing_is_changed(stepped, make_optimizer, training):
    torch.manual_seed(1)
    model = network()
    optimizer = make_optimizer(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    if stepped:
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(torch.randn(8, 8)), torch.randint(0, 3, (8,))).backward()
            optimizer.step()
        scheduler.step()
    model.train(training)
    model[1].eval()
    held = [*model.parameters(), *model.buffers()]
    before = everything(model, optimizer)
    get_optimal_batch_size(model, batch, optimizer=optimizer, **FEW)
    assert everything(model, optimizer) == before
    assert all(a is b for a, b in zip(held, [*model.parameters(), *model.buffers()], strict=True))


def test_a_loss_with_weights_and_a_failure_in_the_middle_are_put_back_too():
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, outputs, target):
            return nn.functional.cross_entropy(outputs * self.scale, target)

    model, loss = network(), Loss()
    optimizer = torch.optim.AdamW([*model.parameters(), *loss.parameters()], lr=0.1)

    def failing(size):
        if size > 4:
            raise KeyError("no more samples")
        return batch(size)

    before = everything(model, optimizer), bits(loss.state_dict())
    with pytest.raises(KeyError, match="no more samples"):
        get_optimal_batch_size(model, failing, optimizer=optimizer, loss=loss, **FEW)
    assert (everything(model, optimizer), bits(loss.state_dict())) == before


def test_training_goes_on_as_if_nothing_had_happened():
    losses = []
    for looked_for in (False, True):
        torch.manual_seed(0)
        model = network()
        trainer = fulltilt.HybridPrecisionTrainer(model, torch.optim.Adam(model.parameters()), device="cpu")
        for step in range(6):
            if looked_for and step in (0, 3):
                get_optimal_batch_size(model, batch, optimizer=trainer.optimizers, **FEW)
            losses.append(float(trainer.train_step(*batch(8)).loss))
    assert losses[:6] == losses[6:]


def test_what_is_returned_is_a_number_that_ran_and_knows_why(capsys, caplog):
    make = Sized()
    with caplog.at_level(logging.INFO, "fulltilt.tune"):
        size = get_optimal_batch_size(network, make, **{**FEW, "show": True})
    assert isinstance(size, BatchSize)
    assert isinstance(size, int)
    assert size in (4, 8, 12, 16)
    assert size in make.asked
    assert torch.empty(size).shape == (size,)
    assert range(100)[:size] == range(int(size))
    assert [trial.size for trial in size.trials] == sorted(set(make.asked))
    assert all(trial.memory_bytes > 10 * MIB and trial.samples_per_second > 0 for trial in size.trials)
    best = max(trial.samples_per_second for trial in size.trials)
    assert {trial.size: trial.samples_per_second for trial in size.trials}[size] >= 0.97 * best
    assert size.decision.value == size
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == size.table() + "\n"
    lines = printed.err.splitlines()
    assert lines[0].startswith("memory: ")
    assert lines[1].split() == ["batch", "size", "memory", "samples/s"]
    assert [line.split()[0] for line in lines[2:-1]] == [str(trial.size) for trial in size.trials]
    assert [line.endswith("← chosen") for line in lines[2:-1]] == [trial.size == size for trial in size.trials]
    assert lines[-1] == f"batch size {int(size)}: {size.reason}"
    assert f"batch size: {int(size)} ({size.reason})" in caplog.text
    again = pickle.loads(pickle.dumps(size))
    assert (again, again.decision, again.trials) == (size, size.decision, size.trials)


def printed_by(script):
    """What a process prints that does nothing else: what other tests have left in this one takes and gives back
    memory, too. The script begins with a search that does not count: what a process loads for its first steps is
    no sample's."""
    done = subprocess.run(
        [sys.executable, "-c", f"import torch\ntorch.set_num_threads(1)\n{script}"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=True,
        # Every tensor that counts is a mapping of its own, given back when freed: glibc changes its mind as it runs.
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"},
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


STATE = """
from torch import nn
from fulltilt.tune import get_optimal_batch_size
from tests.tune.test_batch_size import batch

def model():
    return nn.Sequential(nn.Linear(8, 2048), nn.Linear(2048, 2048, bias=False), nn.Linear(2048, 3))

def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)

for optimizer in (torch.optim.Adam, sgd, torch.optim.Adam):
    found = get_optimal_batch_size(model, batch, 4, 4, optimizer=optimizer, device="cpu", show=False)
    print(found.trials[0].memory_bytes)
"""


def test_optimizer_state_is_there_when_memory_is_measured():
    """Adam holds two more tensors for each weight, SGD none: 16 MiB of weights make 32 of difference."""
    _, plain, with_state = printed_by(STATE)
    assert 28 * MIB < with_state - plain < 90 * MIB


class Wide(nn.Module):
    """Activations of a quarter of a MiB a sample, some of them kept for the backward."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, x):
        y = self.layer(x).expand(-1, MIB // 16)
        return (y * 1.5).sin().mean(1)


def wide(size):
    return torch.randn(size, 1), torch.rand(size)


BOUNDED = """
import json, psutil
from fulltilt.tune import get_optimal_batch_size
from tests.tune.test_batch_size import MIB, Wide, wide

def search(budget):
    allowed = psutil.Process().memory_info().rss + budget
    size = get_optimal_batch_size(
        Wide, wide, 16, 2048, 16, memory_bytes=allowed, safety=1.0, device="cpu", show=False
    )
    return allowed, size

search(128 * MIB)
for budget in (128 * MIB, 512 * MIB):
    allowed, size = search(budget)
    most = max(trial.memory_bytes for trial in size.trials)
    print(json.dumps({"allowed": allowed, "budget": budget, "most": most, **size.decision.evidence}))
"""


def test_memory_on_the_cpu_bounds_the_size():
    """Roughly: the C library keeps some of what was freed."""
    searches = printed_by(BOUNDED)
    for found in searches:
        assert found["memory_bytes"] <= found["limit_bytes"] == found["allowed"]
        assert 0.25 * MIB < found["bytes_per_sample"] < 4 * MIB
        assert found["most"] < found["allowed"] + found["budget"]
        assert found["largest_predicted"] < found["budget"] / (MIB / 4), "one tensor a sample is the least"
    assert searches[0]["largest_predicted"] < searches[1]["largest_predicted"]


def test_a_budget_that_the_smallest_size_exceeds_names_what_ran():
    allowed = psutil.Process().memory_info().rss + 24 * MIB
    with pytest.raises(UnavailableError, match=r"min_batch=96 does not fit in .*; the largest that ran is \d+: pass"):
        get_optimal_batch_size(Wide, wide, 96, 128, 32, memory_bytes=allowed, safety=1.0, device="cpu", show=False)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: you tried"),
        MemoryError("no more"),
        RuntimeError("cuDNN error: CUBLAS_STATUS_ALLOC_FAILED"),
    ],
)
@pytest.mark.parametrize("where", ["batch", "forward", "optimizer"])
def test_out_of_memory_is_survived_wherever_it_happens(error, where):
    model = network()
    sizes = []

    def check(place, size):
        if place == where and size > 6:
            raise error

    class Checked(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            sizes.append(len(x))
            check("forward", len(x))
            return self.inner(x)

    def make(size):
        check("batch", size)
        return batch(size)

    class Stepped(torch.optim.Adam):
        def step(self, closure=None):
            found = super().step(closure)
            check("optimizer", sizes[-1])
            return found

    whole = Checked()
    optimizer = Stepped(whole.parameters())
    before = everything(whole, optimizer)
    size = get_optimal_batch_size(whole, make, optimizer=optimizer, **FEW)
    assert size == 4
    assert [(trial.size, trial.problem) for trial in size.trials if trial.problem] == [(8, "out of memory")]
    assert "out of memory" in size.table()
    assert everything(whole, optimizer) == before


def test_a_model_that_refuses_one_sample_does_not_hide_that_nothing_fits():
    def make(size):
        if size > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return batch(size)

    with pytest.raises(UnavailableError, match=r"min_batch=4 does not fit in .*: out of memory; no smaller size ran"):
        get_optimal_batch_size(network, make, **FEW)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda n: batch(n + 1), r"make_batch\(4\) returned 5 samples \(inputs\)"),
        (lambda n: (torch.randn(n, 8), torch.zeros(7).long()), r"make_batch\(4\) returned 7 samples \(the target\)"),
        (lambda n: torch.randn(n, 8), r"make_batch\(4\) returned Tensor; expected a tuple"),
        (None, "make_batch must be callable as .*, found NoneType"),
        (lambda n: (torch.randn(n, 8),), "expected at least 2 values, found 1"),
        (lambda n: (torch.randn(n, 9), torch.zeros(n).long()), "the model can't take this batch's inputs"),
        (lambda n: (torch.randn(n, 8), torch.full((n,), 3)), "labels out of range: found 3"),
    ],
)
def test_wrong_batches_are_named(make, message):
    with pytest.raises(InputError, match=message):
        get_optimal_batch_size(network, make, **FEW)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"safety": 0}, "safety=0 must be above 0"),
        ({"memory_bytes": 0}, "memory_bytes=0 must be above 0"),
        ({"reserve_bytes": -1}, "reserve_bytes=-1 must be at least 0"),
        ({"max_batch": 3}, "max_batch=3 is below min_batch=4"),
        ({"precision": "int4"}, "precision='int4' is unknown"),
        ({"optimizer": 3}, "optimizer is int; expected a torch.optim.Optimizer"),
        ({"optimizer": torch.optim.Adam(network().parameters())}, "belongs to this model"),
    ],
)
def test_wrong_arguments_are_named(options, message):
    with pytest.raises(InputError, match=message):
        get_optimal_batch_size(network, batch, **{**FEW, **options})


@pytest.mark.parametrize(("model", "found"), [(3, "int"), (lambda: "net", "a factory of str")])
def test_what_is_no_model_is_named(model, found):
    with pytest.raises(InputError, match=f"model_or_factory is {found}; expected a torch.nn.Module"):
        get_optimal_batch_size(model, batch, **FEW)


def test_extra_inputs_and_the_guides_order_are_known():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.linear = nn.Conv2d(3, 1, 1), nn.Linear(4, 1)

        def forward(self, images, features):
            return self.conv(images) + self.linear(features)[:, :, None, None]

    def make(n):
        return torch.randn(n, 3, 6, 6), torch.rand(n, 1, 6, 6).round(), torch.randn(n, 4)

    assert get_optimal_batch_size(Two, make, **FEW) in (4, 8, 12, 16)


def test_what_training_needs_beside_its_step_is_held_while_sizes_are_tried():
    sizes = [
        get_optimal_batch_size(network, batch, 4, 4, device="cpu", reserve_bytes=reserve, show=False)
        for reserve in (0, 100 * MIB)
    ]
    taken = [size.trials[0].memory_bytes for size in sizes]
    assert 90 * MIB < taken[1] - taken[0] < 130 * MIB


def test_a_wrapped_or_compiled_model_is_run_as_itself():
    inner = network()
    assert get_optimal_batch_size(torch.compile(inner, backend="eager"), batch, **FEW) in (4, 8, 12, 16)
    assert inner[4].calls == 0


def test_the_model_of_a_factory_does_not_move_the_random_numbers():
    torch.manual_seed(5)
    expected = copy.deepcopy(torch.get_rng_state())
    get_optimal_batch_size(network, batch, **FEW)
    assert torch.equal(torch.get_rng_state(), expected)
