"""The detector: what is frozen, what each frame hears of, and what it is trained for."""

from __future__ import annotations

import pytest
import torch

from fulltilt.errors import InputError
from fulltilt.recipes.video.loss import detection_loss
from fulltilt.recipes.video.model import Detector

TINY = {"classes": 3, "widths": (8, 16), "blocks": 1, "reduction": 2, "hidden": 16, "dilations": (1, 2)}


@pytest.fixture
def clips():
    return torch.randint(0, 256, (2, 12, 16, 16, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def moved(model: Detector, steps: int, clips: torch.Tensor, labels: torch.Tensor) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        loss = detection_loss(model(clips), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def test_only_adapters_and_heads_are_trained(clips):
    torch.manual_seed(0)
    model = Detector(**TINY)
    labels = torch.tensor([[0] * 3 + [1] * 6 + [0] * 3, [2] * 8 + [0] * 4])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    losses = moved(model, 30, clips, labels)
    assert losses[-1] < 0.6 * losses[0]
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {name for name in before if not name.startswith("backbone.")}


def test_the_backbone_is_the_same_in_every_run():
    torch.manual_seed(1)
    one = Detector(**TINY)
    drawn = torch.rand(1)
    torch.manual_seed(2)
    other = Detector(**TINY)
    for name, value in one.backbone.state_dict().items():
        assert torch.equal(value, other.backbone.state_dict()[name])
    assert not torch.equal(one.adapters[0].down.weight, other.adapters[0].down.weight)
    torch.manual_seed(1)
    Detector(**TINY)
    assert torch.equal(torch.rand(1), drawn)


def test_weights_of_ones_own(tmp_path):
    model = Detector(**TINY)
    own = {name: torch.randn_like(value) for name, value in model.backbone.state_dict().items()}
    torch.save(own, tmp_path / "backbone.pt")
    loaded = Detector(**TINY, weights=str(tmp_path / "backbone.pt"))
    assert all(torch.equal(value, own[name]) for name, value in loaded.backbone.state_dict().items())
    assert not any(parameter.requires_grad for parameter in loaded.backbone.parameters())
    with pytest.raises(InputError, match="can't be read"):
        Detector(**TINY, weights=str(tmp_path / "none.pt"))


def test_any_number_of_frames_and_clips_apart(clips):
    torch.manual_seed(0)
    model = Detector(**TINY).eval()
    for adapter in model.adapters:
        torch.nn.init.normal_(adapter.up.weight)
    with torch.no_grad():
        together = model(clips)
        assert together.shape == (2, 12, 3 + 1 + 2)
        assert bool((together[..., -2:] > 0).all())
        torch.testing.assert_close(together[1:], model(clips[1:]), msg="a clip has nothing from another")
        assert model(clips[:, :5]).shape == (2, 5, 6)


def test_adapters_hear_of_neighbouring_frames_and_frozen_blocks_do_not(clips):
    torch.manual_seed(0)
    model = Detector(**TINY).eval()
    heard = []

    def maps(part: torch.Tensor) -> torch.Tensor:
        images = part.flatten(0, 1).permute(0, 3, 1, 2).float() / 127.5 - 1
        found = model.backbone.stem(images)
        for block, adapter in zip(model.backbone.blocks, model.adapters, strict=True):
            found = adapter(block(found), part.shape[1])
        return found

    for _ in range(2):
        other = clips.clone()
        other[:, 6] = 0
        with torch.no_grad():
            differs = (maps(clips) - maps(other)).abs().flatten(1).amax(1).view(2, 12) > 1e-6
        heard.append(differs[0].nonzero().flatten().tolist())
        for adapter in model.adapters:
            torch.nn.init.normal_(adapter.up.weight)
    assert heard == [[6], [4, 5, 6, 7, 8]], "at first adapters change nothing; each of two reaches one frame further"


def test_the_loss_of_a_batch_is_the_mean_of_its_halves():
    draw = torch.Generator().manual_seed(0)
    outputs = torch.randn(6, 20, 7, generator=draw).abs()
    labels = torch.randint(0, 5, (6, 5), generator=draw).repeat_interleave(4, 1)
    labels[2] = 0
    halves = [detection_loss(outputs[part], labels[part]) for part in (slice(0, 3), slice(3, 6))]
    torch.testing.assert_close(detection_loss(outputs, labels), sum(halves) / 2)


def test_the_loss_wants_classes_and_bounds():
    labels = torch.tensor([[0, 0, 2, 2, 2, 2, 0, 1]])
    sure = 30 * torch.nn.functional.one_hot(labels, 3).float()
    right = torch.tensor([[1.0, 1], [1, 1], [0.5, 3.5], [1.5, 2.5], [2.5, 1.5], [3.5, 0.5], [1, 1], [0.5, 0.5]])
    assert float(detection_loss(torch.cat([sure, right[None]], -1), labels)) < 1e-5
    wrong = right.clone()
    wrong[2, 1] = 7.5  # twice as long as it is: tIoU 0.5, of one of five frames in actions
    assert float(detection_loss(torch.cat([sure, wrong[None]], -1), labels)) == pytest.approx(0.1, abs=1e-5)
    wrong = right.clone()
    wrong[0] = 99.0
    assert float(detection_loss(torch.cat([sure, wrong[None]], -1), labels)) < 1e-5, "nobody asks outside of actions"


def test_widths_that_can_not_be_normalised():
    with pytest.raises(InputError, match="multiples of 8"):
        Detector(3, widths=(12,))
