"""The step: the plain loop's losses bit for bit, and clear words for what can't be trained."""

from __future__ import annotations

import copy
import cProfile
import pstats
from collections import UserDict
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fulltilt.errors import InputError, UnavailableError
from fulltilt.train import HybridPrecisionTrainer
from fulltilt.train.step.device import device_for
from fulltilt.train.step.step import StepResult


class Segmenter(nn.Module):
    """Images and a vector of features beside them; dropout and batch statistics, which have state of their own."""

    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2))
        self.features = nn.Linear(5, 8)
        self.head = nn.Conv2d(8, 1, 1)

    def forward(self, images, features):
        return self.head(self.down(images) + self.features(features)[:, :, None, None])


def classifier():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(288, 4)
    )


def regressor():
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))


def class_batch(draw):
    return torch.randn(8, 3, 8, 8, generator=draw), torch.randint(0, 4, (8,), generator=draw)


def mask_batch(draw):
    images = torch.randn(4, 3, 8, 8, generator=draw)
    return images, (images[:, :1] > 0).float(), torch.randn(4, 5, generator=draw)


def number_batch(draw):
    return torch.randn(16, 6, generator=draw), torch.randn(16, 2, generator=draw)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


TASKS = {
    "classification": (classifier, class_batch, None, F.cross_entropy, sgd),
    "segmentation": (Segmenter, mask_batch, None, F.binary_cross_entropy_with_logits, adamw),
    "regression": (regressor, number_batch, F.mse_loss, F.mse_loss, adamw),
}


def plain_loop(model, optimizer, loss_of, batches, *, accumulate=1, clip=None):
    losses = []
    for index, batch in enumerate(batches):
        images, target, *features = batch
        outputs = model(images, *features)
        loss = loss_of(outputs, target)
        (loss / accumulate if accumulate > 1 else loss).backward()
        if (index + 1) % accumulate == 0:
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    return torch.stack(losses)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("steps", "accumulate", "clip"), [(200, 1, None), (40, 4, 0.5)])
def test_losses_and_weights_are_the_plain_loops_bit_for_bit(task, steps, accumulate, clip):
    make, make_batch, loss, plain_loss, make_optimizer = TASKS[task]
    draw = torch.Generator().manual_seed(1)
    batches = [make_batch(draw) for _ in range(steps)]
    torch.manual_seed(0)
    ours = make()
    theirs = copy.deepcopy(ours)

    torch.manual_seed(7)
    expected = plain_loop(theirs, make_optimizer(theirs), plain_loss, batches, accumulate=accumulate, clip=clip)
    torch.manual_seed(7)
    trainer = HybridPrecisionTrainer(
        ours, make_optimizer(ours), loss=loss, device="cpu", accumulate=accumulate, clip_norm=clip
    )
    losses = torch.stack([trainer.train_step(*batch).loss for batch in batches])

    assert torch.equal(losses, expected)
    assert expected[-10:].mean() < expected[:10].mean(), "nothing was learned: the comparison shows nothing"
    for (name, a), (_, b) in zip(ours.state_dict().items(), theirs.state_dict().items(), strict=True):
        assert torch.equal(a, b), name


def test_a_scheduler_and_several_optimizers_act_as_in_the_plain_loop():
    torch.manual_seed(0)
    ours = regressor()
    theirs = copy.deepcopy(ours)
    draw = torch.Generator().manual_seed(1)
    batches = [number_batch(draw) for _ in range(30)]

    def two(model):
        optimizers = [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[2].parameters(), lr=0.01)]
        return optimizers, [torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.5) for optimizer in optimizers]

    optimizers, schedulers = two(theirs)
    expected = []
    for images, target in batches:
        loss = F.mse_loss(theirs(images), target)
        loss.backward()
        for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        expected.append(loss.detach())

    optimizers, schedulers = two(ours)
    trainer = HybridPrecisionTrainer(ours, optimizers, loss=F.mse_loss, device="cpu")
    found = []
    for batch in batches:
        found.append(trainer.train_step(*batch).loss)
        for scheduler in schedulers:
            scheduler.step()
    assert torch.equal(torch.stack(found), torch.stack(expected))
    assert trainer.optimizers == optimizers


def test_loss_and_outputs_come_without_history():
    model = regressor()
    trainer = HybridPrecisionTrainer(model, sgd(model), loss=nn.MSELoss(), device="cpu")
    x, y = number_batch(torch.Generator().manual_seed(0))
    result = trainer.train_step(x, y)
    loss, outputs = result
    assert isinstance(result, StepResult)
    assert loss.shape == ()
    assert outputs.shape == y.shape
    assert not loss.requires_grad
    assert not outputs.requires_grad
    model.eval()
    weights = copy.deepcopy(model.state_dict())
    evaluated = trainer.eval_step(x, y)
    assert torch.equal(evaluated.loss, F.mse_loss(model(x), y))
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


def test_stepped_says_when_the_optimizers_did():
    model = regressor()
    trainer = HybridPrecisionTrainer(model, sgd(model), loss=F.mse_loss, device="cpu", accumulate=3)
    draw = torch.Generator().manual_seed(0)
    said, moved = [], []
    for _ in range(6):
        before = model[0].weight.clone()
        trainer.train_step(*number_batch(draw))
        said.append(trainer.stepped)
        moved.append(not torch.equal(before, model[0].weight))
    assert said == moved == [False, False, True] * 2


@pytest.mark.parametrize("at", [9, 10])
def test_a_saved_state_goes_on_bit_for_bit_also_in_the_middle_of_accumulating(at):
    def make():
        torch.manual_seed(0)
        model = regressor()
        return model, HybridPrecisionTrainer(
            model, adamw(model), loss=F.mse_loss, device="cpu", accumulate=3, ema_decay=0.9
        )

    draw = torch.Generator().manual_seed(1)
    batches = [number_batch(draw) for _ in range(20)]
    model, trainer = make()
    for batch in batches[:at]:
        trainer.train_step(*batch)
    saved = copy.deepcopy((model.state_dict(), trainer.state_dict()))
    expected = [trainer.train_step(*batch).loss for batch in batches[at:]]

    again, resumed = make()
    again.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    assert torch.equal(torch.stack([resumed.train_step(*b).loss for b in batches[at:]]), torch.stack(expected))
    for a, b in zip(trainer.ema.averages, resumed.ema.averages, strict=True):
        assert torch.equal(a, b)


def test_a_saved_state_holds_nothing_but_what_weights_only_loading_allows(tmp_path):
    model = regressor()
    trainer = HybridPrecisionTrainer(
        model, adamw(model), loss=F.mse_loss, device="cpu", accumulate=2, ema_decay=0.9, precision="fp16"
    )
    trainer.train_step(*number_batch(torch.Generator().manual_seed(0)))
    torch.save(trainer.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert set(state) == {"optimizers", "micro_size", "phase", "grads", "scaler", "ema"}
    assert state["phase"] == 1


@pytest.mark.parametrize("made_fused", [False, True])
@pytest.mark.parametrize("dampening", [0.0, 0.1])
def test_a_fused_sgd_takes_weights_whose_first_gradient_comes_later(made_fused, dampening):
    """As in fine-tuning, where a part is thawed after a while. torch's own fails there, if it has momentum."""
    found = []
    for fused in (False, True):
        torch.manual_seed(0)
        model = regressor()
        made = torch.optim.SGD(
            model.parameters(), lr=0.01, momentum=0.9, dampening=dampening,
            fused=True if fused and made_fused and not dampening else None,
        )  # fmt: skip
        first = next(model.parameters()).requires_grad_(False)
        trainer = HybridPrecisionTrainer(model, made, loss=F.mse_loss, device="cpu", fused=fused)
        draw = torch.Generator().manual_seed(0)
        losses = []
        for step in range(12):
            first.requires_grad_(step >= 6)
            losses.append(trainer.train_step(*number_batch(draw)).loss)
        assert made.param_groups[0]["fused"] is (True if fused and not dampening else None)
        found.append(torch.stack(losses))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)
    if dampening:
        assert trainer.plan["fused"].reason == "SGD has dampening, which each weight's first step leaves out"


@pytest.mark.parametrize("asked", [True, False])
def test_outputs_have_the_layout_that_they_have_without_us(asked):
    """Whoever asked for channels_last may have it; who did not has metrics that say `view(-1)`."""
    model = nn.Conv2d(3, 2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trainer = HybridPrecisionTrainer(
        model, optimizer, loss=F.mse_loss, device="cpu", channels_last=True if asked else "auto"
    )
    batch = torch.randn(4, 3, 8, 8), torch.randn(4, 2, 6, 6)
    trainer.train_step(*batch)
    trainer._engine.use(replace(trainer._engine.settings, channels_last=True))
    for found in (trainer.train_step(*batch), trainer.eval_step(*batch)):
        assert found.outputs.is_contiguous(memory_format=torch.channels_last) is asked
        assert found.outputs.is_contiguous() is not asked


@pytest.mark.parametrize("kind", [dict, UserDict, MappingProxyType])
def test_inputs_in_mappings_of_any_kind_are_placed(kind):
    class Inside(nn.Conv2d):
        seen: Any = None

        def forward(self, batch):
            self.seen = batch
            return super().forward(batch["image"])

    model = Inside(3, 2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trainer = HybridPrecisionTrainer(model, optimizer, loss=F.mse_loss, device="cpu", channels_last=True)
    trainer.train_step(kind({"image": torch.randn(4, 3, 8, 8), "path": "a.jpg"}), torch.randn(4, 2, 6, 6))
    assert type(model.seen) is kind
    assert model.seen["image"].is_contiguous(memory_format=torch.channels_last)


def test_figures_on_the_cpu_have_no_gpu_in_them():
    model = regressor()
    trainer = HybridPrecisionTrainer(model, sgd(model), loss=F.mse_loss, device="cpu")
    assert trainer.get_performance_stats() == {}
    draw = torch.Generator().manual_seed(0)
    for _ in range(5):
        trainer.note_wait(0.25)
        trainer.train_step(*number_batch(draw))
    stats = trainer.get_performance_stats()
    assert set(stats) == {"avg_cpu_time", "data_wait_seconds", "step_p50", "step_p99", "samples_per_second"}
    assert stats["data_wait_seconds"] == 0.25
    assert 0 < stats["step_p50"] <= stats["step_p99"]


def test_evaluating_between_two_steps_is_not_counted_as_one():
    trainer = trainer_of(regressor(), F.mse_loss)
    batch = torch.randn(4, 6), torch.randn(4, 2)
    trainer.train_step(*batch)
    trainer.eval_step(*batch)
    trainer.train_step(*batch)
    assert "step_p50" not in trainer.get_performance_stats()
    trainer.train_step(*batch)
    assert "step_p50" in trainer.get_performance_stats()


def test_ema_averages_and_can_be_put_in_for_evaluation():
    model = nn.Linear(3, 1)
    trainer = HybridPrecisionTrainer(
        model, torch.optim.SGD(model.parameters(), lr=0.1), loss=F.mse_loss, device="cpu", ema_decay=0.5
    )
    averages = [parameter.detach().clone() for parameter in model.parameters()]
    for _ in range(4):
        trainer.train_step(torch.randn(4, 3), torch.randn(4, 1))
        averages = [0.5 * a + 0.5 * p.detach() for a, p in zip(averages, model.parameters(), strict=True)]
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    with trainer.ema.applied():
        for parameter, average in zip(model.parameters(), averages, strict=True):
            torch.testing.assert_close(parameter.detach(), average)
            assert not torch.equal(parameter, weights[0])
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), weights, strict=True))


# --- what can't be trained ----------------------------------------------------------------------------------------


def trainer_of(model, loss=None, **more):
    return HybridPrecisionTrainer(model, sgd(model), loss=loss, device="cpu", **more)


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"precision": "fp8"}, "precision='fp8' is unknown; allowed: auto, fp32, tf32, bf16, fp16"),
        ({"accumulate": 0}, "accumulate=0 must be at least 1"),
        ({"clip_norm": 0.0}, "clip_norm=0.0 must be above 0"),
        ({"ema_decay": 1.5}, "ema_decay=1.5 must lie between 0 and 1"),
        ({"compile": "always"}, "compile='always' must be True, False or 'auto'"),
        ({"keep_fp32": ["head"]}, "the model has no part 'head'; it has 0, 1, 2"),
        ({"loss": 3}, "loss must be callable"),
    ],
)
def test_settings_that_are_wrong_are_named_with_what_is_allowed(wish, words):
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        trainer_of(regressor(), **wish)


def test_a_model_elsewhere_or_nowhere_is_refused():
    with pytest.raises(InputError, match="the meta device"):
        trainer_of(nn.Linear(2, 2, device="meta"))
    spread = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    with pytest.raises(InputError, match=r"on several devices \(cpu, meta\)"):
        trainer_of(spread)
    model = nn.Linear(2, 2)
    with pytest.raises(InputError, match="device='gpu' is unknown"):
        HybridPrecisionTrainer(model, sgd(model), device="gpu")
    for unknown in ("mps", "xpu", "meta", None):
        with pytest.raises(InputError, match=rf"device='?{unknown}'? is .*; allowed: 'auto', 'cpu'"):
            HybridPrecisionTrainer(model, sgd(model), device=unknown)
    with pytest.raises(InputError, match=r"the model must be .*, found function"):
        HybridPrecisionTrainer(lambda x: x, sgd(model))
    if not torch.cuda.is_available():
        with pytest.raises(UnavailableError, match="torch sees no NVIDIA GPU here; use device='cpu'"):
            HybridPrecisionTrainer(model, sgd(model), device="cuda")


def test_an_optimizer_of_another_model_is_refused():
    model = regressor()
    with pytest.raises(InputError, match="none of the 4 weights of SGD belongs to this model"):
        HybridPrecisionTrainer(model, sgd(copy.deepcopy(model)), device="cpu")
    with pytest.raises(InputError, match="at least one"):
        HybridPrecisionTrainer(model, [], device="cpu")


@pytest.mark.parametrize("loss", [None, nn.CrossEntropyLoss(), F.cross_entropy])
def test_labels_out_of_range_are_found_before_the_loss_sees_them(loss):
    model = nn.Linear(3, 4)
    with pytest.raises(InputError, match=r"labels out of range: found -3, 4, 7; the model has 4 outputs, so 0 to 3"):
        trainer_of(model, loss).train_step(torch.randn(5, 3), torch.tensor([0, 4, 7, -3, 1]))
    trainer_of(model, loss).train_step(torch.randn(3, 3), torch.tensor([0, 3, -100]))


def test_labels_still_on_the_host_are_looked_at_in_every_batch():
    objective = trainer_of(nn.Linear(3, 4))._engine.objective
    objective.examine(torch.randn(2, 4), torch.tensor([0, 1]))
    objective.check_host_labels(torch.tensor([3, 0]))
    with pytest.raises(InputError, match="found 4"):
        objective.check_host_labels(torch.tensor([4, 0]))


def test_labels_of_later_batches_are_named_too():
    trainer = trainer_of(nn.Linear(3, 4))
    trainer.train_step(torch.randn(2, 3), torch.tensor([0, 3]))
    for step in (trainer.train_step, trainer.eval_step):
        with pytest.raises(InputError, match="labels out of range: found 5; the model has 4 outputs"):
            step(torch.randn(2, 3), torch.tensor([0, 5]))


def test_the_device_may_come_third_as_in_the_guide():
    model = nn.Linear(3, 4)
    assert HybridPrecisionTrainer(model, sgd(model), "cpu").device == torch.device("cpu")


def test_a_gpu_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UnavailableError, match="device='cuda:2': torch sees 2 GPUs here"):
        device_for(nn.Linear(2, 2), "cuda:2")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (sgd, "not of SGD: it lacks dampening, momentum, nesterov and has amsgrad, betas"),
        (
            lambda model: torch.optim.AdamW([{"params": layer.parameters()} for layer in (model[0], model[2])]),
            "groups of 4 weights, this AdamW has 2, 2",
        ),
    ],
)
def test_a_saved_state_of_another_optimizer_is_refused_before_it_is_taken_over(make, words):
    model = regressor()
    saved = HybridPrecisionTrainer(model, adamw(model), device="cpu")
    saved.train_step(torch.randn(4, 6), torch.rand(4, 2))
    trainer = HybridPrecisionTrainer(model, make(model), device="cpu")
    before = copy.deepcopy(trainer.state_dict())
    with pytest.raises(InputError, match=words):
        trainer.load_state_dict(saved.state_dict())
    assert trainer.state_dict() == before


@pytest.mark.parametrize(
    ("model", "loss", "batch", "words"),
    [
        (nn.Linear(3, 4), None, (torch.randn(5, 3), torch.zeros(6).long()), r"class numbers are \(5,\); found \(6,\)"),
        (nn.Linear(3, 1), F.mse_loss, (torch.randn(5, 3), torch.randn(5)), r"gives \(5, 1\) and the target is \(5,\)"),
        (nn.Linear(3, 1), None, (torch.randn(5, 3), 9 * torch.ones(5, 1)), "the target runs from 9 to 9.*mse_loss"),
        (nn.Linear(3, 1), nn.BCEWithLogitsLoss(), (torch.randn(5, 3), 9 * torch.ones(5, 1)), "LogitsLoss needs 0"),
        (nn.Linear(3, 1), F.binary_cross_entropy_with_logits, (torch.randn(5, 3), -torch.ones(5, 1)), "from -1 to"),
        (nn.Linear(3, 2), None, (torch.randn(5, 3), torch.rand(5, 3)), r"pass loss= \(criterion= of a Tr"),
        (nn.Linear(3, 2), None, (torch.randn(5, 3), torch.ones(5)), r"or are they class numbers\? .* target.long\(\)"),
        (nn.Linear(3, 2), None, (torch.randn(5, 4), torch.rand(5, 2)), r"can't take .* inputs \(float32 \(5, 4\)\)"),
        (nn.Linear(3, 2), None, (torch.randn(5, 3), torch.randn(5, 3), torch.rand(5, 2)), "positional argument"),
        (nn.Linear(3, 2), None, (torch.ones(5, 3).byte(), torch.rand(5, 2)), r"bytes are no inputs: images / 255"),
        (nn.Linear(3, 2), None, (torch.ones(5, 3).double(), torch.rand(5, 2)), r"NumPy's .*: inputs\.float\(\)"),
        (nn.Conv2d(1, 1, 1), None, (torch.rand(2, 1, 4, 4).double(), torch.rand(2, 1, 4, 4)), r"inputs\.float\(\)"),
        (nn.Linear(3, 2), None, (torch.randn(5, 3),), "expected at least 2 values, found 1"),
        (nn.Linear(3, 2), nn.MSELoss(reduction="none"), (torch.randn(5, 3), torch.rand(5, 2)), "must be one number"),
        (nn.Linear(3, 2), lambda out, y: out.detach().mean(), (torch.randn(5, 3), torch.rand(5, 2)), "no weight"),
    ],
)  # fmt: skip
def test_batches_that_do_not_fit_are_explained(model, loss, batch, words):
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InputError, match=words):
        trainer_of(model, loss).train_step(*batch)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_loss_that_leaves_some_targets_out_is_given_them():
    class Ignoring(nn.BCEWithLogitsLoss):
        def forward(self, outputs, target):
            return super().forward(outputs[target <= 1], target[target <= 1])

    target = torch.tensor([[0.0], [1.0], [255.0]])
    loss, _ = trainer_of(nn.Linear(3, 1), Ignoring()).train_step(torch.randn(3, 3), target)
    assert 0 < float(loss) < 10


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_lazy_layers_have_to_have_seen_a_batch():
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(
        InputError, match=r"the model's 0\.weight has no shape yet, .*: call the model with a batch once"
    ):
        trainer_of(model, F.mse_loss)
    model(torch.ones(1, 3))
    assert trainer_of(model, F.mse_loss).train_step(torch.randn(5, 3), torch.rand(5, 2)).loss > 0


def test_a_target_can_be_named():
    class Swapped(nn.Linear):
        def forward(self, x, other):
            return super().forward(x + other)

    model = Swapped(3, 2)
    batch = torch.randn(4, 3), torch.rand(4, 2), torch.randn(4, 3)
    loss = trainer_of(model, F.mse_loss, target=1).train_step(*batch).loss
    assert loss > 0
    with pytest.raises(InputError, match="target=5 is not one of the batch's 3 values"):
        trainer_of(model, F.mse_loss, target=5).train_step(*batch)


def test_a_step_adds_few_calls_to_those_of_the_plain_loop():
    """Counted, not timed: what a busy machine can't change. A step of a small model is as long as its calls."""
    model, (x, y) = regressor(), number_batch(torch.Generator())
    optimizer = sgd(model)

    def plain():
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    ours = regressor()
    trainer = HybridPrecisionTrainer(ours, sgd(ours), loss=F.mse_loss, device="cpu")

    def calls(step):
        for _ in range(5):
            step()
        counted = cProfile.Profile()
        counted.enable()
        for _ in range(10):
            step()
        counted.disable()
        return pstats.Stats(counted).total_calls / 10

    assert calls(lambda: trainer.train_step(x, y)) - calls(plain) <= 70
