"""The feed on a real GPU: the same batches as on the CPU, and values that stay right under pressure."""

from __future__ import annotations

import time

import pytest
import torch

from fulltilt.augment import GPUAugmentation
from fulltilt.bench.photos import make_photos
from fulltilt.feed import ImageFiles, feed
from fulltilt.feed.images.kept import Mode
from fulltilt.feed.tensor_feed import TensorFeed


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    make_photos(folder, 150, size=(160, 120), target_bytes=12_000)
    return folder


def batches(folder, device, epochs=2, **more):
    augment = GPUAugmentation(0.5, 15, 0.2, 0.2, size=64, channels_last=True)
    source = ImageFiles(folder)
    with feed(source, batch_size=32, device=device, shuffle=True, augment=augment, num_workers=3, **more) as it:
        return [images.cpu() for _ in range(epochs) for (images,) in it]


def test_batches_are_those_of_the_cpu(folder):
    ours, reference = batches(folder, "cuda"), batches(folder, "cpu")
    assert len(ours) == len(reference) == 10
    for a, b in zip(ours, reference, strict=True):
        assert a.shape == b.shape
        assert (a - b).abs().max() <= 1 / 255


@pytest.mark.parametrize("share", [0.4, 1.0])
def test_batches_of_which_the_gpu_decodes_a_part(folder, share):
    """Within the GPU decoder's stated tolerance of the CPU's fast path."""
    reference = batches(folder, "cpu", quality="fast")
    ours = batches(folder, "cuda", quality="fast", gpu_share=share)
    plain = batches(folder, "cuda", quality="fast", gpu_share=0)
    assert plain
    for a, b, c in zip(ours, reference, plain, strict=True):
        assert (a - b).abs().mean() <= 2.5 / 255
        assert ((a - c).abs().flatten(1).amax(1) > 0).float().mean() >= share - 0.1  # the GPU's pixels, really


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_values_stay_right_under_pressure(folder, share):
    """The step's stream is slow and memory is churned: what the side stream wrote must still be there."""
    augment = GPUAugmentation(0.0, 0, 0, 0, size=32, channels_last=True, dtype=torch.uint8).eval()
    wanted = {"batch_size": 30, "device": "cuda", "augment": augment, "num_workers": 3, "gpu_share": share}
    with feed(ImageFiles(folder), **wanted) as it:
        first = [images.sum(dtype=torch.int64) for (images,) in it]
        sums = []
        for _ in range(60):
            for (images,) in it:
                torch.cuda._sleep(200_000)
                junk = [torch.full((1 << 20,), 255, dtype=torch.uint8, device="cuda") for _ in range(3)]
                sums.append(images.sum(dtype=torch.int64))
                del junk, images
        assert torch.equal(torch.stack(sums), torch.stack(first).repeat(60))


def test_the_step_is_timed_by_the_device_alone(folder):
    """Host work beside the step, and waiting for the feed, don't count; nobody waits for the clock."""
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begun.record()
    torch.cuda._sleep(20_000_000)
    ended.record()
    ended.synchronize()
    expected = begun.elapsed_time(ended) / 1e3
    with feed(ImageFiles(folder), batch_size=30, size=64, device="cuda", num_workers=3) as it:
        for _ in range(4):
            for (_images,) in it:
                torch.cuda._sleep(20_000_000)
        torch.cuda.synchronize()
        time.sleep(0.3)  # between two epochs: not a step
        next(iter(it))
        assert it.stats()["step_seconds_per_sample"] * 30 == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("mode", [Mode.ENCODED, Mode.DECODED])
def test_batches_are_the_same_from_memory(folder, mode):
    reference = batches(folder, "cuda", epochs=4)
    augment = GPUAugmentation(0.5, 15, 0.2, 0.2, size=64, channels_last=True)
    wanted = {"batch_size": 32, "device": "cuda", "shuffle": True, "augment": augment, "num_workers": 3}
    with feed(ImageFiles(folder), cache="auto", **wanted) as it:
        it._auto.kept.begin(mode, budget_bytes=1 << 30)
        ours = [images.cpu() for _ in range(4) for (images,) in it]
        assert it.stats()["kept_samples"] == 150
        assert it.stats()["copy_samples_per_second"] > 0
    assert all(torch.equal(a, b) for a, b in zip(ours, reference, strict=True))


@pytest.mark.parametrize("written_out", [True, False])
def test_windows_on_the_device(monkeypatch, written_out):
    """Views that overlap are gathered as they are where there is no room to write them out."""
    windows = torch.randn(5000, 4, 16).unfold(0, 72, 1).movedim(-1, 2)
    if not written_out:
        monkeypatch.setattr("fulltilt.feed.tensor_feed.has_room", lambda device, needed: needed < windows.nbytes)
    before = torch.cuda.memory_allocated()
    it = feed((windows, torch.arange(len(windows))), batch_size=64, shuffle=True, device="cuda")
    assert it.resident
    taken = torch.cuda.memory_allocated() - before
    assert (taken >= windows.nbytes) if written_out else (taken < windows.nbytes / 20)
    for ours, numbers in it:
        assert torch.equal(ours.cpu(), windows[numbers.cpu()])


@pytest.mark.parametrize("resident", [True, False])
def test_tensors_resident_or_through_pinned_memory(resident):
    x, y = torch.randn(1000, 24, 16), torch.arange(1000)
    it = feed((x, y), batch_size=64, shuffle=True, device="cuda")
    other = TensorFeed((x, y), it.order, device=torch.device("cuda", 0), ahead=2, resident=resident)
    assert len(it) == 16
    for _ in range(3):
        for ours, again in zip(it, other, strict=True):
            torch.cuda._sleep(50_000)
            assert torch.equal(ours[1], again[1])
            assert torch.equal(ours[0], again[0])
            assert torch.equal(ours[0].cpu(), x[ours[1].cpu()])
