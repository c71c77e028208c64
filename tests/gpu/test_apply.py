"""Settings upon a script, where only a GPU can tell: graphs that are gone back through again, copies, streams."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fulltilt.launch.apply.graphed import Graphed
from fulltilt.launch.apply.places import Places

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda", 0)


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, given: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.relu(self.body(given))
        return self.left(hidden), self.right(hidden)


def twins() -> tuple[Heads, Heads, Graphed, list[Tensor]]:
    torch.manual_seed(0)
    plain, net = Heads().to(DEVICE), Heads().to(DEVICE)
    net.load_state_dict(plain.state_dict())
    batches = list(torch.randn(2, 16, 8, device=DEVICE))
    return plain, net, Graphed(net, net, (batches[0],), {}, device=DEVICE), batches


def assert_same(one: nn.Module, other: nn.Module) -> None:
    for (name, weight), known in zip(one.named_parameters(), other.parameters(), strict=True):
        assert (weight.grad is None) == (known.grad is None), name
        if weight.grad is not None:
            torch.testing.assert_close(weight.grad, known.grad, rtol=1e-5, atol=1e-6)


def test_a_graph_that_is_kept_may_be_gone_back_through_after_another_call() -> None:
    plain, net, graph, batches = twins()
    for one in (plain, net):

        def call(batch: Tensor, one: Heads = one) -> Tensor:
            replays = one is net and graph.fits(net, (batch,), {})
            left, _ = graph((batch,), {}) if replays else one(batch)
            return left.square().sum()

        first = call(batches[0])
        first.backward(retain_graph=True)
        (first + call(batches[1])).backward()
    assert_same(plain, net)


def test_weights_behind_outputs_that_nobody_goes_back_from_have_no_gradients() -> None:
    plain, net, graph, batches = twins()
    for at in (0, 1, 0):
        for one, output in ((plain, plain(batches[0])), (net, graph((batches[0],), {}))):
            one.zero_grad()
            output[at].square().sum().backward()
        assert_same(plain, net)


def test_a_hook_on_a_weight_that_comes_after_the_capture_sees_its_gradient_once() -> None:
    plain, net, graph, batches = twins()
    for one, call in ((plain, plain), (net, lambda given: graph((given,), {}))):
        one.body.weight.register_hook(lambda grad: grad / 2)
        sum(output.square().sum() for output in call(batches[0])).backward()
    assert_same(plain, net)


def test_pinned_batches_count_as_new() -> None:
    """Else no copy of theirs would go without waiting."""
    loader: Any = DataLoader(TensorDataset(torch.randn(32, 3)), batch_size=8, pin_memory=True, num_workers=1)
    count = 0
    for (batch,) in loader:
        assert batch.is_pinned()
        assert batch._version == 0
        count += 1
    assert count == 4


def test_a_prefetcher_of_the_scripts_own_is_noticed() -> None:
    torch.zeros(1, device=DEVICE)
    stream: Any = torch.cuda.Stream()
    for beside, expected in ((True, (None,)), (False, (DEVICE,))):
        places = Places()
        for _ in range(3):  # as many as it learns from
            (batch,) = places.hand_out([torch.ones(4).pin_memory()])
            with torch.cuda.stream(stream if beside else torch.cuda.current_stream()):
                batch.to(DEVICE, non_blocking=True)
        places.conclude()
        assert places.devices == expected
