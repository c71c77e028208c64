"""What of a CUDA graph can be seen without one: what stands against it, and how its results are handed out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fulltilt.train import HybridPrecisionTrainer
from fulltilt.train.graphed import _Results, why_not_graphed
from fulltilt.train.optim import fixed_options, rates


def engine_of(optimizer=torch.optim.SGD, pretend="cuda", **more):
    model = nn.Linear(3, 2)
    trainer = HybridPrecisionTrainer(model, optimizer(model.parameters(), lr=0.1, **more), device="cpu")
    trainer._engine.device = torch.device(pretend)
    return trainer._engine


def test_a_plain_model_and_optimizer_can_be_captured():
    assert why_not_graphed(engine_of()) is None
    assert why_not_graphed(engine_of(torch.optim.AdamW)) is None


def test_what_stands_against_a_graph_is_named():
    assert why_not_graphed(engine_of(pretend="cpu")) == "CUDA graphs need an NVIDIA GPU"
    assert "RMSprop has no fused form" in why_not_graphed(engine_of(torch.optim.RMSprop))
    engine = engine_of()
    engine.model.register_forward_hook(lambda *_: None)
    assert why_not_graphed(engine) == "the model has hooks (on itself), which a graph would leave out"
    engine = engine_of()
    engine.optimizers[0].register_step_post_hook(lambda *_: None)
    assert "step hooks" in why_not_graphed(engine)
    engine = engine_of()
    engine.optimizers[0].param_groups[0]["lr"] = torch.tensor(0.1)
    assert why_not_graphed(engine) == "a learning rate is a tensor already"


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
