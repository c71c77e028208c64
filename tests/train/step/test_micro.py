"""Running out of memory: effective batch and losses stay, no step is taken twice, and what shrank grows back."""

from __future__ import annotations

import copy
import logging
from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fulltilt.errors import UnavailableError
from fulltilt.train import HybridPrecisionTrainer
from fulltilt.train.step.engine import Engine, is_out_of_memory
from fulltilt.train.step.micro import MicroSize


class Small(nn.Module):
    """Room for so many samples at once; more is an OutOfMemoryError, in the forward or amid the backward."""

    def __init__(self, room, *, fails_in="forward"):
        super().__init__()
        self.first, self.last = nn.Linear(6, 16, dtype=torch.float64), nn.Linear(16, 3, dtype=torch.float64)
        self.room, self.fails_in = room, fails_in
        self.sizes = []

    def forward(self, x):
        self.sizes.append(len(x))
        hidden = torch.tanh(self.first(x))
        if len(x) > self.room:
            if self.fails_in == "forward":
                raise torch.OutOfMemoryError("tried to allocate 3 GiB")
            hidden.register_hook(_out_of_memory)  # the last layer's gradients are there by then
        return self.last(hidden)


def _out_of_memory(_):
    raise torch.OutOfMemoryError("tried to allocate 3 GiB")


class Counting(torch.optim.SGD):
    steps = 0

    def step(self, closure=None):
        self.steps += 1
        return super().step(closure)


def train(room, batches, *, fails_in="forward", accumulate=1, patience=1000, model=None):
    torch.manual_seed(0)
    model = model or Small(room, fails_in=fails_in)
    optimizer = Counting(model.parameters(), lr=0.1, momentum=0.9)
    trainer = HybridPrecisionTrainer(model, optimizer, device="cpu", accumulate=accumulate)
    trainer._micro.micro = MicroSize(patience)
    losses = [trainer.train_step(*batch).loss for batch in batches]
    return torch.stack(losses), model, optimizer, trainer


def batches_of(count, size=16):
    draw = torch.Generator().manual_seed(3)
    return [
        (torch.randn(size, 6, generator=draw, dtype=torch.float64), torch.randint(0, 3, (size,), generator=draw))
        for _ in range(count)
    ]


@pytest.mark.parametrize("fails_in", ["forward", "backward"])
@pytest.mark.parametrize("accumulate", [1, 4])
def test_losses_weights_and_number_of_steps_are_those_of_enough_memory(fails_in, accumulate, caplog):
    batches = batches_of(24)
    expected, theirs, their_optimizer, _ = train(16, batches, accumulate=accumulate)
    with caplog.at_level(logging.WARNING, "fulltilt.train"):
        losses, ours, optimizer, trainer = train(5, batches, fails_in=fails_in, accumulate=accumulate)
    torch.testing.assert_close(losses, expected, rtol=1e-12, atol=1e-12)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)
    assert optimizer.steps == their_optimizer.steps == 24 // accumulate
    assert trainer._micro.micro.size == 4
    assert [record.message.split(": ", 1)[1] for record in caplog.records] == [
        f"micro-batches of 8 instead of 16 from here on; the effective batch stays {16 * accumulate}",
        f"micro-batches of 4 instead of 8 from here on; the effective batch stays {16 * accumulate}",
    ]


def test_out_of_memory_in_the_middle_of_accumulating_starts_the_window_again():
    batches = batches_of(8)
    expected, theirs, _, _ = train(16, batches, accumulate=4)
    model = Small(16)
    torch.manual_seed(0)
    fresh = Small(16)
    model.load_state_dict(fresh.state_dict())
    optimizer = Counting(model.parameters(), lr=0.1, momentum=0.9)
    trainer = HybridPrecisionTrainer(model, optimizer, device="cpu", accumulate=4)
    losses = []
    for index, batch in enumerate(batches):
        if index == 6:  # two batches of this window have left their gradients
            model.room, model.fails_in = 8, "backward"
        losses.append(trainer.train_step(*batch).loss)
    torch.testing.assert_close(torch.stack(losses), expected, rtol=1e-12, atol=1e-12)
    for a, b in zip(model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)
    assert optimizer.steps == 2


def test_out_of_memory_after_resuming_in_the_middle_of_a_window_keeps_what_was_saved():
    batches = batches_of(8)
    expected, theirs, _, _ = train(16, batches, accumulate=4)
    _, model, _, trainer = train(16, batches[:6], accumulate=4)
    saved = copy.deepcopy((model.state_dict(), trainer.state_dict()))
    again = Small(8, fails_in="backward")
    resumed = HybridPrecisionTrainer(
        again, Counting(again.parameters(), lr=0.1, momentum=0.9), device="cpu", accumulate=4
    )
    again.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    losses = torch.stack([resumed.train_step(*batch).loss for batch in batches[6:]])
    torch.testing.assert_close(losses, expected[6:], rtol=1e-12, atol=1e-12)
    for a, b in zip(again.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)
    assert resumed._micro.micro.size == 8


def test_batch_statistics_and_random_numbers_are_not_drawn_twice():
    """The failed attempt has moved both; what counts is where the batch began."""

    class Noisy(Small):
        def __init__(self, room):
            super().__init__(room, fails_in="backward")
            self.norm = nn.BatchNorm1d(6, dtype=torch.float64)
            self.seen = []

        def forward(self, x):
            x = self.norm(x)
            self.seen.append((len(x), torch.rand(())))
            return super().forward(x)

    torch.manual_seed(0)
    model = Noisy(8)
    batch = batches_of(1)[0]
    trainer = HybridPrecisionTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), device="cpu")
    torch.manual_seed(5)
    trainer.train_step(*batch)
    (whole, first), (half, again), (other, after) = model.seen
    assert (whole, half, other) == (16, 8, 8)
    assert first == again != after
    assert model.norm.num_batches_tracked == 2, "two micro-batches, and not the attempt before them"


def test_outputs_of_micro_batches_are_those_of_the_batch():
    batch = batches_of(1)[0]
    torch.manual_seed(0)
    model = Small(3)
    expected = copy.deepcopy(model)
    expected.room = 16
    trainer = HybridPrecisionTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), device="cpu")
    outputs = trainer.train_step(*batch).outputs
    torch.testing.assert_close(outputs, expected(batch[0]).detach())


class Output(OrderedDict):
    """As model libraries make them."""

    @property
    def logits(self):
        return self["logits"]


def test_outputs_of_micro_batches_are_of_the_models_own_kind():
    class Wrapped(Small):
        def forward(self, x):
            return Output(logits=super().forward(x), hidden=None)

    model = Wrapped(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = HybridPrecisionTrainer(model, optimizer, device="cpu", loss=lambda outputs, _: outputs.logits.sum())
    outputs = trainer.train_step(*batches_of(1)[0]).outputs
    assert isinstance(outputs, Output)
    assert (outputs.logits.shape, outputs["hidden"]) == ((16, 3), None)


def test_a_loss_that_sums_is_not_averaged():
    batches = batches_of(6)
    found = []
    for room in (16, 4):
        torch.manual_seed(0)
        model = Small(room)
        trainer = HybridPrecisionTrainer(
            model, torch.optim.SGD(model.parameters(), lr=0.01), loss=nn.CrossEntropyLoss(reduction="sum"), device="cpu"
        )
        found.append(torch.stack([trainer.train_step(*batch).loss for batch in batches]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-12)


def test_one_sample_that_does_not_fit_is_said():
    with pytest.raises(UnavailableError, match="out of memory with one sample at a time: tried to allocate 3 GiB"):
        train(0, batches_of(1))


def test_a_layer_that_cudnn_can_not_run_is_thought_of():
    class Unsupported(Small):
        def forward(self, x):
            raise RuntimeError("GET was unable to find an engine to execute this computation")

    with pytest.raises(
        UnavailableError, match=r"one sample at a time: GET was unable .* a layer that it can't run at all"
    ):
        train(16, batches_of(1), model=Unsupported(16))


def test_other_errors_are_not_taken_for_want_of_memory():
    class Broken(Small):
        def forward(self, x):
            if len(self.sizes) > 1:
                raise RuntimeError("a bug of the model's own")
            return super().forward(x)

    with pytest.raises(RuntimeError, match="a bug of the model's own"):
        train(16, batches_of(4), model=Broken(16))


@pytest.mark.parametrize(
    ("said", "is_it"),
    [
        ("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported", True),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("GET was unable to find an engine to execute this computation", True),
        ("Unable to find a valid cuDNN algorithm to run convolution", True),
        ("[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory: you tried", True),
        ("CUDA error: device-side assert triggered", False),
    ],
)
def test_want_of_memory_is_told_by_others_than_torchs_allocator(said, is_it):
    assert is_out_of_memory(RuntimeError(said)) == is_it


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("no room for the state"), RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED")],
)
def test_the_optimizers_step_is_never_taken_again(error):
    class Full(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            raise error

    torch.manual_seed(0)
    model = Small(16)
    trainer = HybridPrecisionTrainer(model, Full(model.parameters(), lr=0.1), device="cpu")
    with pytest.raises(UnavailableError, match=r"out of memory in the optimizer's step.*last checkpoint"):
        trainer.train_step(*batches_of(1)[0])
    assert model.sizes == [16]


def test_a_batch_that_does_not_fit_the_device_is_sent_in_pieces(monkeypatch):
    batches = batches_of(6)
    expected, theirs, _, _ = train(16, batches)
    sent = []

    def place(_, part):
        sent.append(len(part))
        if len(part) > 5:
            raise torch.OutOfMemoryError("no room for the batch")
        return part

    monkeypatch.setattr(Engine, "place", place)
    losses, ours, optimizer, trainer = train(16, batches)
    torch.testing.assert_close(losses, expected, rtol=1e-12, atol=1e-12)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)
    assert (optimizer.steps, trainer._micro.micro.size) == (6, 4)
    assert sent[:2] == [16, 8], "tried whole, then in halves, then never again"
    assert max(sent[2:]) == 4


def test_room_is_judged_by_the_peak_of_a_step_alone(monkeypatch):
    """Not by that of the attempt that ran out of memory, or of a validation since."""
    peak = [90]
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: peak[0])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: peak.__setitem__(0, 0))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 20)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 20)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (80, 100))
    for needed, after in ((40, None), (80, 8)):
        torch.manual_seed(0)
        model = Small(8)
        trainer = HybridPrecisionTrainer(model, Counting(model.parameters(), lr=0.1), device="cpu")
        trainer._micro.micro = MicroSize(3)
        run, (first, *more) = trainer._micro.run, batches_of(8)
        run((first[0],), first[1])
        assert trainer._micro.micro.size == 8
        model.room, peak[0] = 16, 99
        monkeypatch.setattr(Engine, "placed", lambda _, *batch, needed=needed: (_set(peak, needed), batch)[1])
        trainer._engine.device = torch.device("cuda", 0)
        for inputs, target in more[:4]:
            run((inputs,), target)
        assert trainer._micro.micro.size == after


def _set(peak, needed):
    peak[0] = max(peak[0], needed)


def test_it_grows_back_when_memory_is_free_again():
    torch.manual_seed(0)
    model = Small(4)
    trainer = HybridPrecisionTrainer(model, Counting(model.parameters(), lr=0.1), device="cpu")
    trainer._micro.micro = MicroSize(3)
    batches = batches_of(20)
    for batch in batches[:5]:
        trainer.train_step(*batch)
    assert trainer._micro.micro.size == 4
    model.room = 16
    for batch in batches[5:]:
        trainer.train_step(*batch)
    assert trainer._micro.micro.size is None
    assert model.sizes[-1] == 16
    assert trainer.optimizers[0].steps == 20


def test_what_is_compiled_is_compiled_for_each_new_size(monkeypatch):
    sizes = []
    monkeypatch.setattr(Engine, "compile_for", lambda _, inputs, target: sizes.append((len(inputs[0]), len(target))))
    model = Small(4)
    trainer = HybridPrecisionTrainer(model, Counting(model.parameters(), lr=0.1), device="cpu")
    trainer._micro.micro = MicroSize(3)
    first, *more = batches_of(12)
    trainer.train_step(*first)
    trainer._engine.settings = replace(trainer._engine.settings, compile=True)
    model.room = 16
    for batch in more:
        trainer.train_step(*batch)
    assert sizes == [(8, 8), (16, 16)]


def test_growing_that_fails_costs_nothing_but_patience():
    batches = batches_of(60)
    expected, *_ = train(16, batches)
    losses, model, optimizer, _ = train(4, batches, patience=4)
    torch.testing.assert_close(losses, expected, rtol=1e-12, atol=1e-12)
    assert optimizer.steps == 60
    assert 2 <= model.sizes.count(8) - 1 <= 4, "tried after 4, 8, 16, … steps"


def test_the_last_batch_may_be_shorter_and_a_micro_batch_uneven():
    batches = [*batches_of(3), *batches_of(2, size=7)]
    expected, *_ = train(16, batches)
    losses, model, *_ = train(5, batches)
    torch.testing.assert_close(losses, expected, rtol=1e-12, atol=1e-12)
    assert model.sizes[-4:] == [4, 3, 4, 3]


@given(st.integers(1, 512), st.lists(st.sampled_from(["oom", "step", "grow"]), max_size=60))
def test_a_micro_batch_is_never_empty_nor_larger_than_its_batch(samples, events):
    micro = MicroSize(patience=2)
    for event in events:
        if event == "oom":
            assert micro.halve(samples) or (micro.size or samples) == 1
        elif event == "step":
            micro.went_well()
        else:
            micro.grow(samples)
        assert micro.size is None or 1 <= micro.size < samples


def test_accumulating_is_counted_by_batches_not_by_micro_batches():
    torch.manual_seed(0)
    model = Small(4)
    trainer = HybridPrecisionTrainer(model, Counting(model.parameters(), lr=0.1), device="cpu", accumulate=2)
    stepped = []
    for batch in batches_of(6):
        trainer.train_step(*batch)
        stepped.append(trainer.stepped)
    assert stepped == [False, True] * 3
    assert model.sizes == [16, 8, *[4] * 24]
