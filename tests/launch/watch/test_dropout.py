"""What is dropped is a matter of the seed alone, and nothing else changes."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right

from fulltilt.launch.command import parse
from fulltilt.launch.observe import observe
from fulltilt.launch.watch.dropout import dropout, scaled_dot_product_attention

WAYS = """
import sys
import torch
from torch import nn
import torch.nn.functional as F

if sys.argv[1] == "tied":
    from fulltilt.launch.watch import dropout
    dropout.install()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.into = nn.Linear(16, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True)
        self.drop = nn.Dropout(0.4)
        self.inplace = nn.Dropout(0.3, inplace=True)

    def forward(self, images):
        seen = self.drop(self.conv(images)).mean((-1))
        one, other = self.drop(self.into(seen.mT)), self.inplace(self.into(seen.mT))
        return self.block(one * self.drop(other) + F.dropout(one, 0.1))

def losses(*, compiled=False, half=False, memory_format=torch.contiguous_format):
    torch.manual_seed(0)
    net = Net().to(memory_format=memory_format)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    if compiled:
        net.compile()
    found = []
    for _ in range(4):
        images = torch.randn(8, 3, 7, 5).to(memory_format=memory_format)
        weights = torch.randn(8, 7, 16)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = (net(images) * weights).float().pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found

print(losses())
print(losses(half=True))
print(losses(memory_format=torch.channels_last))
print(losses(compiled=True))
"""


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    assert F.dropout is not dropout, "tests of this process go on with torch's own"


def _apart(way: str) -> list[float]:
    """How far the losses of half precision, channels last and compiled code are off, relatively."""
    done = subprocess.run([sys.executable, "-c", WAYS, way], capture_output=True, text=True, timeout=300, check=True)
    plain, *others = map(eval, done.stdout.splitlines())
    return [max(abs(a - b) / a for a, b in zip(plain, one, strict=True)) for one in others]


def test_the_same_elements_are_dropped_however_the_model_is_computed() -> None:
    half, channels_last, compiled = _apart("tied")
    assert half < 0.01
    assert channels_last < 1e-5
    assert compiled < 1e-5


def test_without_it_others_are() -> None:
    """What the test above would find if nothing were done. Half precision takes other numbers on GPUs only."""
    _, channels_last, compiled = _apart("torch's own")
    assert min(channels_last, compiled) > 0.02


def test_as_many_are_dropped_and_the_rest_made_up_for() -> None:
    torch.manual_seed(0)
    given = torch.ones(200, 300, requires_grad=True)
    found = dropout(given, 0.3)
    share = (found == 0).float().mean().item()
    assert abs(share - 0.3) < 0.01
    assert torch.allclose(found[found != 0], torch.tensor(1 / 0.7))
    found.sum().backward()
    assert given.grad is not None
    assert torch.equal(given.grad, found)
    assert dropout(given.detach().bfloat16(), 0.3).dtype == torch.bfloat16


def test_in_place_it_is_the_tensor_itself() -> None:
    given = torch.ones(50, 50, dtype=torch.bfloat16)
    found = dropout(given, 0.5, inplace=True)
    assert found is given
    assert set(given.unique().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize(("p", "training"), [(0.0, True), (1.0, True), (0.5, False)])
def test_where_nothing_is_drawn_it_is_torchs_own(p: float, training: bool) -> None:
    given = torch.randn(10, 10)
    before = torch.get_rng_state()
    assert torch.equal(dropout(given, p, training), F.dropout(given, p, training))
    if p < 1.0:
        assert torch.equal(torch.get_rng_state(), before)


def test_what_torch_refuses_is_refused_in_its_words() -> None:
    with pytest.raises(ValueError, match="dropout probability has to be between 0 and 1"):
        dropout(torch.ones(3), 1.5)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_module_that_is_scripted_fx_traced_or_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(F, "dropout", dropout)
    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    given = torch.ones(64, 8)
    for one in (torch.jit.script(net), torch.fx.symbolic_trace(net)):
        assert 0.3 < (one(given) == 0).float().mean().item() < 0.7
        assert not (one.eval()(given) == 0).any()
        net.train()
    assert pickle.loads(pickle.dumps(F.dropout)) is dropout


def test_what_fx_has_traced_drops_as_the_seed_says(monkeypatch: pytest.MonkeyPatch) -> None:
    class Known(nn.Module):
        def forward(self, one: Tensor) -> Tensor:
            return F.dropout(one, 0.5, self.training)

    class Told(nn.Module):
        def forward(self, one: Tensor, training: bool) -> Tensor:
            return F.dropout(one, 0.5, training)

    monkeypatch.setattr(F, "dropout", dropout)
    given = torch.ones(64, 8)
    torch.manual_seed(0)
    expected = dropout(given, 0.5)
    for module, flags, off in ((Known(), (), ()), (Told(), (True,), (False,))):
        torch.manual_seed(0)
        assert torch.equal(torch.fx.symbolic_trace(module)(given, *flags), expected)
        assert torch.equal(torch.fx.symbolic_trace(module.eval())(given, *off), given)


@pytest.mark.parametrize(
    "given",
    [
        torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.ones(6, 7, dtype=torch.bfloat16),
        torch.ones(1, 4).expand(3, 4),
        torch.ones(5, 6).T,
    ],
    ids=["channels last", "half precision", "expanded", "transposed"],
)
def test_the_shape_alone_says_which(given: Tensor) -> None:
    torch.manual_seed(0)
    expected = torch.rand(given.shape) >= 0.5
    torch.manual_seed(0)
    assert torch.equal(dropout(given, 0.5) != 0, expected)


SCRIPTED = """
import torch
from torch import nn
import torch.nn.functional as F
from fulltilt.launch.watch import dropout

dropout.install()

class Attends(nn.Module):
    def forward(self, one: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(one, one, one, dropout_p=0.5 if self.training else 0.0, scale=0.1)

given = torch.randn(2, 5, 16)
for net in (Attends(), nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True)):
    scripted = torch.jit.script(net)
    assert not torch.equal(scripted(given), scripted(given)), "it drops"
    torch.testing.assert_close(scripted.eval()(given), net.eval()(given))
heads = nn.MultiheadAttention(16, 2, dropout=0.2, batch_first=True)
scripted = torch.jit.script(heads)
torch.testing.assert_close(scripted.eval()(given, given, given)[0], heads.eval()(given, given, given)[0])
"""


def test_attention_that_is_scripted(tmp_path: Path) -> None:
    """In a process of its own: TorchScript keeps what it has compiled, and would not look at ours any more."""
    script = tmp_path / "scripted.py"  # which is compiled from its source
    script.write_text(SCRIPTED)
    command = [sys.executable, "-W", "ignore", str(script)]
    subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)


def test_nested_tensors_are_left_to_torch() -> None:
    nested = torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(5, 4)], layout=torch.jagged)
    assert dropout(nested, 0.5).is_nested


def test_a_mask_that_knows_what_it_masks_is_left_to_torch() -> None:
    given, others = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 6, 8)
    value = torch.eye(6).expand(1, 2, 6, 6)  # what comes out are the weights
    found = scaled_dot_product_attention(given, others, value, attn_mask=causal_lower_right(4, 6), dropout_p=0.1)
    assert not found.triu(3).any()
    assert found.tril(2).any()


def test_attention_as_an_attribute_of_a_class_is_no_method() -> None:
    class Attends(nn.Module):
        attend = scaled_dot_product_attention

        def forward(self, one: Tensor) -> Tensor:
            return self.attend(one, one, one, dropout_p=0.5)

    given = torch.randn(2, 3, 4, 8)
    torch.manual_seed(0)
    expected = scaled_dot_product_attention(given, given, given, dropout_p=0.5)
    torch.manual_seed(0)
    assert torch.equal(Attends()(given), expected)
    sent = pickle.loads(pickle.dumps(scaled_dot_product_attention))
    assert sent is copy.deepcopy(scaled_dot_product_attention) is scaled_dot_product_attention
    assert "dropout_p" in inspect.signature(scaled_dot_product_attention).parameters


COMPILED = """
import sys
import torch
from torch import nn
import torch.nn.functional as F
from fulltilt.launch.watch import dropout

dropout.install()

class Attends(nn.Module):
    attend = F.scaled_dot_product_attention

    def __init__(self):
        super().__init__()
        self.into = nn.Linear(8, 8)
        self.weight = nn.Parameter(torch.randn(2, 3, 4, 8))

    def forward(self, one):
        return self.attend(self.into(one), one, self.weight, dropout_p=0.3)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.TransformerEncoderLayer(8, 2, 32, dropout=0.2, batch_first=True)

    def forward(self, one):
        return torch.utils.checkpoint.checkpoint(self.block, one[0], use_reentrant=False)

nets = [Attends(), Block(), nn.Dropout(0.4)]
given = torch.randn(2, 3, 4, 8)

def found(net):
    torch.manual_seed(0)
    return net(given)

expected = [found(net) for net in nets]
if sys.argv[1] == "default":
    torch.set_default_device("cpu")
with torch.device("cpu") if sys.argv[1] == "within" else torch.no_grad():
    for net, whole in zip(nets, expected):
        torch.testing.assert_close(found(net), whole)
        torch.testing.assert_close(found(torch.compile(net, backend="aot_eager", fullgraph=True)), whole)
"""


@pytest.mark.parametrize("mode", ["none", "default", "within"])
def test_with_a_default_device_and_in_one_graph_the_same_are_dropped(mode: str) -> None:
    """Every function goes another way under such a mode, and a graph may have no break in it."""
    command = [sys.executable, "-W", "ignore", "-c", COMPILED, mode]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


CHECKPOINTED = """
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from fulltilt.launch.watch import dropout

dropout.install()

def block(one):
    return F.dropout(F.dropout(one.sin(), 0.5).cos(), 0.5)

def blocks(one):
    return checkpoint(block, checkpoint(block, one, use_reentrant=False), use_reentrant=False)

def found(function):
    torch.manual_seed(0)
    return function(torch.ones(2, 6, 16, requires_grad=True))

torch.testing.assert_close(found(torch.compile(blocks, fullgraph=True)), found(blocks))
"""


@pytest.mark.skipif(torch.__version__ < (2, 12), reason="the compiler makes a `rand` of it, which takes no tensor")
def test_compiled_checkpoints_drop_in_the_order_of_the_script() -> None:
    """The compiler keeps the generator's state for each draw, and may order them by what they depend on alone. Without
    its caches, which were seen to give what was compiled of other draws within a checkpoint."""
    alone = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}
    command = [sys.executable, "-W", "ignore", "-c", CHECKPOINTED]
    done = subprocess.run(
        command, env={**os.environ, **alone}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


def _masks(length: int) -> dict[str, dict[str, Any]]:
    hidden = torch.rand(length, length) > 0.4
    hidden[2] = False  # a row that sees nothing
    return {
        "plain": {},
        "causal": {"is_causal": True},
        "bool": {"attn_mask": hidden},
        "float": {"attn_mask": torch.randn(length, length)},
        "scale": {"scale": 0.3},
    }


@pytest.mark.parametrize("kind", ["plain", "causal", "bool", "float", "scale", "shared", "shared otherwise"])
def test_attention_in_steps_is_torchs_attention(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing dropped, so that they can be compared: the numbers drawn are all above p."""
    torch.manual_seed(1)
    query, key, value = (torch.randn(2, heads, 7, 16) for heads in ((4, 2, 2) if "shared" in kind else (4, 4, 4)))
    value = value[:, :1] if kind == "shared otherwise" else value
    options = {"enable_gqa": True} if "shared" in kind else _masks(7)[kind]
    expected = F.scaled_dot_product_attention(query, key, value, **options)
    monkeypatch.setattr(torch, "rand_like", torch.ones_like)
    found = scaled_dot_product_attention(query, key, value, dropout_p=0.5, **options)
    torch.testing.assert_close(found * 0.5, expected)


@pytest.mark.parametrize("under_autocast", [False, True])
def test_attention_in_half_precision_rounds_no_more_than_torchs(
    under_autocast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    query, key, value = torch.randn(2, 2, 64, 64) * 2, torch.randn(2, 2, 64, 64) * 2, torch.randn(2, 2, 64, 64)
    expected = F.scaled_dot_product_attention(query, key, value)
    half = [part.bfloat16() for part in (query, key, value)]
    own = F.scaled_dot_product_attention(*half)
    monkeypatch.setattr(torch, "rand_like", torch.ones_like)
    with torch.autocast("cpu", torch.bfloat16, enabled=under_autocast):
        found = scaled_dot_product_attention(*half, dropout_p=0.5) * 0.5
    assert found.dtype == torch.bfloat16
    assert (found - expected).abs().mean() < 1.2 * (own - expected).abs().mean()
    large = torch.full((1, 1, 4, 64), 41.0, dtype=torch.float16)  # products that float16 does not reach
    assert scaled_dot_product_attention(large, large, large, dropout_p=0.5).isfinite().all()


def test_attention_drops_its_weights() -> None:
    torch.manual_seed(1)
    query, key = torch.randn(2, 4, 32, 16), torch.randn(2, 4, 64, 16)
    value = torch.eye(64).expand(2, 4, 64, 64)  # what comes out are the weights
    whole = F.scaled_dot_product_attention(query, key, value)
    found: Tensor = scaled_dot_product_attention(query, key, value, dropout_p=0.25)
    kept = found != 0
    assert abs(kept.float().mean().item() - 0.75) < 0.01
    torch.testing.assert_close(found[kept], (whole / 0.75)[kept])


SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Dropout(0.5), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
net.to(memory_format=getattr(torch, sys.argv[1]))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for inputs, labels in DataLoader(TensorDataset(torch.randn(256, 1, 8, 8), torch.arange(256) % 4), 16):
    loss = nn.functional.cross_entropy(net(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_script_is_observed_with_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    def apart(**options: Any) -> float:
        seen = [
            observe(parse([str(script), layout]), seed=1, tie_draws=True, **options)
            for layout in ("contiguous_format", "channels_last")
        ]
        assert {one.draws for one in seen} == {"tie_dropout" in options}
        before, after = (one.first_losses for one in seen)
        assert len(before) == len(after) == 16
        return max(abs(a - b) / a for a, b in zip(before, after, strict=True))

    assert apart(tie_dropout=True) < 1e-5
    assert apart() > 0.01
