"""Mixup and CutMix: what is mixed is what the labels say, with the right distribution, for any batch."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fulltilt.augment import CutMix, Mixup, MixupOrCutMix
from fulltilt.augment.beta import beta_table, look_up
from fulltilt.errors import InputError

EVERY_UNIFORM_16TH = torch.arange(1 << 20) * 2.0**-20 + 2.0**-21


def numbered(count: int, channels: int = 3, height: int = 8, width: int = 10, dtype=torch.float32) -> torch.Tensor:
    """Sample k holds k everywhere, so that a pixel tells whose it is and a mixture tells its weights."""
    return torch.arange(count, dtype=dtype).view(-1, 1, 1, 1).expand(count, channels, height, width).contiguous()


def own(count: int) -> torch.Tensor:
    """Class k for sample k: soft labels are then the weights of the samples."""
    return torch.arange(count)


# --- the distribution of λ ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alpha", "quantile"),
    [
        (0.5, lambda u: torch.sin(u * (math.pi / 2)) ** 2),
        (1.0, lambda u: u),
        (2.0, lambda u: 0.5 - torch.sin(torch.asin(1.0 - 2.0 * u) / 3.0)),
    ],
)
def test_quantiles_with_a_closed_form(alpha, quantile):
    drawn = look_up(beta_table(alpha), EVERY_UNIFORM_16TH, alpha)
    torch.testing.assert_close(drawn.double(), quantile(EVERY_UNIFORM_16TH.double()), rtol=0, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.001, 0.05, 0.2, 0.4, 0.8, 1.0, 3.0, 5.0, 20.0, 100.0])
def test_moments(alpha):
    drawn = look_up(beta_table(alpha), EVERY_UNIFORM_16TH, alpha).double()
    assert drawn.mean() == pytest.approx(0.5, abs=1e-6)
    assert drawn.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=1e-3)
    kurtosis = ((drawn - 0.5) ** 4).mean() / drawn.var() ** 2
    assert kurtosis == pytest.approx(3 - 6 / (2 * alpha + 3), rel=2e-3)


@pytest.mark.parametrize("alpha", [0.2, 0.4, 5.0, 50.0])
def test_quantiles_of_torch_distributions(alpha):
    """Folded at ½, because values next to 1 are not apart in floating point and values next to 0 are."""
    torch.manual_seed(0)
    count = 400_000
    wide = torch.tensor(alpha, dtype=torch.float64)
    sampled = torch.distributions.Beta(wide, wide).sample((count,))
    reference = torch.minimum(sampled, 1.0 - sampled).sort().values
    shares = (torch.arange(count) + 0.5) / count
    drawn = look_up(beta_table(alpha), shares / 2, alpha).double()
    distance = (torch.searchsorted(reference, drawn) / count - shares).abs().max()
    assert distance < 1.95 / math.sqrt(count)  # Kolmogorov's bound, passed by 99.9 % of samples


@pytest.mark.parametrize("alpha", [0.001, 0.2, 1.0, 7.3, 100.0])
def test_quantiles_rise_and_stay_in_bounds(alpha):
    every = torch.arange(0, 1 << 24, 37) * 2.0**-24
    drawn = look_up(beta_table(alpha), torch.cat([every, torch.tensor([1 - 2.0**-24])]), alpha)
    assert drawn.min() >= 0.0
    assert drawn.max() <= 1.0
    assert (drawn.diff() >= 0).all()


def test_per_sample_shares_follow_beta_and_differ():
    mix = Mixup(4096, alpha=1.0)
    _, soft = mix(numbered(4096, 1, 1, 1), own(4096))
    shares = 1.0 - soft[own(4096), own(4096)].double()
    assert shares.unique().numel() > 4000
    expected = (torch.arange(4096) + 0.5) / 4096
    assert (shares.sort().values - expected).abs().max() < 1.95 / math.sqrt(4096)


# --- what is mixed ---------------------------------------------------------------------------------------------------


@given(count=st.integers(2, 33), seed=st.integers(-(1 << 63), (1 << 63) - 1), per_sample=st.booleans())
def test_mixup_images_are_what_the_labels_say(count, seed, per_sample):
    mix = Mixup(count, alpha=0.8, seed=seed, per_sample=per_sample)
    images, soft = mix(numbered(count, dtype=torch.float64), own(count))
    torch.testing.assert_close(soft.sum(1), torch.ones(count))
    expected = (soft.double() * own(count)).sum(1).view(-1, 1, 1, 1).expand_as(images)
    torch.testing.assert_close(images, expected, rtol=0, atol=1e-4)
    if not per_sample:
        assert (1.0 - soft.diagonal()).unique().numel() == 1


@given(
    count=st.integers(2, 17),
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    alpha=st.sampled_from([0.3, 1.0, 4.0]),
)
def test_cutmix_labels_count_the_pasted_pixels(count, height, width, alpha):
    mix = CutMix(count, alpha=alpha, seed=height * 41 + width)
    masks = numbered(count, 1, height, width)[:, 0].long()
    images, soft, labels = mix(numbered(count, 2, height, width), own(count), masks=masks)
    assert (images == labels[:, None]).all(), "masks get the same box"
    for sample in range(count):
        shares = torch.bincount(labels[sample].flatten(), minlength=count) / (height * width)
        torch.testing.assert_close(soft[sample], shares, rtol=0, atol=1e-6)
        pasted = labels[sample] != sample
        if pasted.any():
            ys, xs = pasted.nonzero().unbind(1)
            assert pasted[ys.min() : ys.max() + 1, xs.min() : xs.max() + 1].all(), "one solid box of one partner"
            assert labels[sample][pasted].unique().numel() == 1


def test_cutmix_boxes_before_cutting_have_the_drawn_area_and_cover_every_place_alike():
    count, side = 2048, 32
    mix = CutMix(count, alpha=100.0)  # λ is always about one half, and so is the uncut box
    images, _ = mix(numbered(count, 1, side, side), own(count))
    pasted = (images != numbered(count, 1, side, side))[:, 0]
    heights = pasted.any(2).sum(1)
    middle = heights[(heights < side) & ~pasted[:, 0].any(1) & ~pasted[:, -1].any(1)]
    assert middle.double().mean() == pytest.approx(side * math.sqrt(0.5), abs=0.6)
    cover = pasted.double().mean(0)
    torch.testing.assert_close(cover, cover.flip(0), rtol=0, atol=0.06)
    torch.testing.assert_close(cover, cover.T, rtol=0, atol=0.06)


@given(count=st.integers(2, 40), seed=st.integers(0, 1 << 40))
def test_partners_are_one_ring_through_the_batch(count, seed):
    mix = Mixup(count, alpha=5.0, seed=seed)
    _, soft = mix(numbered(count, 1, 1, 1), own(count))
    others = soft.clone().fill_diagonal_(0).argmax(1).tolist()
    seen, at = [], 0
    for _ in range(count):
        seen.append(at)
        at = others[at]
    assert sorted(seen) == list(range(count))
    assert at == 0


def test_partners_change_with_every_batch():
    mix = Mixup(8, alpha=5.0)
    rings = {tuple(mix(numbered(8), own(8))[1].fill_diagonal_(0).argmax(1).tolist()) for _ in range(50)}
    assert len(rings) > 45


@pytest.mark.parametrize("prob", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("kind", [Mixup, CutMix, MixupOrCutMix])
def test_prob_is_the_share_of_samples_that_change(kind, prob):
    alphas = {"mixup_alpha": 5.0, "cutmix_alpha": 5.0} if kind is MixupOrCutMix else {"alpha": 5.0}
    mix = kind(2000, prob=prob, **alphas)
    before = numbered(2000, 1, 16, 16)
    images, soft = mix(before, own(2000))
    changed = (images != before).flatten(1).any(1)
    assert changed.double().mean() == pytest.approx(prob, abs=0.04)
    assert (changed == (soft.diagonal() < 1)).all()


def test_mixup_or_cutmix_is_one_or_the_other():
    count = 500
    mix = MixupOrCutMix(count, switch_prob=0.3, mixup_alpha=5.0, cutmix_alpha=5.0)
    images, soft = mix(numbered(count, 1, 16, 16), own(count))
    cut = images.flatten(1).sort(1).values.diff().ne(0).any(1)
    assert cut.double().mean() == pytest.approx(0.3, abs=0.07)
    torch.testing.assert_close(images.mean((1, 2, 3)), (soft * own(count)).sum(1), rtol=1e-5, atol=1e-3)
    whole = images[cut].remainder(1.0)
    assert (whole == 0).all(), "a pasted pixel is a copy"


@pytest.mark.parametrize("kind", [Mixup, CutMix, MixupOrCutMix])
def test_soft_labels_mix_as_whole_ones_do(kind):
    images = torch.rand(6, 3, 9, 9)
    whole = kind(5)(images, torch.tensor([0, 1, 2, 3, 4, 0]))
    soft = kind()(images, torch.eye(5)[[0, 1, 2, 3, 4, 0]])
    torch.testing.assert_close(whole, soft, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "strided"])
@pytest.mark.parametrize("kind", [Mixup, CutMix, MixupOrCutMix])
def test_dtype_and_memory_format_are_kept_and_values_do_not_depend_on_them(kind, dtype, layout):
    exact = torch.randint(0, 17, (5, 3, 12, 7), generator=torch.Generator().manual_seed(1)).to(dtype) / 16
    images = exact
    if layout == "channels_last":
        images = exact.contiguous(memory_format=torch.channels_last)
    elif layout == "strided":
        images = torch.stack([exact, -exact], -1)[..., 0]
    out, soft = kind(5)(images, own(5))
    plain, plain_soft = kind(5)(exact, own(5))
    assert out.dtype == dtype
    assert soft.dtype == torch.float32
    torch.testing.assert_close((out, soft), (plain, plain_soft), rtol=0, atol=0)
    if layout == "channels_last":
        assert out.is_contiguous(memory_format=torch.channels_last)


def test_labels_say_what_half_precision_mixed():
    """λ is rounded before use: in bfloat16 labels would be off by up to 1/512 otherwise."""
    count = 64
    images = torch.zeros(count, 1, 1, count, dtype=torch.bfloat16)
    images[own(count), 0, 0, own(count)] = 1.0
    out, soft = Mixup(count, alpha=1.0)(images, own(count))
    partner = soft.clone().fill_diagonal_(0).argmax(1)
    torch.testing.assert_close(out[own(count), 0, 0, partner].float(), soft[own(count), partner], rtol=0, atol=0)


def test_clips_and_bytes():
    """All frames of a clip get the same box."""
    clips = torch.arange(4, dtype=torch.uint8).view(4, 1, 1, 1, 1).expand(4, 6, 3, 8, 8)
    masks = clips[:, :, 0].long()
    out, labels = CutMix(alpha=5.0)(clips, masks=masks)
    assert (out.dtype, labels.shape) == (torch.uint8, masks.shape)
    assert (out == labels[:, :, None]).all()
    assert (labels == labels[:, :1]).all()
    assert (labels != masks).flatten(1).any(1).all()
    mixed, soft = Mixup(4, alpha=5.0)(clips.float(), own(4))
    torch.testing.assert_close(mixed[:, 5, 2, 7, 7], (soft * own(4)).sum(1))


def test_gradients_flow_to_images_and_soft_labels():
    images = torch.rand(4, 3, 5, 5, requires_grad=True)
    soft = torch.rand(4, 7, requires_grad=True)
    out, labels = MixupOrCutMix()(images, soft)
    (out.sum() + labels.sum()).backward()
    torch.testing.assert_close(images.grad.sum(), torch.tensor(4.0 * 75), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(soft.grad.sum(), torch.tensor(28.0), rtol=1e-4, atol=1e-4)


# --- draws -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Mixup, CutMix])
def test_a_sample_keeps_its_share_in_any_batch(kind):
    """The partner is another one, the share is not."""
    together = kind(64, seed=5)
    together.set_epoch(3)
    alone = kind(64, seed=5)
    alone.set_epoch(3)
    _, soft = together(numbered(8, 1, 16, 16), own(8), index=torch.arange(100, 108))
    _, some = alone(numbered(3, 1, 16, 16), own(3), index=torch.tensor([106, 101, 103]))
    torch.testing.assert_close(some.diagonal(), soft.diagonal()[[6, 1, 3]], rtol=0, atol=0)


def test_the_running_index_counts_samples_and_epochs_restart_it():
    whole, split = Mixup(16), Mixup(16)
    images, labels = numbered(16), own(16)
    _, soft = whole(images, labels)
    parts = [split(images[k : k + 8], labels[k : k + 8])[1] for k in (0, 8)]
    torch.testing.assert_close(torch.cat(parts)[own(16), own(16)], soft.diagonal())
    split.set_epoch(0)
    again = split(images[:8], labels[:8])[1]
    torch.testing.assert_close(again, parts[0], rtol=0, atol=0)
    split.set_epoch(1)
    assert not torch.equal(split(images[:8], labels[:8])[1], parts[0])


def test_seeds_and_large_indices_matter():
    images, labels = numbered(8), own(8)
    shares = [
        Mixup(8, seed=seed)(images, labels, index=torch.arange(8) + first)[1]
        for seed in (0, 1, 1 << 32, -1)
        for first in (0, 1 << 32)
    ]
    for a in range(len(shares)):
        for b in range(a):
            assert not torch.equal(shares[a], shares[b])


def test_the_state_is_saved_and_resumed():
    mix = CutMix(8, seed=9)
    mix.set_epoch(2)
    mix(numbered(8), own(8))
    other = CutMix(8)
    other.load_state_dict(mix.state_dict())
    torch.testing.assert_close(other(numbered(8), own(8)), mix(numbered(8), own(8)), rtol=0, atol=0)


def test_half_precision_is_for_images_not_for_draws():
    plain, half = Mixup(8, alpha=0.4), Mixup(8, alpha=0.4).half()
    torch.testing.assert_close(half(numbered(8), own(8)), plain(numbered(8), own(8)), rtol=0, atol=0)


@pytest.mark.parametrize("kind", [Mixup, CutMix, MixupOrCutMix])
def test_eval_changes_nothing_but_the_labels_form(kind):
    mix = kind(4).eval()
    images = numbered(4)
    out, soft = mix(images, torch.tensor([3, 0, 1, 1]))
    assert out is images
    assert torch.equal(soft, torch.eye(4)[[3, 0, 1, 1]])
    assert torch.equal(mix._state, torch.tensor([0, 0, 0])), "evaluation moves no index"


@pytest.mark.parametrize("kind", [Mixup, CutMix, MixupOrCutMix])
@pytest.mark.parametrize("count", [0, 1])
def test_too_few_to_mix(kind, count):
    images = torch.rand(count, 3, 6, 6)
    out, soft = kind(4)(images, torch.full((count,), 2))
    assert torch.equal(out, images)
    assert torch.equal(soft, torch.eye(4)[2:3].expand(count, 4))


@pytest.mark.parametrize("kind", [Mixup, CutMix, MixupOrCutMix])
def test_compiled_in_one_graph_it_does_the_same(kind):
    plain, mix = kind(6, seed=2), kind(6, seed=2)
    compiled = torch.compile(mix, fullgraph=True, backend="aot_eager")
    images = torch.rand(6, 3, 8, 8)
    for _ in range(3):  # the index moves on in both
        torch.testing.assert_close(compiled(images, own(6)), plain(images, own(6)), rtol=0, atol=1e-6)


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0, -1.0, 0.0009, 101, float("nan"), float("inf"), "1", None, True])
def test_alpha_out_of_range_is_named_with_what_is_allowed(alpha):
    with pytest.raises(InputError, match=r"alpha=.* must be a number from 0\.001 to 100"):
        Mixup(3, alpha=alpha)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_classes": 0}, "num_classes=0 must be a whole number ≥ 1"),
        ({"num_classes": 2.0}, "num_classes=2.0"),
        ({"prob": 1.5}, "prob=1.5 must be a number from 0 to 1"),
        ({"switch_prob": -0.1}, "switch_prob=-0.1"),
        ({"cutmix_alpha": 0}, "cutmix_alpha=0"),
        ({"seed": 1 << 63}, "64 bits"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InputError, match=message):
        MixupOrCutMix(**options)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.rand(3, 4, 4), own(3), r"images has shape \(3, 4, 4\)"),
        (torch.rand(3, 3, 0, 4), own(3), "no side but N being 0"),
        (torch.zeros(3, 3, 4, 4, dtype=torch.uint8), own(3), "only floats can be mixed"),
        (torch.rand(3, 3, 4, 4), own(4), "labels must be 3 whole numbers"),
        (torch.rand(3, 3, 4, 4), torch.ones(3, dtype=torch.bool), "torch.bool"),
        (torch.rand(3, 3, 4, 4), torch.tensor([0, 1, 5]), "labels must lie in 0 to 4, found 0 to 5"),
        (torch.rand(3, 3, 4, 4), torch.tensor([0, -1, 2]), "found -1 to 2"),
        (torch.rand(3, 3, 4, 4), torch.rand(3, 6), "soft labels must be 3×5"),
        (torch.rand(3, 3, 4, 4), torch.rand(3), r"soft labels must be 3×5, found \(3,\)"),
        (torch.rand(3, 3, 4, 4, device="cpu"), own(3).to("meta"), "labels is on meta and images on cpu"),
    ],
)
def test_bad_batches(images, labels, message):
    with pytest.raises(InputError, match=message):
        Mixup(5)(images, labels)


def test_bad_calls():
    images = torch.rand(3, 3, 4, 4)
    with pytest.raises(InputError, match="need num_classes"):
        Mixup()(images, own(3))
    with pytest.raises(InputError, match="labels, masks or both"):
        CutMix()(images)
    with pytest.raises(InputError, match=r"masks is \(3, 4, 5\).*must be \(3, 4, 4\) or \(3, 1, 4, 4\)"):
        CutMix()(images, masks=torch.zeros(3, 4, 5))
    with pytest.raises(InputError, match="index must be 3 whole numbers"):
        Mixup(3)(images, own(3), index=torch.arange(4))
    with pytest.raises(InputError, match="epoch=-1"):
        Mixup(3).set_epoch(-1)
