"""CUDA graphs without a GPU: what stands against one, and all of it on a device that pretends."""

from __future__ import annotations

import copy
import gc
import logging
import random
import threading
import warnings
import weakref
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from fulltilt.errors import UnavailableError
from fulltilt.train import HybridPrecisionTrainer
from fulltilt.train.step.graphed import MOVING, GraphedStep, _Results, why_not_graphed, why_update_outside
from fulltilt.train.step.optim import fixed_options, rates
from fulltilt.train.step.snapshot import Snapshot


def engine_of(optimizer=torch.optim.SGD, pretend="cuda", fused=True, precision="auto", **more):
    model = nn.Linear(3, 2)
    made = optimizer(model.parameters(), lr=0.1, **more)
    trainer = HybridPrecisionTrainer(model, made, device="cpu", fused=fused, precision=precision)
    trainer._engine.device = torch.device(pretend)
    return trainer._engine


def test_a_plain_model_and_optimizer_can_be_captured():
    for engine in (engine_of(), engine_of(torch.optim.AdamW)):
        assert why_not_graphed(engine) is why_update_outside(engine) is None


def test_what_stands_against_a_graph_is_named():
    assert why_not_graphed(engine_of(pretend="cpu")) == "CUDA graphs need an NVIDIA GPU"
    engine = engine_of()
    engine.model.register_forward_hook(lambda *_: None)
    assert why_not_graphed(engine) == "the model has hooks (on itself), which a graph would leave out"
    for register in (torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook):
        engine = engine_of()
        handle = register(engine.model.bias, lambda _: None)
        assert why_not_graphed(engine) == "the model has hooks (on bias), which a graph would leave out"
        handle.remove()
        assert why_not_graphed(engine) is None


def test_what_stands_against_an_update_in_the_graph_is_named():
    assert why_update_outside(engine_of(torch.optim.RMSprop)) == "RMSprop has no fused form"
    assert why_update_outside(engine_of(fused=False)) == "the optimizer is not fused"
    dampened = engine_of(precision="fp16", momentum=0.9, dampening=0.1)
    assert not dampened.settings.fused
    assert why_update_outside(dampened) == "SGD has dampening, which each weight's first step leaves out"
    engine = engine_of()
    engine.optimizers[0].add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})
    assert why_update_outside(engine) == "the optimizer is not fused", "not all of it"
    engine = engine_of()
    engine.optimizers[0].register_step_post_hook(lambda *_: None)
    assert why_update_outside(engine) == "the optimizer has step hooks"
    assert why_not_graphed(engine) is None, "the rest can be captured"
    engine = engine_of()
    engine.optimizers[0].param_groups[0]["lr"] = torch.tensor(0.1)
    assert why_update_outside(engine) == "a learning rate is a tensor already"


def test_schedulers_move_the_rate_and_nothing_that_is_baked_in():
    engine = engine_of(momentum=0.9)
    before = fixed_options(engine.optimizers), rates(engine.optimizers)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(engine.optimizers[0], 0.5)
    engine.optimizers[0].step()
    scheduler.step()
    assert fixed_options(engine.optimizers) == before[0]
    assert (before[1], rates(engine.optimizers)) == ([0.1], [0.05])
    engine.optimizers[0].param_groups[0]["momentum"] = 0.8
    assert fixed_options(engine.optimizers) != before[0]


@pytest.mark.parametrize(
    "outputs",
    [
        torch.randn(5, 3, dtype=torch.bfloat16),
        (torch.randn(2, 7), {"mask": torch.randint(0, 9, (3,)), "flag": torch.tensor([True, False, True])}),
        torch.randn(2, 4, 6, 6).contiguous(memory_format=torch.channels_last),
    ],
)
def test_results_of_any_shape_are_handed_out_as_copies(outputs):
    loss = torch.tensor(1.25)
    results = _Results(loss, outputs)
    first, second = results.taken(), results.taken()
    flat = torch.utils._pytree.tree_leaves((loss, outputs))
    for taken in (first, second):
        found = torch.utils._pytree.tree_leaves(taken)
        assert [leaf.dtype for leaf in found] == [leaf.dtype for leaf in flat]
        assert all(torch.equal(a, b) for a, b in zip(found, flat, strict=True))
    first[0].fill_(9.0)
    assert second[0] == 1.25


def test_copies_of_many_steps_are_all_kept():
    loss, outputs = torch.tensor(0.0), torch.zeros(2, 3, dtype=torch.bfloat16)
    results = _Results(loss, outputs)
    taken = []
    for step in range(200):
        for leaf in results.leaves:
            leaf.fill_(step)
        taken.append(results.taken())
    assert [float(loss) for loss, _ in taken] == list(range(200))
    assert all(bool((outputs == step).all()) for step, (_, outputs) in enumerate(taken))
    assert all(outputs.is_contiguous() for _, outputs in taken)


def test_results_can_be_gone_backward_through_after_later_steps():
    results = _Results(torch.tensor(1.0), torch.ones(2, 3))
    weight = torch.ones(3, requires_grad=True)
    _, outputs = results.taken()
    more = (outputs * weight).sum()
    results.taken()
    more.backward()
    assert weight.grad.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    "outputs",
    [
        None,
        (),
        torch.zeros(0, 4),
        (torch.zeros(3, 0), torch.ones(2, dtype=torch.complex128), torch.zeros(0)),
        [torch.ones(3, dtype=torch.float8_e4m3fn), "words", torch.ones((), dtype=torch.bool)],
    ],
)
def test_results_without_values_or_of_rare_types(outputs):
    loss, found = _Results(torch.tensor(1.25), outputs).taken()
    assert float(loss) == 1.25
    assert str(found) == str(outputs)


def test_a_kept_loss_does_not_keep_large_outputs():
    results = _Results(torch.tensor(1.0), torch.randn(64, 64))
    loss, outputs = results.taken()
    assert loss.untyped_storage().nbytes() <= 64
    assert outputs.data_ptr() != results.taken()[1].data_ptr()
    loss, _ = _Results(torch.tensor(1.0), torch.randn(31, 32)).taken()  # small enough to be cut with others
    assert loss.untyped_storage().nbytes() <= 1 << 16


# --- the whole of it, on a device that only pretends --------------------------------------------------------------


class Graph:
    """Repeats on the CPU what a CUDA graph would: the captured step on static inputs, with rates from their tensors."""

    replays = 0

    def replay(self):
        Graph.replays += 1
        step, inputs, target = self.captured
        there, standing = [weight.grad for weight in step._weights], dict(step._standing)
        for weight in step._weights:
            weight.grad = standing.get(weight)
        self._repeat(step, inputs, target)
        for weight, grad in zip(step._weights, there, strict=True):
            weight.grad = grad  # a graph knows of memory alone, not of what is somebody's gradient by now

    def _repeat(self, step, inputs, target):
        loss, outputs = step._engine.forward(inputs, target)
        for leaf, view in zip([loss, outputs], step._results.leaves, strict=True):
            view.copy_(leaf.detach())
        step._engine.backward(loss)
        if step.outside is not None:  # a graph leaves its gradients where it was captured with them
            for parameter, grad in step._grads:
                grad.copy_(parameter.grad)
            return
        rates_before = rates(step._engine.optimizers)
        with step._with_device_rates():
            step._engine.apply()
        assert rates(step._engine.optimizers) == rates_before


class Stream:
    def wait_stream(self, _):
        pass


@pytest.fixture
def pretended(monkeypatch):
    """Streams that do nothing, and a capture that runs the step once and takes it back, as a real one never runs it."""
    capture = GraphedStep._capture

    def captured(self, inputs, target, side):
        snapshot = Snapshot(self._engine.model, self._engine.optimizers, torch.device("cpu"), more=self._device_rates)
        capture(self, inputs, target, side)
        snapshot.restore()
        self.graph.captured = (self, inputs, target)

    monkeypatch.setattr(GraphedStep, "_capture", captured)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: Stream())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Stream())
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    mode = ["default"]
    monkeypatch.setattr("fulltilt.measure.heard._asks_torch", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: mode[0])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda to: mode.__setitem__(0, to))
    monkeypatch.setattr("fulltilt.train.step.step.why_not_graphed", lambda _: None)
    monkeypatch.setattr("fulltilt.train.step.trials._BURST_SECONDS", 0.001)
    Graph.replays = 0


def batches(count, size=8):
    draw = torch.Generator().manual_seed(1)
    return [(torch.randn(size, 6, generator=draw), torch.randint(0, 3, (size,), generator=draw)) for _ in range(count)]


def trainer_of(optimizer, **more):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    return HybridPrecisionTrainer(model, optimizer(model.parameters(), lr=0.05), device="cpu", **more)


def momentum(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def train(trainer, todo, each=lambda _: None):
    found = []
    for index, batch in enumerate(todo):
        found.append(trainer.train_step(*batch).loss)
        each(index)
    return torch.stack(found)


@pytest.mark.parametrize("optimizer", [momentum, torch.optim.AdamW])
def test_losses_with_a_schedule_and_a_short_batch_are_those_of_plain_steps(pretended, optimizer):
    todo = [*batches(12), *batches(1, size=5), *batches(12)]
    found = []
    for graph in (False, True):
        trainer = trainer_of(optimizer, cuda_graph=graph, ema_decay=0.9, clip_norm=1.0)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(trainer.optimizers[0], 25)
        found.append(train(trainer, todo, each=lambda _, it=scheduler: it.step()))
        assert type(trainer.optimizers[0].param_groups[0]["lr"]) is float
    assert trainer.plan["cuda_graph"].value is True, trainer.plan["cuda_graph"].reason
    assert trainer.plan["fused"].reason.startswith("the CUDA graph needs it")
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    before = Graph.replays
    train(trainer, todo)
    assert Graph.replays - before == 24


def test_a_graph_whose_state_was_replaced_is_captured_again_for_the_same_shape(pretended):
    trainer = trainer_of(torch.optim.AdamW, cuda_graph=True)
    train(trainer, batches(6))
    graph = trainer._graph
    saved = copy.deepcopy((trainer.model.state_dict(), trainer.state_dict()))
    expected = train(trainer, batches(6))
    trainer.model.load_state_dict(saved[0])
    trainer.load_state_dict(saved[1])
    short = batches(1, size=3)[0]
    with torch.no_grad():
        trainer.eval_step(*short)
    torch.testing.assert_close(train(trainer, batches(6)), expected)
    assert trainer._graph is not None
    assert trainer._graph is not graph
    trainer.load_state_dict(saved[1])
    trainer.train_step(*short)
    assert trainer._graph is None, "not captured for an epoch's last batch"
    trainer.train_step(*batches(1)[0])
    assert trainer._graph is not None


@pytest.mark.parametrize("optimizer", [momentum, torch.optim.AdamW])
def test_a_graph_whose_optimizer_was_loaded_by_itself_is_captured_again(pretended, optimizer):
    found = []
    for graph in (False, True):
        trainer = trainer_of(optimizer, cuda_graph=graph)
        train(trainer, batches(3))
        saved = copy.deepcopy((trainer.model.state_dict(), trainer.optimizers[0].state_dict()))
        losses, before = train(trainer, batches(6)), trainer._graph
        trainer.model.load_state_dict(saved[0])
        trainer.optimizers[0].load_state_dict(saved[1])
        found.append(torch.cat([losses, train(trainer, batches(6))]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert trainer._graph is not before, "it has the addresses of state that is gone"
    assert trainer.plan["cuda_graph"].reason == "asked for"
    assert trainer._graph.outside is None


def test_steps_that_differ_in_what_is_baked_in_run_without_the_graph(pretended):
    trainer = trainer_of(momentum, cuda_graph=True)
    train(trainer, batches(4))
    first, norm, *_ = trainer.model
    for change in (
        lambda on: first.weight.requires_grad_(not on),
        lambda on: norm.train(not on),
    ):
        change(True)
        before = Graph.replays
        train(trainer, batches(3))
        assert Graph.replays == before
        change(False)
        train(trainer, batches(3))
        assert Graph.replays == before + 3


def test_a_model_that_stays_thawed_is_captured_anew(pretended):
    """As in fine-tuning: a part is frozen for some epochs, and then it is not."""
    found = []
    for graph in (False, True):
        trainer = trainer_of(momentum, cuda_graph=graph)
        first = trainer.model[0]
        first.requires_grad_(False)
        losses = [train(trainer, batches(12))]
        first.requires_grad_(True)
        before = Graph.replays
        losses += [train(trainer, batches(40))]
        found.append(torch.cat(losses))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert Graph.replays - before >= 19, "twenty are waited for"
    assert trainer.plan["cuda_graph"].value is True


@pytest.mark.parametrize("optimizer", [momentum, torch.optim.AdamW])
def test_with_a_momentum_that_is_scheduled_the_update_runs_outside_of_the_graph(pretended, optimizer, caplog):
    caplog.set_level(logging.INFO, "fulltilt.train")
    todo = [*batches(12), *batches(1, size=5), *batches(12)]
    found = []
    for graph in (False, True):
        trainer = trainer_of(optimizer, cuda_graph=graph, ema_decay=0.9, clip_norm=1.0)
        schedule = torch.optim.lr_scheduler.OneCycleLR(trainer.optimizers[0], max_lr=0.05, total_steps=60)
        found.append(train(trainer, todo, each=lambda _, it=schedule: it.step()))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert trainer.plan["cuda_graph"].value is True
    assert trainer.plan["cuda_graph"].reason == f"asked for; without the update: {MOVING}"
    said = [line for line in caplog.messages if MOVING in line]
    assert len(said) == 1, "once"
    before = Graph.replays
    train(trainer, todo, each=lambda _: schedule.step())
    assert Graph.replays - before == 24, "all but the short batch"
    trainer.load_state_dict(copy.deepcopy(trainer.state_dict()))
    train(trainer, batches(3))
    assert trainer.plan["cuda_graph"].reason.count(MOVING) == 1


def test_options_that_change_once_in_a_long_while_stay_in_the_graph(pretended, monkeypatch):
    monkeypatch.setattr("fulltilt.train.step.step._STEADY_STEPS", 4)
    found = []
    for graph in (False, True):
        trainer, losses = trainer_of(torch.optim.AdamW, cuda_graph=graph), []
        (group,) = trainer.optimizers[0].param_groups
        for decay in (0.1, 0.3):
            losses.append(train(trainer, batches(8)))
            group["weight_decay"] = decay
        found.append(torch.cat([*losses, train(trainer, batches(4))]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert trainer._graph.outside is None
    assert trainer.plan["cuda_graph"].reason == "asked for"
    group["weight_decay"] = 0.0  # after two replays
    train(trainer, batches(4))
    assert trainer._graph.outside == MOVING


def test_hooks_that_come_later_are_what_the_update_is_outside_for(pretended):
    trainer, seen = trainer_of(torch.optim.AdamW, cuda_graph=True), []
    train(trainer, batches(4))
    handle = trainer.optimizers[0].register_step_post_hook(lambda *_: seen.append(1))
    train(trainer, batches(4))
    assert trainer.plan["cuda_graph"].reason == "asked for; without the update: the optimizer has step hooks"
    handle.remove()
    trainer.load_state_dict(copy.deepcopy(trainer.state_dict()))
    train(trainer, batches(4))
    assert trainer.plan["cuda_graph"].reason == "asked for"


def test_the_memory_of_a_graph_that_is_given_up_is_the_steps(pretended, monkeypatch):
    trainer = trainer_of(momentum, cuda_graph=True)
    train(trainer, batches(4))
    graph, run, there = weakref.ref(trainer._graph), trainer._micro.run, []

    def looks(*batch):
        gc.collect()  # the pretended one is in a circle with its step
        there.append(graph())
        return run(*batch)

    monkeypatch.setattr(trainer._micro, "run", looks)
    trainer.optimizers[0].param_groups[0]["momentum"] = 0.8
    train(trainer, batches(1))
    assert there == [None]


def test_no_graph_is_captured_again_while_batches_are_cut(pretended):
    trainer = trainer_of(torch.optim.AdamW, cuda_graph=True)
    train(trainer, batches(4))
    state = copy.deepcopy(trainer.state_dict())
    trainer.load_state_dict({**state, "micro_size": 4})
    train(trainer, batches(4))
    assert trainer._graph is None
    trainer.load_state_dict(state)
    train(trainer, batches(4))
    assert trainer._graph is not None


def test_an_optimizer_that_has_no_fused_form_updates_outside_of_the_graph(pretended):
    found = []
    for graph in (False, True):
        trainer = trainer_of(torch.optim.RMSprop, cuda_graph=graph)
        found.append(train(trainer, batches(12)))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert trainer.plan["cuda_graph"].value is True
    assert trainer.plan["cuda_graph"].reason == "asked for; without the update: RMSprop has no fused form"
    before = Graph.replays
    train(trainer, batches(6))
    assert Graph.replays - before == 6


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.RMSprop])
def test_gradients_that_no_optimizer_takes_away_add_up_as_in_plain_steps(pretended, optimizer):
    """Only the last layer is trained; the others' gradients count for clipping, until somebody forgets them."""
    found = []
    for graph in (False, True):
        trainer = trainer_of(lambda ours, lr: optimizer(list(ours)[-2:], lr), cuda_graph=graph, clip_norm=0.1)
        first = trainer.model[0]
        losses = [train(trainer, batches(6))]
        kept = first.weight.grad.clone()
        trainer.model.zero_grad()
        losses.append(train(trainer, batches(4)))
        kept += first.weight.grad
        trainer.optimizers[0].add_param_group({"params": list(first.parameters())})
        losses.append(train(trainer, batches(6)))
        found.append(torch.cat([*losses, kept.flatten()]))
    assert trainer._graph is not None, trainer.plan["cuda_graph"].reason
    before = Graph.replays
    train(trainer, batches(3))
    assert Graph.replays == before + 3
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_gradients_that_are_zeroed_instead_of_forgotten(pretended):
    class Zeroing(torch.optim.RMSprop):
        def zero_grad(self, set_to_none=True):
            super().zero_grad(set_to_none=False)

    found = [train(trainer_of(Zeroing, cuda_graph=graph), batches(12)) for graph in (False, True)]
    assert Graph.replays > 0
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.RMSprop])
def test_gradients_of_a_users_own_backward_are_added_to(pretended, optimizer):
    found = []
    for graph in (False, True):
        trainer, losses = trainer_of(optimizer, cuda_graph=graph), []
        for index, batch in enumerate(batches(12)):
            if index in (5, 8):
                sum(weight.square().sum() for weight in trainer.model.parameters()).backward()
            losses.append(trainer.train_step(*batch).loss)
        found.append(torch.stack(losses))
    assert trainer._graph is not None
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kept_as", [lambda grad: grad, lambda grad: grad.detach()[0]])
def test_gradients_that_a_hook_keeps_are_not_overwritten_by_replays(pretended, kept_as):
    found = []
    for graph in (False, True):
        trainer, kept = trainer_of(torch.optim.AdamW, cuda_graph=graph), []
        weight = trainer.model[0].weight
        trainer.optimizers[0].register_step_pre_hook(lambda *_, of=weight, to=kept: to.append(kept_as(of.grad)))
        train(trainer, batches(8))
        found.append(torch.stack(kept[-4:]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert "keeps gradients" in trainer.plan["cuda_graph"].reason


def test_gradients_that_are_only_looked_at_by_a_hook_may_be_overwritten(pretended):
    trainer, norms = trainer_of(torch.optim.AdamW, cuda_graph=True), []
    weight = trainer.model[0].weight
    trainer.optimizers[0].register_step_pre_hook(lambda *_: norms.append(weight.grad.norm()))
    train(trainer, batches(8))
    assert trainer.plan["cuda_graph"].reason == "asked for; without the update: the optimizer has step hooks"
    assert len({float(norm) for norm in norms[-4:]}) == 4


def test_out_of_memory_in_an_update_outside_of_the_graph_is_told_as_ever(pretended, monkeypatch):
    trainer = trainer_of(torch.optim.RMSprop, cuda_graph=True)
    train(trainer, batches(6))

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(trainer.optimizers[0], "step", full)
    with pytest.raises(UnavailableError, match=r"out of memory in the optimizer's step.*last checkpoint"):
        train(trainer, batches(1))
    assert trainer._graph is not None


class Tempered(nn.CrossEntropyLoss):
    """A loss with a weight of its own, and something that it counts."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, outputs, target):
        self.seen += 1
        return super().forward(outputs * self.scale, target)


@pytest.mark.parametrize("optimizer", [momentum, torch.optim.RMSprop])
def test_weights_of_the_loss_are_trained_in_the_step_and_not_in_its_trials(pretended, optimizer):
    found = []
    for graph in (False, True):
        loss = Tempered()
        trainer = trainer_of(
            lambda ours, lr, it=loss: optimizer([*ours, *it.parameters()], lr), loss=loss, cuda_graph=graph
        )
        losses = train(trainer, batches(12))
        found.append(torch.cat([losses, loss.scale.detach()[None], loss.seen[None]]))
    assert trainer._graph is not None, trainer.plan["cuda_graph"].reason
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_a_model_with_python_in_its_step_is_not_captured(pretended):
    class Counting(nn.Linear):
        seen = 0

        def forward(self, x):
            self.seen = self.seen + 1
            return super().forward(x)

    class Drawing(nn.Linear):
        def forward(self, x):
            return super().forward(x) * (2 if random.random() < 0.5 else 1)

    class Waiting(nn.Linear):
        def forward(self, x):
            if torch.cuda.get_sync_debug_mode() == "warn":
                warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
            return super().forward(x)

    for kind, words in (
        (Counting, "the model changes Counting.seen"),
        (Drawing, "draws random numbers on the host"),
        (Waiting, "the step waits for the device"),
    ):
        model = kind(6, 3)
        trainer = HybridPrecisionTrainer(model, momentum(model.parameters(), lr=0.1), device="cpu", cuda_graph=True)
        train(trainer, batches(3))
        assert trainer.plan["cuda_graph"].value is False
        assert words in trainer.plan["cuda_graph"].reason


def test_waits_of_a_feeds_threads_are_not_the_steps(pretended):
    def feeds():
        if torch.cuda.get_sync_debug_mode() == "warn":
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)

    class Fed(nn.Linear):
        def forward(self, x):
            thread = threading.Thread(target=feeds)
            thread.start()
            thread.join()
            return super().forward(x)

    model = Fed(6, 3)
    trainer = HybridPrecisionTrainer(model, momentum(model.parameters(), lr=0.1), device="cpu", cuda_graph=True)
    train(trainer, batches(3))
    assert trainer.plan["cuda_graph"].value is True, trainer.plan["cuda_graph"].reason


def test_replays_that_give_other_losses_are_not_used(pretended, monkeypatch):
    replay = Graph.replay

    def wrong(self):
        replay(self)
        self.captured[0]._results.leaves[0].add_(1.0)

    monkeypatch.setattr(Graph, "replay", wrong)
    trainer = trainer_of(momentum, cuda_graph=True)
    train(trainer, batches(3))
    assert trainer.plan["cuda_graph"].value is False
    assert "replays give other losses" in trainer.plan["cuda_graph"].reason


def test_a_graph_that_can_not_be_captured_again_is_done_without(pretended, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "fulltilt.train")
    trainer = trainer_of(torch.optim.AdamW, cuda_graph=True)
    train(trainer, batches(6))
    saved = copy.deepcopy((trainer.model.state_dict(), trainer.state_dict()))
    expected = train(trainer, batches(6))
    trainer.model.load_state_dict(saved[0])
    trainer.load_state_dict(saved[1])
    capture = GraphedStep._capture

    def fails(self, inputs, target, side):
        capture(self, inputs, target, side)
        raise torch.OutOfMemoryError("no room for the graph's own memory")

    monkeypatch.setattr(GraphedStep, "_capture", fails)
    caplog.clear()
    torch.testing.assert_close(train(trainer, batches(6)), expected)
    assert trainer._graph is None
    said = "could not be captured: OutOfMemoryError: no room for the graph's own memory"
    assert (trainer.plan["cuda_graph"].value, trainer.plan["cuda_graph"].reason) == (False, said)
    assert caplog.messages == [f"cuda_graph: False ({said})"], "once, and nothing else anew"
