"""Augmentation on a real GPU: against the torch path, against torchvision, captured, compiled, and without waiting."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.augment.checks import Labels
from tests.augment.support import torch_path
from tests.gpu.needs import library

from fulltilt.augment import GPUAugmentation, MinimalGPUAugmentation, ProgressiveAugmentation, StrongGPUAugmentation

GUIDE = {"horizontal_flip_prob": 0.5, "rotation_degrees": 15, "brightness": 0.2, "contrast": 0.2}
BF16 = {"normalize": "imagenet", "dtype": torch.bfloat16}


def photos(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda")


def masks(*shape: int) -> torch.Tensor:
    return torch.randint(0, 7, shape, device="cuda")


def poison(gigabytes: float = 1.0) -> None:
    """Leave NaN in the memory that the next outputs will be given."""
    blocks = [torch.full((1 << 22,), float("nan"), device="cuda") for _ in range(int(gigabytes * 64))]
    del blocks


def on_cpu(augmentation: GPUAugmentation, *inputs, **options):
    twin = copy.deepcopy(augmentation).cpu()
    move = lambda x: [y.cpu() for y in x] if isinstance(x, list) else x.cpu()  # noqa: E731
    return twin(*(move(x) for x in inputs), **{k: move(v) for k, v in options.items()})


def agree(ours, reference, tolerance: float) -> None:
    images, expected = ours.cpu().float(), reference.float()
    assert not images.isnan().any(), "something was not written"
    difference = (images - expected).abs()
    scale = expected.abs().clamp(min=1.0)
    assert (difference / scale).max() <= tolerance


def allowed_labels(augmentation: GPUAugmentation, images, labels, index: torch.Tensor) -> Labels:
    """What places in float64 say; where one falls between two pixels, float32 may take it to either side."""
    twin = copy.deepcopy(augmentation).cpu()
    images, labels = ([y.cpu() for y in x] if isinstance(x, list) else x.cpu() for x in (images, labels))
    with torch_path() as path:
        return Labels.of(path, twin, images, labels, index)


CASES = {
    "guide": (GPUAugmentation, {**GUIDE, **BF16}, (8, 120, 200, 3), 0.01),
    "odd": (GPUAugmentation, {**GUIDE}, (3, 61, 47, 3), 2e-4),
    "planar": (GPUAugmentation, {**GUIDE, "fill": "reflect"}, (3, 3, 61, 47), 2e-5),
    "strong": (StrongGPUAugmentation, {**BF16}, (8, 96, 128, 3), 0.03),
    "crop": (
        GPUAugmentation,
        {**GUIDE, "rotation_degrees": 0.0, "random_resized_crop": True, "size": (56, 64), **BF16},
        (8, 200, 180, 3),
        0.01,
    ),
    "tone": (
        GPUAugmentation,
        {"hue": 0.5, "saturation": 0.5, "gray_prob": 0.3, "invert_prob": 0.3, "solarize_prob": 0.5, "gamma": 0.5},
        (8, 64, 64, 3),
        2e-3,
    ),
    "narrow": (GPUAugmentation, {**GUIDE, "perspective": 0.5, "scale": 0.5}, (4, 33, 3, 3), 2e-4),
    "one channel": (GPUAugmentation, {**GUIDE, "contrast_pivot": "mean", "noise_std": 0.1}, (4, 1, 50, 70), 2e-4),
}


@pytest.mark.parametrize("name", CASES)
def test_kernels_agree_with_the_torch_path(name):
    kind, options, shape, tolerance = CASES[name]
    layout = "channels_last" if shape[-1] == 3 else "channels_first"
    augmentation = kind(**options, layout=layout, seed=5)
    images = photos(*shape)
    labels = masks(shape[0], *(shape[1:3] if layout == "channels_last" else shape[2:]))
    index = torch.randint(0, 1 << 40, (shape[0],), generator=torch.Generator().manual_seed(0))
    reference, reference_labels = on_cpu(augmentation, images, labels, index=index)
    allowed = allowed_labels(augmentation, images, labels, index)
    allowed.check(reference_labels)
    for _ in range(3):  # the first call compiles, later ones are launched directly
        poison()
        out, out_labels = augmentation(images, labels, index=index.cuda())
        agree(out, reference, tolerance)
        allowed.check(out_labels.cpu())


def test_a_large_batch_agrees_on_some_of_its_samples():
    augmentation = GPUAugmentation(**GUIDE, **BF16)
    images, labels = photos(32, 512, 512, 3), masks(32, 512, 512)
    augmentation(images[:2], labels[:2])
    poison(2)
    index = torch.arange(32, device="cuda")
    out, out_labels = augmentation(images, labels, index=index)
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert not out.isnan().any()
    some = torch.tensor([0, 13, 31])
    reference, _ = on_cpu(augmentation, images[some], labels[some], index=some)
    agree(out[some.cuda()], reference, 0.01)
    allowed_labels(augmentation, images[some], labels[some], some).check(out_labels[some.cuda()].cpu())


@pytest.mark.parametrize("planar", [False, True])
def test_images_of_different_sizes(planar):
    augmentation = GPUAugmentation(0.5, 0, 0, 0, random_resized_crop=True, size=64, **BF16)
    sizes = torch.randint(40, 300, (24, 2)).tolist()
    images = [photos(3, h, w) if planar else photos(h, w, 3) for h, w in sizes]
    labels = [masks(h, w) for h, w in sizes]
    index = torch.arange(24)
    reference, _ = on_cpu(augmentation, images, labels, index=index)
    poison()
    out, out_labels = augmentation(images, labels, index=index.cuda())
    agree(out, reference, 0.01)
    allowed_labels(augmentation, images, labels, index).check(out_labels.cpu())


def test_clips_share_a_draw_and_not_their_noise():
    augmentation = GPUAugmentation(**GUIDE, noise_std=0.1)
    clip = photos(1, 1, 3, 40, 60).expand(2, 5, 3, 40, 60)
    reference = on_cpu(augmentation, clip)
    out = augmentation(clip)
    agree(out, reference, 2e-4)
    assert not torch.equal(out[0, 0], out[0, 1])


def test_a_graph_draws_anew_at_each_replay_like_eager_calls():
    augmentation = StrongGPUAugmentation(**BF16)
    images, labels = photos(4, 64, 96, 3), masks(4, 64, 96)
    for _ in range(3):
        augmentation(images, labels)
    torch.cuda.synchronize()
    augmentation.set_epoch(3)
    expected = [augmentation(images, labels) for _ in range(3)]
    augmentation.set_epoch(3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = augmentation(images, labels)
    augmentation.set_epoch(3)
    for eager in expected:
        graph.replay()
        assert torch.equal(out[0], eager[0])
        assert torch.equal(out[1], eager[1])
    assert not torch.equal(expected[0][0], expected[1][0])


def test_compiled_without_a_break():
    augmentation = GPUAugmentation(**GUIDE, **BF16)
    images, labels = photos(4, 64, 96, 3), masks(4, 64, 96)
    compiled = torch.compile(lambda x, y: [t + 0 for t in augmentation(x, y)], fullgraph=True)
    first = compiled(images, labels)
    second = compiled(images, labels)
    augmentation.set_epoch(0)
    for ours in (first, second):
        expected = augmentation(images, labels)
        assert torch.equal(ours[0], expected[0])
        assert torch.equal(ours[1], expected[1])


def test_nothing_waits_for_the_device():
    augmentation = ProgressiveAugmentation(**BF16, switch_epoch=1)
    images, labels = photos(4, 64, 96, 3), masks(4, 64, 96)
    augmentation(images, labels)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")  # test_augment_peers.py looks at a trace as well
    try:
        for epoch in range(3):
            augmentation.set_epoch(epoch)
            augmentation(images, labels, boxes=torch.rand(4, 2, 4, device="cuda"))
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_shorter_batch_and_another_strength_compile_nothing():
    from fulltilt.augment.kernels.draw import draw
    from fulltilt.augment.kernels.warp import warp

    def compiled() -> int:
        return sum(len(caches[0]) for kernel in (draw, warp) for caches in kernel.device_caches.values())

    augmentation = GPUAugmentation(**GUIDE, **BF16)
    augmentation(photos(8, 64, 96, 3))
    before = compiled()
    augmentation(photos(3, 64, 96, 3))
    augmentation(photos(1, 64, 96, 3))
    augmentation(photos(8, 80, 100, 3))
    augmentation.strength = 0.25
    augmentation(photos(8, 64, 96, 3))
    assert compiled() == before


def test_copies_are_exact():
    images = photos(6, 40, 40, 3)
    flips = MinimalGPUAugmentation(1.0, vertical_flip_prob=1.0, dtype=torch.uint8)
    assert torch.equal(flips(images), images.permute(0, 3, 1, 2).flip(2, 3))
    crop = GPUAugmentation(0, 0, 0, 0, random_crop=(20, 24), dtype=torch.uint8).eval()
    assert torch.equal(crop(images), images.permute(0, 3, 1, 2)[:, :, 10:30, 8:32])
    turned = GPUAugmentation(0, 0, 0, 0, quarter_turn_prob=1.0, dtype=torch.uint8)(images)
    planes = images.permute(0, 3, 1, 2)
    assert all(any(torch.equal(turned[k], planes[k].rot90(turns, (1, 2))) for turns in (1, 2, 3)) for k in range(6))


class TestAgainstTorchvision:
    """The same parameters, op by op, within one level of 255."""

    @pytest.fixture(autouse=True)
    def functional(self):
        self.f = library("torchvision.transforms.v2.functional")

    def one(self, name: str, value, **more) -> GPUAugmentation:
        off = {"horizontal_flip_prob": 0.0, "rotation_degrees": 0.0, "brightness": 0.0, "contrast": 0.0}
        return GPUAugmentation(**(off | {name: value} | more), dtype=torch.float32)

    @pytest.mark.parametrize(
        ("name", "value", "reference"),
        [
            ("brightness", 1.3, "adjust_brightness"),
            ("saturation", 0.4, "adjust_saturation"),
            ("hue", 0.2, "adjust_hue"),
            ("gamma", 0.7, "adjust_gamma"),
            ("contrast", 1.4, "adjust_contrast"),
        ],
    )
    def test_colour(self, name, value, reference):
        images = torch.rand(3, 3, 50, 60, device="cuda")
        more = {"contrast_pivot": "mean"} if name == "contrast" else {}
        ours = self.one(name, (value, value), **more)(images)
        assert (ours - getattr(self.f, reference)(images, value)).abs().max() <= 1 / 255

    def test_rotation(self):
        images = torch.rand(2, 3, 51, 64, device="cuda")
        bilinear = self.f.InterpolationMode.BILINEAR
        ours = self.one("rotation_degrees", (23.0, 23.0))(images)
        assert (ours - self.f.rotate(images, -23.0, interpolation=bilinear)).abs().max() <= 1 / 255

    @pytest.mark.parametrize("size", [(30, 20), (7, 90), (128, 150)])
    def test_resize(self, size):
        images = photos(2, 3, 90, 120)
        ours = self.one("size", size).eval()(images)
        reference = self.f.resize(images.float() / 255, list(size), antialias=True)
        assert (ours - reference).abs().max() <= 1 / 255
