"""The setting `graphs` as it is put upon a model: when one is recorded, and when the model runs as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.launch.apply.test_graphed import Net, Tape, twins
from torch import Tensor, nn

from fulltilt.launch.apply import graphed
from fulltilt.launch.apply.model import _Caller, _Known, _Wanted

WANTED = _Wanted(channels_last=False, autocast=None, compile=None, graphs=True, nudge=0.0)


class OnCpu(_Caller):
    def _prepared(self, module: Any) -> _Known | None:
        known = super()._prepared(module)
        if known is not None:
            known.makes_graphs = True
            self.known = known
        return known


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes that graphs are made for; tapes stand in for them."""
    made: list[tuple[int, ...]] = []

    class Counted(graphed.Graphed):
        def __init__(self, module: Any, call: Any, args: Any, kwargs: Any, *, device: Any) -> None:
            super().__init__(module, call, args, kwargs, device=device, tape=Tape)
            made.append(tuple(args[0].shape))

    monkeypatch.setattr(graphed, "Graphed", Counted)
    return made


def step(call: Any, net: Net, images: Tensor) -> Tensor:
    output = call(images)["logits"]
    loss = output.square().sum()
    net.zero_grad()
    loss.backward()
    with torch.no_grad():
        for weight in net.parameters():
            if weight.grad is not None:
                weight.sub_(0.01 * weight.grad)
    return loss.detach()


def test_training_is_the_same_with_short_batches_evaluations_and_layers_that_are_frozen(
    recorded: list[tuple[int, ...]],
) -> None:
    plain, net = twins()
    notes: list[str] = []
    caller = OnCpu(WANTED, notes.append, nn.Module.__call__)

    def call(images: Tensor) -> Any:
        return caller(net, (images,), {})

    for at in range(40):
        images = torch.randn(3 if at == 5 else 5, 3, 6, 6)
        if at == 10:
            for one in (plain, net):
                one.eval()
                with torch.no_grad():
                    one(images) if one is plain else call(images)
                one.train()
        if at == 15:
            for one in (plain, net):
                one.conv.weight.requires_grad_(False)
        torch.testing.assert_close(step(call, net, images), step(plain, plain, images), rtol=0, atol=0)
        if at == 14:
            assert recorded == [(5, 3, 6, 6)], "once, and not for a batch that comes once"
    assert recorded == [(5, 3, 6, 6)] * 2, "anew, some steps after a layer was frozen"
    assert not notes
    for weight, known in zip(net.parameters(), plain.parameters(), strict=True):
        assert torch.equal(weight, known)


def test_a_model_that_can_have_none_runs_as_it_is(recorded: list[tuple[int, ...]]) -> None:
    _, net = twins()
    net.head.register_forward_hook(lambda *_: None)
    notes: list[str] = []
    caller = OnCpu(WANTED, notes.append, nn.Module.__call__)
    for _ in range(60):
        step(lambda images: caller(net, (images,), {}), net, torch.randn(5, 3, 6, 6))
    assert not recorded
    assert set(notes) == {"graphs: Net is left as it is (Linear has hooks, which a graph would leave out)"}
    assert len(notes) <= 3, "it is not tried for ever"
