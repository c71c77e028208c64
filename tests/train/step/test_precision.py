"""Number formats: what is allowed where, and that fp16 and bf16 train."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fulltilt.errors import InputError, UnavailableError
from fulltilt.train import HybridPrecisionTrainer
from fulltilt.train.step import precision
from fulltilt.train.step.precision import formats_for, widen

CPU = torch.device("cpu")
FLOATS = (torch.float32,)


@pytest.fixture
def capability(monkeypatch):
    def pretend(*version):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: version)
        return torch.device("cuda", 0)

    return pretend


@pytest.mark.parametrize(
    ("version", "allowed"),
    [((9, 0), ("bf16", "tf32")), ((8, 0), ("bf16", "tf32")), ((7, 5), ("fp16", "fp32")), ((6, 1), ("fp32",))],
)
def test_auto_follows_the_hardware(capability, version, allowed):
    assert formats_for("auto", capability(*version), FLOATS).allowed == allowed


def test_auto_leaves_the_cpu_and_odd_weights_alone(capability):
    assert formats_for("auto", CPU, FLOATS).allowed == ("fp32",)
    found = formats_for("auto", capability(9, 0), (torch.float32, torch.float64, torch.int64))
    assert found.allowed == ("fp32",)
    assert "float64 weights" in found.reason


def test_a_wish_that_the_hardware_lacks_is_refused(capability):
    with pytest.raises(UnavailableError, match=r"this GPU has 7\.5; use 'fp16'"):
        formats_for("bf16", capability(7, 5), FLOATS)
    with pytest.raises(UnavailableError, match="'tf32' needs an NVIDIA GPU"):
        formats_for("tf32", CPU, FLOATS)
    with pytest.raises(InputError, match="precision='half' is unknown"):
        formats_for("half", CPU, FLOATS)


def regression(precision, optimizer=torch.optim.SGD, steps=60, **more):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    trainer = HybridPrecisionTrainer(
        model, optimizer(model.parameters(), lr=0.05), loss=F.mse_loss, device="cpu", precision=precision, **more
    )
    draw = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        x = torch.randn(32, 4, generator=draw)
        losses.append(trainer.train_step(x, x.sum(1, keepdim=True)))
    return losses, trainer


@pytest.mark.parametrize(
    ("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)]
)
def test_outputs_are_of_the_format_and_the_loss_of_fp32(name, dtype):
    results, trainer = regression(name)
    assert results[-1].outputs.dtype == dtype
    assert results[-1].loss.dtype == torch.float32
    assert results[-1].loss < 0.3 * results[0].loss
    assert trainer.plan["precision"].value == name
    assert all(parameter.dtype == torch.float32 for parameter in trainer.model.parameters())


@pytest.mark.parametrize(("fused", "clip"), [(True, None), (True, 1.0), (False, 1.0)])
def test_fp16_skips_a_step_that_overflows_and_lowers_its_scale(fused, clip):
    _, trainer = regression("fp16", torch.optim.Adam, steps=3, fused=fused, clip_norm=clip)
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    scale = trainer.state_dict()["scaler"]["scale"]
    trainer.train_step(torch.full((4, 4), 1e30), torch.zeros(4, 1))
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
    assert trainer.state_dict()["scaler"]["scale"] == scale / 2
    trainer.train_step(torch.randn(4, 4), torch.zeros(4, 1))
    assert not torch.equal(before[0], next(trainer.model.parameters()))


@pytest.mark.parametrize("dampening", [0.0, 0.1])
def test_fp16_may_skip_the_very_first_step_of_a_fused_sgd(dampening):
    """Its momentum is made in that step; unfilled, the next one would add up whatever lay in memory."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    twin = nn.Linear(4, 1)
    twin.load_state_dict(model.state_dict())
    made, plain = (
        torch.optim.SGD(one.parameters(), lr=0.01, momentum=0.9, dampening=dampening) for one in (model, twin)
    )
    trainer = HybridPrecisionTrainer(model, made, loss=F.mse_loss, device="cpu", precision="fp16", fused=True)
    junk = [torch.full_like(parameter, torch.nan) for parameter in model.parameters() for _ in range(64)]
    del junk  # what memory is made of next
    trainer.train_step(torch.full((4, 4), 1e30), torch.zeros(4, 1))
    x = torch.randn(8, 4)
    for _ in range(2):
        trainer.train_step(x, torch.zeros(8, 1))
        F.mse_loss(twin(x), torch.zeros(8, 1)).backward()
        plain.step()
        plain.zero_grad()
    torch.testing.assert_close(model.weight, twin.weight, rtol=1e-2, atol=1e-3)


def test_fp16_with_a_fused_optimizer_never_asks_the_device(monkeypatch):
    """`.item()` is what waits; the overflow check of a fused optimizer does without."""
    _, trainer = regression("fp16", torch.optim.AdamW, steps=2, fused=True)
    monkeypatch.setattr(torch.Tensor, "item", lambda self: pytest.fail("asked the device"))
    trainer.train_step(torch.randn(4, 4), torch.zeros(4, 1))


def test_parts_can_be_kept_in_fp32():
    seen = {}

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 1)

        def forward(self, x):
            hidden = self.body(x)
            out = self.head(hidden)
            seen.update(body=hidden.dtype, head=out.dtype)
            return out

    model = Model()
    trainer = HybridPrecisionTrainer(
        model, torch.optim.SGD(model.parameters(), lr=0.1), loss=F.mse_loss, device="cpu", precision="bf16",
        keep_fp32=["head"],
    )  # fmt: skip
    trainer.train_step(torch.randn(2, 4), torch.randn(2, 1))
    assert seen == {"body": torch.bfloat16, "head": torch.float32}
    with pytest.raises(InputError, match="the model has no part ''"):
        widen(model, [""], CPU)


def test_process_wide_switches_are_left_alone_on_the_cpu():
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    precision.set_fp32_maths("fp32", CPU)
    precision.set_fp32_maths("bf16", CPU)
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before


def test_parts_that_stay_fp32_are_not_multiplied_as_tf32(capability, monkeypatch):
    gpu, switches = capability(9, 0), {}
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda to: switches.update(matmul=to))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    precision.set_fp32_maths("bf16", gpu)
    assert (switches["matmul"], torch.backends.cudnn.allow_tf32) == ("high", True)
    precision.set_fp32_maths("bf16", gpu, keeps_fp32=True)
    assert (switches["matmul"], torch.backends.cudnn.allow_tf32) == ("highest", False)
    assert formats_for("auto", gpu, FLOATS, keeps_fp32=True).allowed == ("bf16", "fp32")
    with pytest.raises(InputError, match="precision='tf32' with keep_fp32"):
        formats_for("tf32", gpu, FLOATS, keeps_fp32=True)


def test_the_step_switches_tf32_off_for_its_fp32_parts(monkeypatch):
    said = []
    maths = lambda name, _, *, keeps_fp32: said.append(keeps_fp32)  # noqa: E731
    monkeypatch.setattr("fulltilt.train.step.engine.set_fp32_maths", maths)
    for names in ((), ("0",)):
        model = nn.Sequential(nn.Linear(4, 1))
        HybridPrecisionTrainer(model, torch.optim.SGD(model.parameters()), device="cpu", keep_fp32=names)
    assert said == [False, True]
