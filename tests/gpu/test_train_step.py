"""The step on a real GPU: graphs and compiled steps compute what plain ones do, nothing waits, memory may run out."""

from __future__ import annotations

import copy
import gc
import random
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fulltilt.errors import InputError
from fulltilt.train import HybridPrecisionTrainer
from fulltilt.train.step.choose import Wishes, settings_of
from fulltilt.train.step.micro import MicroSize
from fulltilt.train.step.trials import Trials

pytestmark = pytest.mark.gpu

OFF = {"compile": False, "cuda_graph": False, "channels_last": False}
GRAPH = {"precision": "fp32", "compile": False, "cuda_graph": True}


def windows():
    return nn.Sequential(
        nn.Conv1d(24, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 10)
    )


def images():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2),
        nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


def window_batches(count, size=32):
    draw = torch.Generator("cuda").manual_seed(1)
    teacher = torch.randn(24, 10, generator=draw, device="cuda")
    found = []
    for _ in range(count):
        x = torch.randn(size, 24, 16, generator=draw, device="cuda")
        found.append((x, (x.mean(2) @ teacher).argmax(1)))
    return found


def image_batches(count, size=16):
    draw = torch.Generator("cuda").manual_seed(1)
    x = torch.randn(size, 3, 32, 32, generator=draw, device="cuda")
    y = torch.randint(0, 10, (size,), generator=draw, device="cuda")
    return [(x, y)] * count


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3)


def make(model, optimizer=sgd, **more):
    torch.manual_seed(0)
    built = model()
    return HybridPrecisionTrainer(built, optimizer(built.parameters()), device="cuda", **more)


def train(trainer, batches):
    return torch.stack([trainer.train_step(*batch).loss for batch in batches])


@contextmanager
def no_waiting():
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


# --- the same losses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [sgd, adam])
@pytest.mark.parametrize("more", [{}, {"clip_norm": 0.5, "ema_decay": 0.99}])
def test_a_graph_computes_what_the_plain_step_does(optimizer, more):
    batches = window_batches(60)
    plain = make(windows, optimizer, precision="fp32", **OFF, **more)
    graphed = make(windows, optimizer, **GRAPH, **more)
    expected, found = train(plain, batches), train(graphed, batches)
    assert graphed.plan["cuda_graph"].value is True, graphed.plan["cuda_graph"].reason
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert expected[-5:].mean() < expected[:5].mean()
    for a, b in zip(graphed.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-3)
    if "ema_decay" in more:
        for a, b in zip(graphed.ema.averages, plain.ema.averages, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("optimizer", [sgd, adam])
def test_a_scheduler_acts_on_a_graph(optimizer):
    batches = window_batches(40)
    losses = []
    for more in (OFF | {"precision": "fp32"}, GRAPH):
        trainer = make(windows, optimizer, **more)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(trainer.optimizers[0], 40)
        found = []
        for batch in batches:
            found.append(trainer.train_step(*batch).loss)
            scheduler.step()
            assert isinstance(trainer.optimizers[0].param_groups[0]["lr"], float)
        losses.append(torch.stack(found))
    assert trainer.plan["cuda_graph"].value is True
    torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-3)


def test_a_short_last_batch_runs_beside_the_graph_on_the_same_state():
    batches = window_batches(10)
    batches = [*batches, tuple(part[:7] for part in batches[0]), *batches, tuple(part[:5] for part in batches[1])] * 2
    plain = train(make(windows, adam, precision="fp32", **OFF), batches)
    graphed = make(windows, adam, **GRAPH)
    torch.testing.assert_close(train(graphed, batches), plain, rtol=1e-3, atol=1e-3)
    assert graphed._graph is not None


def test_what_a_replay_gave_out_is_not_overwritten_by_the_next():
    trainer = make(windows, **GRAPH)
    batches = window_batches(8)
    results, values = [], []
    for batch in batches:
        results.append(trainer.train_step(*batch))
        values.append((float(results[-1].loss), results[-1].outputs.clone()))
    for result, (loss, outputs) in zip(results, values, strict=True):
        assert float(result.loss) == loss
        assert torch.equal(result.outputs, outputs)
    assert len({loss for loss, _ in values}) == 8


@pytest.mark.parametrize("optimizer", [sgd, adam])
def test_a_momentum_that_is_scheduled_leaves_forward_and_backward_in_the_graph(optimizer):
    batches = window_batches(60)
    losses = []
    for more in (OFF | {"precision": "fp32"}, GRAPH):
        trainer = make(windows, optimizer, clip_norm=1.0, **more)
        schedule = torch.optim.lr_scheduler.OneCycleLR(trainer.optimizers[0], max_lr=1e-3, total_steps=200)
        found = []
        for batch in batches:
            found.append(trainer.train_step(*batch).loss)
            schedule.step()
        losses.append(torch.stack(found))
    torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-3)
    assert trainer._graph is not None
    assert "change from step to step" in trainer.plan["cuda_graph"].reason
    replays, replay = [], trainer._graph.graph.replay
    trainer._graph.graph = SimpleNamespace(replay=lambda: replays.append(replay()))
    with no_waiting():
        for batch in batches[:5]:
            trainer.train_step(*batch)
            schedule.step()
    assert len(replays) == 5


def test_an_optimizer_without_a_fused_form_leaves_forward_and_backward_in_the_graph():
    batches = window_batches(40)

    def rmsprop(parameters):
        return torch.optim.RMSprop(parameters, lr=1e-4)

    plain, graphed = make(windows, rmsprop, precision="fp32", **OFF), make(windows, rmsprop, **GRAPH)
    torch.testing.assert_close(train(graphed, batches), train(plain, batches), rtol=1e-3, atol=1e-3)
    assert graphed._graph is not None
    assert "RMSprop has no fused form" in graphed.plan["cuda_graph"].reason


class Zeroing(torch.optim.RMSprop):
    """Leaves zeros where others leave no gradients."""

    def zero_grad(self, set_to_none=True):
        super().zero_grad(set_to_none=False)


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.RMSprop, Zeroing])
def test_gradients_that_stay_from_step_to_step_are_added_to_by_a_graph(optimizer):
    """A backbone that is neither trained nor frozen: its gradients add up, and count for clipping."""
    batches = window_batches(20)
    found = []
    for more in (OFF | {"precision": "fp32"}, GRAPH):
        trainer = make(windows, lambda ours: optimizer(list(ours)[-2:], lr=1e-3), clip_norm=0.5, **more)
        losses = [train(trainer, batches)]
        others = [torch.zeros(32, 24, 3, device="cuda") for _ in range(64)]  # where a gradient that was freed has been
        trainer.model.zero_grad()
        losses.append(train(trainer, batches))
        assert not any(bool(other.any()) for other in others)
        found.append(torch.cat([*losses, trainer.model[0].weight.grad.flatten()]))
    assert trainer._graph is not None, trainer.plan["cuda_graph"].reason
    torch.testing.assert_close(*found, rtol=1e-2, atol=1e-3)


def test_options_that_a_graph_has_baked_in_are_not_passed_over():
    """Momentum changed once, weights frozen half-way: what the graph has is no longer used."""
    batches = window_batches(30)
    losses = []
    for more in (OFF | {"precision": "fp32"}, GRAPH):
        trainer = make(windows, **more)
        found = []
        for index, batch in enumerate(batches):
            trainer.optimizers[0].param_groups[0]["momentum"] = 0.9 if index < 15 else 0.5
            trainer.model[0].weight.requires_grad_(index < 22)
            found.append(trainer.train_step(*batch).loss)
        losses.append(torch.stack(found))
    torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-3)


def test_a_loaded_state_is_what_the_graph_goes_on_with():
    batches = window_batches(30)
    trainer = make(windows, adam, **GRAPH)
    train(trainer, batches[:10])
    saved = copy.deepcopy((trainer.model.state_dict(), trainer.state_dict()))
    expected = train(trainer, batches[10:])
    trainer.model.load_state_dict(saved[0])
    trainer.load_state_dict(saved[1])
    torch.testing.assert_close(train(trainer, batches[10:]), expected, rtol=1e-4, atol=1e-4)
    assert trainer._graph is not None


def test_dropout_in_a_graph_draws_anew_at_every_replay():
    trainer = make(lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(384, 10)), **GRAPH)
    trainer.optimizers[0].param_groups[0]["lr"] = 0.0
    (batch,) = window_batches(1)
    losses = train(trainer, [batch] * 20)
    assert trainer._graph is not None
    assert len(losses[5:].unique()) == 15


def test_a_model_that_draws_on_the_host_is_not_captured():
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(384, 10)

        def forward(self, x):
            y = self.layer(x.flatten(1))
            return y * 2 if random.random() < 0.5 else y

    trainer = make(Deep, **GRAPH)
    train(trainer, window_batches(4))
    assert trainer.plan["cuda_graph"].value is False
    assert "draws random numbers on the host" in trainer.plan["cuda_graph"].reason


def test_a_model_that_waits_is_not_captured_and_draws_on():
    class Waiting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.drop = nn.Linear(384, 10), nn.Dropout(0.5)

        def forward(self, x):
            y = self.drop(self.layer(x.flatten(1)))
            return y / 2 if y.abs().max().item() > 1e6 else y

    trainer = make(Waiting, **GRAPH)
    losses = train(trainer, window_batches(6))
    assert trainer.plan["cuda_graph"].value is False
    assert "the step waits for the device" in trainer.plan["cuda_graph"].reason
    assert losses.isfinite().all()


def test_all_at_auto_trains_as_the_plain_loop_does():
    """Within what two plain runs in two precisions are apart."""
    batches = image_batches(60)
    plain = train(make(images, precision="fp32", **OFF), batches)
    trainer = make(images)
    found = train(trainer, batches)
    assert len(trainer.plan) == 6
    assert (found[-10:] - plain[-10:]).abs().mean() < 0.1 * plain[0]
    assert found[-1] < 0.7 * found[0]


def test_a_compiled_step_takes_a_short_batch_too():
    batches = image_batches(6)
    batches = [*batches, tuple(part[:7] for part in batches[0]), *batches]
    trainer = make(images, precision="fp32", compile=True, cuda_graph=False)
    plain = train(make(images, precision="fp32", **OFF), batches)
    torch.testing.assert_close(train(trainer, batches), plain, rtol=2e-2, atol=2e-2)
    assert trainer.plan["compile"].value is True, trainer.plan["compile"].reason


# --- nothing waits, nothing is left behind ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more",
    [
        OFF | {"precision": "bf16"},
        OFF | {"precision": "bf16", "channels_last": True, "clip_norm": 1.0, "ema_decay": 0.9},
        OFF | {"precision": "fp16", "clip_norm": 1.0},
        OFF | {"precision": "fp32", "accumulate": 2},
        {"precision": "bf16", "compile": False, "cuda_graph": True, "clip_norm": 1.0},
    ],
)
@pytest.mark.parametrize("optimizer", [sgd, adam])
def test_a_step_never_waits(more, optimizer):
    trainer = make(images, optimizer, **more)
    batches = image_batches(8)
    train(trainer, batches)
    trainer.get_performance_stats()
    if more["cuda_graph"]:
        assert trainer._graph is not None, trainer.plan["cuda_graph"].reason
    with no_waiting():
        for batch in batches:
            trainer.note_wait(0.0)
            trainer.train_step(*batch)
            trainer.get_performance_stats()


@pytest.mark.parametrize("optimizer", [sgd, adam])
def test_trials_leave_weights_state_and_generators_bit_identical(optimizer):
    trainer = make(images, optimizer, ema_decay=0.9, **OFF)
    train(trainer, image_batches(3))
    torch.cuda.synchronize()

    def everything():
        state = trainer.state_dict()
        tensors = [*trainer.model.state_dict().values(), *state["ema"].values()]
        for one in state["optimizers"]:
            tensors += [v for s in one["state"].values() for v in s.values() if isinstance(v, torch.Tensor)]
        return [t.detach().cpu().clone() for t in tensors] + [torch.cuda.get_rng_state(), torch.get_rng_state()]

    before = everything()
    plan = Trials(trainer._engine, image_batches(1)[0], 1).run(Wishes(compile=False), trainer._facts())
    assert settings_of(plan) == trainer._engine.settings
    after = everything()
    assert len(before) == len(after)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_graph_has_its_images_in_the_layout_that_was_chosen():
    """Both were tried, and what the other one had is gone."""
    trainer = make(images, precision="fp32", compile=False, cuda_graph=True)
    train(trainer, image_batches(4))
    assert trainer._graph is not None, trainer.plan["cuda_graph"].reason
    static = trainer._graph._static[0]
    assert static.is_contiguous(memory_format=torch.channels_last) is trainer.plan["channels_last"].value


def test_figures_have_the_gpu_in_them():
    trainer = make(images, precision="bf16", **OFF)
    batches = [tuple(part.cpu().pin_memory() for part in batch) for batch in image_batches(40)]
    train(trainer, batches)
    torch.cuda.synchronize()
    stats = trainer.get_performance_stats()
    assert {"gpu_utilization", "avg_gpu_time", "cpu_ratio", "copy_seconds", "gpu_memory_bytes"} <= set(stats)
    assert 0 < stats["gpu_utilization"] <= 100
    assert 0 < stats["avg_gpu_time"] < 1


# --- what goes wrong ------------------------------------------------------------------------------------------------


def test_labels_out_of_range_are_found_before_the_device_asserts():
    trainer = make(windows)
    ((x, y),) = window_batches(1)
    with pytest.raises(InputError, match="labels out of range: found 10"):
        trainer.train_step(x, torch.full_like(y, 10))
    assert float(trainer.train_step(x, y).loss) > 0, "the device still works"
    with pytest.raises(InputError, match="labels out of range: found 11"):
        trainer.train_step(x.cpu(), torch.full_like(y, 11).cpu())


def test_a_model_on_another_device_than_asked_for_is_refused():
    model = windows().cuda()
    with pytest.raises(InputError, match="the model is on cuda:0, but device='cpu'"):
        HybridPrecisionTrainer(model, sgd(model.parameters()), device="cpu")
    model = windows()
    optimizer = adam(model.parameters())
    model(torch.randn(2, 24, 16)).sum().backward()
    optimizer.step()
    trainer = HybridPrecisionTrainer(model, optimizer, **OFF)
    assert trainer.device == torch.device("cuda", 0)
    assert torch.isfinite(train(trainer, window_batches(3))).all()


def test_running_out_of_memory_for_real_is_survived_with_the_same_losses():
    def wide():
        return nn.Sequential(nn.Linear(64, 8192), nn.ReLU(), nn.Linear(8192, 8192), nn.ReLU(), nn.Linear(8192, 10))

    draw = torch.Generator("cuda").manual_seed(0)
    batches = [
        (
            torch.randn(16384, 64, generator=draw, device="cuda"),
            torch.randint(0, 10, (16384,), generator=draw, device="cuda"),
        )
        for _ in range(6)
    ]
    small = lambda parameters: torch.optim.SGD(parameters, lr=1e-3)  # noqa: E731
    expected = train(make(wide, small, precision="fp32", fused=False, **OFF), batches)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    trainer = make(wide, small, precision="fp32", fused=False, **OFF)
    trainer._micro.micro = MicroSize(1000)
    torch.cuda.synchronize()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 1.2e9) / total)
    try:
        found = train(trainer, batches)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert trainer._micro.micro.size is not None, "there was enough memory: the test shows nothing"
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_regression_and_masks_train_in_every_precision():
    for precision in ("bf16", "fp16", "tf32", "fp32"):
        torch.manual_seed(0)
        model = nn.Conv2d(3, 1, 3, padding=1)
        trainer = HybridPrecisionTrainer(model, adam(model.parameters()), device="cuda", precision=precision, **OFF)
        x = torch.randn(8, 3, 32, 32, device="cuda")
        masks = (x[:, :1] > 0).float()
        losses = train(trainer, [(x, masks)] * 30)
        assert losses[-1] < losses[0], precision
        expected = F.binary_cross_entropy_with_logits(trainer.eval_step(x, masks).outputs.float(), masks)
        torch.testing.assert_close(trainer.eval_step(x, masks).loss, expected, rtol=1e-2, atol=1e-2)


def test_parts_kept_in_fp32_are_fp32_to_the_last_bits():
    """TF32 has 10 bits of mantissa, fp32 23: forward and backward of such a part come out as without any of it."""

    class Split(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(64, 64), nn.Linear(64, 10)

        def forward(self, x):
            return self.head(self.body(x))

    torch.set_float32_matmul_precision("high")  # allowed for the whole process
    trainer = make(Split, precision="bf16", keep_fp32=["head"], **OFF)
    seen = {}
    trainer.model.head.register_forward_hook(lambda _, inputs, out: seen.update(x=inputs[0].detach(), out=out.detach()))
    seen_grad = []
    trainer.model.head.weight.register_hook(lambda grad: seen_grad.append(grad.detach().clone()))
    weight, bias = (p.detach().double().clone() for p in trainer.model.head.parameters())
    x, y = torch.randn(256, 64, device="cuda"), torch.randint(0, 10, (256,), device="cuda")
    trainer.train_step(x, y)
    exact = seen["x"].double() @ weight.T + bias
    assert seen["out"].dtype == torch.float32
    assert float((seen["out"].double() - exact).abs().max() / exact.abs().max()) < 1e-6
    logits = exact.clone().requires_grad_()
    F.cross_entropy(logits, y).backward()
    expected = logits.grad.T @ seen["x"].double()
    assert float((seen_grad[0].double() - expected).abs().max() / expected.abs().max()) < 1e-5


def test_the_memory_of_trials_is_not_counted_as_the_steps(monkeypatch):
    """Something large is held while settings are tried, and freed before the next step."""
    run = Trials.run

    def heavy(self, *args):
        plan = run(self, *args)
        torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        return plan

    monkeypatch.setattr(Trials, "run", heavy)
    gc.collect()  # what tests before this one have left is torch's to hold, too
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved()
    trainer = make(images)
    torch.cuda.reset_peak_memory_stats()
    train(trainer, image_batches(6))
    assert trainer.get_performance_stats()["gpu_memory_bytes"] < held + (1 << 29)


def test_a_batch_larger_than_the_room_left_is_sent_in_pieces():
    torch.cuda.empty_cache()
    trainer = make(windows, precision="fp32", **OFF)
    x, y = torch.randn(4096, 24, 1024), torch.randint(0, 10, (4096,))  # 403 MB
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (200 << 20)) / total)
    try:
        loss = float(trainer.train_step(x, y).loss)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert trainer._micro.micro.size is not None
    with torch.no_grad():
        torch.manual_seed(0)
        expected = float(F.cross_entropy(windows()(x[:512]), y[:512]))
    assert loss == pytest.approx(expected, rel=0.05)
