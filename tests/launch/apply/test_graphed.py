"""Graphs of a model's forward and backward: here with a tape that calls again what a graph would launch again."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from fulltilt.launch.apply.graphed import Graphed
from fulltilt.launch.apply.tried import Refused

CPU = torch.device("cpu")


class Tape:
    """Leaves results where they were at first, as a graph does."""

    def __init__(self, stream: Any, pool: Any = None) -> None:
        self.pool = pool

    def record(self, function: Callable[[], list[Tensor]]) -> list[Tensor]:
        self._function, self._left = function, function()
        return self._left

    def replay(self) -> None:
        with torch.enable_grad():  # the function's own, which a graph was captured with
            found = self._function()
        for place, fresh in zip(self._left, found, strict=True):
            place.data.copy_(fresh.detach())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 2)
        self.unused = nn.Linear(2, 2)
        self.scale = 1.0
        self.factors, self.options = [1.0, 1.0], {"power": 1.0, "inner": ({"shift": 0.0},)}
        self.config = SimpleNamespace(gain=1.0, names=["a"], results=object())

    def forward(self, images: Tensor, *, twice: bool = False) -> dict[str, Any]:
        hidden = torch.relu(self.norm(self.conv(images))).mean((2, 3)) * self.scale
        hidden = hidden * 2 if twice else hidden
        return {"logits": self.head(hidden), "top": hidden.argmax(1), "nothing": None}


def twins() -> tuple[Net, Net]:
    torch.manual_seed(0)
    one, other = Net(), Net()
    other.load_state_dict(one.state_dict())
    for net in (one, other):
        net.conv.weight.data = net.conv.weight.data.contiguous(memory_format=torch.channels_last)
    return one, other


def graphed(net: nn.Module, images: Tensor, **kwargs: Any) -> Graphed:
    return Graphed(net, net.__call__, (images,), kwargs, device=CPU, tape=Tape)


def batches(count: int) -> list[Tensor]:
    return list(torch.randn(count, 5, 3, 6, 6))


def grads(net: nn.Module) -> dict[str, Tensor | None]:
    return {name: weight.grad for name, weight in net.named_parameters()}


def assert_same(one: nn.Module, other: nn.Module) -> None:
    for name, grad in grads(one).items():
        known = grads(other)[name]
        assert (grad is None) == (known is None), name
        if grad is not None and known is not None:
            torch.testing.assert_close(grad, known, rtol=0, atol=0)
            assert grad.stride() == known.stride(), name
    for name, buffer in one.named_buffers():
        torch.testing.assert_close(buffer, dict(other.named_buffers())[name], rtol=0, atol=0)


def test_steps_are_those_of_the_module_itself() -> None:
    plain, net = twins()
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9) for one in (plain, net)]
    images = batches(6)
    graph = graphed(net, images[0])
    assert net.norm.num_batches_tracked == 0  # trials leave no trace
    for batch in images:
        assert graph.fits(net, (batch,), {})
        outputs = plain(batch), graph((batch,), {})
        assert outputs[1].keys() == outputs[0].keys()
        assert outputs[1]["nothing"] is None
        assert not outputs[1]["top"].requires_grad
        torch.testing.assert_close(outputs[0]["logits"], outputs[1]["logits"], rtol=0, atol=0)
        for optimizer, output in zip(optimizers, outputs, strict=True):
            optimizer.zero_grad()
            output["logits"].square().sum().backward()
            optimizer.step()
        assert_same(plain, net)
    assert net.norm.num_batches_tracked == len(images)
    assert net.unused.weight.grad is None


def test_gradients_add_up_and_are_the_scripts_to_keep() -> None:
    plain, net = twins()
    images = batches(3)
    graph = graphed(net, images[0])
    kept, known = [], []
    for batch in images:
        for one, output in ((plain, plain(batch)), (net, graph((batch,), {}))):
            output["logits"].square().sum().backward()
            (known if one is plain else kept).append((output["logits"].detach(), one.head.weight.grad))
        kept[-1] = (kept[-1][0], kept[-1][1].clone())  # type: ignore[union-attr]
        known[-1] = (known[-1][0], known[-1][1].clone())  # type: ignore[union-attr]
    assert_same(plain, net)
    torch.testing.assert_close(kept, known, rtol=0, atol=0)
    first = net.head.weight.grad
    assert first is not None
    before = first.clone()
    net.zero_grad()
    graph((images[0],), {})["logits"].sum().backward()
    assert torch.equal(first, before)  # a gradient that the script keeps is not written over


def test_going_back_twice() -> None:
    plain, net = twins()
    (images,) = batches(1)
    graph = graphed(net, images)
    for output in (plain(images), graph((images,), {})):
        loss = output["logits"].square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
    assert_same(plain, net)


def test_a_graph_that_is_kept_may_be_gone_back_through_after_another_call() -> None:
    plain, net = twins()
    images = batches(2)
    graph = graphed(net, images[0])
    for one in (plain, net):

        def call(batch: Tensor, one: Net = one) -> Tensor:
            replays = one is net and graph.fits(net, (batch,), {})
            output = graph((batch,), {}) if replays else one(batch)
            return output["logits"].square().sum()  # type: ignore[no-any-return]

        first = call(images[0])
        first.backward(retain_graph=True)
        (first + call(images[1])).backward()
    assert_same(plain, net)
    del first
    gc.collect()
    assert graph.fits(net, (images[0],), {})


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.left, self.right = nn.Linear(3, 3), nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.body(given)
        return self.left(hidden), self.right(hidden), self.right.weight


def test_weights_behind_outputs_that_nobody_goes_back_from_have_no_gradients() -> None:
    torch.manual_seed(0)
    plain, net = Heads(), Heads()
    net.load_state_dict(plain.state_dict())
    given = torch.randn(4, 3)
    graph = graphed(net, given)
    for at in (0, 1, 2, 0):
        for one, output in ((plain, plain(given)), (net, graph((given,), {}))):
            one.zero_grad()
            output[at].square().sum().backward()
        assert_same(plain, net)


def test_a_call_before_the_last_ones_backward_does_not_fit() -> None:
    _, net = twins()
    images = batches(2)
    graph = graphed(net, images[0])
    pending = graph((images[0],), {})["logits"].sum()
    assert not graph.fits(net, (images[1],), {})
    pending.backward()
    assert graph.fits(net, (images[1],), {})
    dropped = graph((images[0],), {})["logits"].sum()
    assert not graph.fits(net, (images[1],), {})
    del dropped  # nobody can go back any more
    gc.collect()
    assert graph.fits(net, (images[1],), {})


CHANGES: dict[str, Callable[[Net], Any]] = {
    "a list, in place": lambda net: net.factors.__setitem__(1, 2.0),
    "a dictionary, in place": lambda net: net.options.__setitem__("power", 2.0),
    "one within it": lambda net: net.options["inner"][0].__setitem__("shift", 2.0),
    "a configuration": lambda net: setattr(net.config, "gain", 2.0),
    "a list in it": lambda net: net.config.names.__setitem__(0, "b"),
    "frozen": lambda net: net.conv.weight.requires_grad_(False),
    "in another place": lambda net: setattr(net.conv.weight, "data", net.conv.weight.data.clone()),
    "another weight": lambda net: setattr(net.head, "weight", nn.Parameter(torch.zeros(2, 4))),
    "another module": lambda net: setattr(net, "head", nn.Linear(4, 2)),
    "a mode": lambda net: net.norm.eval(),
    "an option": lambda net: setattr(net.norm, "momentum", 0.5),
    "a number": lambda net: setattr(net, "scale", 2.0),
    "a hook": lambda net: net.head.register_forward_hook(lambda *_: None),
    "another buffer": lambda net: setattr(net.norm, "running_mean", torch.ones(4)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_model_that_was_changed_does_not_fit(change: Callable[[Net], Any]) -> None:
    _, net = twins()
    (images,) = batches(1)
    graph = graphed(net, images)
    assert graph.fits(net, (images,), {})
    change(net)
    assert not graph.fits(net, (images,), {})


def test_the_same_number_given_again_fits() -> None:
    _, net = twins()
    (images,) = batches(1)
    graph = graphed(net, images)
    for _ in range(2):
        net.scale = net.factors[0] = net.config.gain = float("1.0")
        net.config.results = object()  # no option
        assert graph.fits(net, (images,), {})
    net.scale = 1.5
    assert not graph.fits(net, (images,), {})


def test_other_arguments_do_not_fit() -> None:
    _, net = twins()
    (images,) = batches(1)
    graph = graphed(net, images, twice=True)
    assert graph.fits(net, (images,), {"twice": True})
    assert not graph.fits(net, (images,), {"twice": False})
    assert not graph.fits(net, (images,), {})
    assert not graph.fits(net, (images.requires_grad_(),), {"twice": True})


class Odd(nn.Module):
    """Its forward does what it is told."""

    def __init__(self, what: Callable[[Odd, Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.what, self.count, self.kept = nn.Linear(3, 2), what, 0, []
        self.seen: Any = None
        self.features: dict[str, Any] = {"last": None}

    def forward(self, given: Tensor) -> Any:
        found = self.what(self, given)
        return self.layer(given) if found is None else found


def counts(odd: Odd, given: Tensor) -> None:
    odd.count += 1


def keeps_a_feature(odd: Odd, given: Tensor) -> None:
    odd.seen = given * 2


def hooked(hidden: Tensor) -> Tensor:
    hidden.register_hook(lambda grad: None)
    return hidden


OTHERS = [nn.Parameter(torch.ones(2, 3))]
ODD: dict[str, tuple[Callable[[Odd, Tensor], Any], str]] = {
    "draws": (lambda _, given: given.mul(random.random()).sum() and None, "draws random"),
    "draws by numpy": (lambda _, given: given.mul(float(numpy.random.rand())).sum() and None, "draws random"),
    "draws by torch": (lambda _, given: torch.rand(1).sum() and None, "draws random"),
    "counts": (counts, "changes it with each call"),
    "keeps": (keeps_a_feature, "changes it with each call"),
    "keeps in a dictionary": (lambda odd, given: odd.features.update(last=given * 2), "changes it with each call"),
    "appends": (lambda odd, given: odd.kept.append(given), "changes it with each call"),
    "writes in its inputs": (lambda _, given: given.mul_(2).sum() and None, "writes in its inputs"),
    "looks at gradients": (lambda odd, given: hooked(odd.layer(given)), "hangs hooks on tensors"),
    "returns a number": (lambda odd, given: (odd.layer(given), 3), "something else than tensors"),
    "trains others' weights": (lambda odd, given: nn.functional.linear(given, OTHERS[0]), "not among its parameters"),
    "returns no gradient": (lambda _, given: given.argmax(1), "nothing to go back from"),
}


@pytest.mark.parametrize(("what", "why"), ODD.values(), ids=ODD)
def test_models_that_are_left_as_they_are(what: Callable[[Odd, Tensor], Any], why: str) -> None:
    torch.manual_seed(0), random.seed(0), numpy.random.seed(0)
    before = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()
    net = Odd(what)
    torch.manual_seed(0)
    with pytest.raises(Refused, match=why):
        graphed(net, torch.ones(2, 3))
    after = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_inputs_and_models_that_no_graph_can_have() -> None:
    net = nn.Linear(3, 2)
    with pytest.raises(Refused, match="want gradients"):
        graphed(net, torch.ones(2, 3, requires_grad=True))
    with pytest.raises(Refused, match="given a set"):
        Graphed(net, net, ({1},), {}, device=CPU, tape=Tape)
    net.register_forward_hook(lambda *_: None)
    with pytest.raises(Refused, match="hooks"):
        graphed(net, torch.ones(2, 3))
    halved = nn.Linear(3, 2)
    halved.weight.register_hook(lambda grad: grad / 2)
    with pytest.raises(Refused, match="a weight has hooks"):
        graphed(halved, torch.ones(2, 3))
    sliced = nn.Linear(3, 2)
    sliced.weight = nn.Parameter(torch.ones(2, 6)[:, ::2])
    with pytest.raises(Refused, match="gaps"):
        graphed(sliced, torch.ones(2, 3))


class Codes(nn.Module):
    """Writes in its own tensors, as codebooks are updated."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.codes = nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("mean", torch.ones(3))
        self.seen = torch.ones(3)

    def forward(self, given: Tensor) -> Tensor:
        for one in (self.codes, self.mean, self.seen):
            one.data.mul_(0.5)
        return self.layer(given * self.codes * self.mean * self.seen)  # type: ignore[no-any-return]


def test_what_a_model_writes_in_its_own_tensors_is_written_once_for_each_call() -> None:
    net = Codes()
    graph = graphed(net, torch.ones(2, 3))
    for one in (net.codes, net.mean, net.seen):
        assert one.tolist() == [1, 1, 1]
    graph((torch.ones(2, 3),), {})
    for one in (net.codes, net.mean, net.seen):
        assert one.tolist() == [0.5, 0.5, 0.5]


def test_an_earlier_call_can_be_gone_back_from_after_trials() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    given = torch.randn(4, 3)
    net.eval()
    earlier = net(given).square().sum()  # its backward needs the statistics
    net.train()
    graphed(net, given)
    earlier.backward()


def test_hooks_on_all_modules() -> None:
    net, images = nn.Linear(3, 2), torch.ones(2, 3)
    graph = graphed(net, images)
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert not graph.fits(net, (images,), {})
        with pytest.raises(Refused, match="all modules have hooks"):
            graphed(net, images)
    finally:
        hook.remove()
    assert graph.fits(net, (images,), {})


def test_a_part_that_is_shared_with_other_devices() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.DataParallel(nn.Linear(3, 2)))
    with pytest.raises(Refused, match="shared with other processes or GPUs"):
        graphed(net, torch.ones(2, 3))


def test_a_model_that_is_gone_takes_its_state_with_it() -> None:
    """The tape of these tests holds what it calls again; a graph holds nothing."""

    class Forgetful(Tape):
        def record(self, function: Callable[[], list[Tensor]]) -> list[Tensor]:
            return function()

    _, net = twins()
    (images,) = batches(1)
    graph = Graphed(net, net.__call__, (images,), {}, device=CPU, tape=Forgetful)
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None
    del graph
