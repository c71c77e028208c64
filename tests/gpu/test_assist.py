"""Tensors handed over to CPU tasks from a real GPU: right values, no wait, bounded memory."""

from __future__ import annotations

import time

import pytest
import torch
from torchmetrics.classification import (
    BinaryAccuracy,
    BinaryAUROC,
    BinaryF1Score,
    BinaryJaccardIndex,
    MulticlassAccuracy,
    MulticlassJaccardIndex,
)

from fulltilt import CPUAssistedTraining, HybridPrecisionTrainer
from fulltilt.assist.beside import MetricsBeside
from fulltilt.assist.handover import Handover

pytestmark = pytest.mark.gpu


def test_values_are_those_of_the_moment_of_submitting():
    """The tensor's memory is written again at once, by the stream that the step runs on."""
    with CPUAssistedTraining(2) as assist:
        pending = []
        for n in range(200):
            outputs = torch.full((256, 1024), float(n), device="cuda").requires_grad_() * 1
            pending.append(
                assist.submit(lambda t: (t.device.type, t.requires_grad, float(t.min()), float(t.max())), outputs)
            )
            del outputs  # the allocator may give its memory to the next
        for n, future in enumerate(pending):
            assert future.result(30) == ("cpu", False, n, n)
        assert assist.stats().held_bytes == 0


def test_submitting_does_not_wait_for_the_gpu():
    with CPUAssistedTraining(1) as assist:
        small = torch.ones(1024, device="cuda")
        assist.submit(torch.sum, small).result(30)  # the stream and the pinned memory are there
        torch.cuda.synchronize()
        began = time.perf_counter()
        torch.cuda._sleep(1_000_000_000)  # about half a second of the GPU's clock
        doubled = small * 2
        future = assist.submit(torch.sum, doubled)
        submitted = time.perf_counter() - began
        assert not future.done()
        assert float(future.result(30)) == 2048
        waited = time.perf_counter() - began
    assert submitted < 0.1 < waited


def test_layouts_and_structures_survive():
    images = torch.rand(2, 3, 8, 8, device="cuda").to(memory_format=torch.channels_last)
    given = {"images": images, "part": images[:, 1:, ::2], "wide": images[:, :1].expand(2, 5, 8, 8), "n": 3}
    taken, size, ready = Handover().take(given)
    ready()
    assert size >= images.numel() * 4
    assert taken["images"].is_pinned()
    assert taken["images"].is_contiguous(memory_format=torch.channels_last)
    for name in ("images", "part", "wide"):
        assert torch.equal(taken[name], given[name].cpu())
    assert taken["n"] == 3


def test_pinned_memory_is_bounded():
    limit = 8 << 20
    with CPUAssistedTraining(1, max_pinned_bytes=limit) as assist:
        tensor = torch.ones(1 << 20, device="cuda")  # 4 MiB
        most = 0
        for _ in range(30):
            assist.submit(lambda t: time.sleep(0.005), tensor)
            most = max(most, assist.stats().held_bytes)
    assert 0 < most <= limit


# --- metrics beside the step -----------------------------------------------------------------------------------------


def binary_metrics():
    return {
        "iou": BinaryJaccardIndex(),
        "dice": BinaryF1Score(),
        "auroc": BinaryAUROC(thresholds=50),
        "exact": BinaryAUROC(),
    }


def test_metrics_beside_a_gpu_are_those_of_the_cpu_in_the_loop():
    expected = binary_metrics()
    beside = MetricsBeside(binary_metrics(), torch.device("cuda"), prefix="", workers=3)
    draw = torch.Generator("cuda").manual_seed(0)
    for _ in range(12):
        outputs = torch.randn(4, 1, 256, 256, generator=draw, device="cuda").bfloat16()
        masks = torch.randint(2, (4, 256, 256), generator=draw, device="cuda", dtype=torch.uint8)
        beside.add(outputs, masks)
        for metric in expected.values():
            metric.update(outputs.squeeze(1).cpu(), masks.cpu())
        del outputs, masks  # the allocator may give their memory to the next step
    beside_values = beside.compute()
    assert beside_values == {name: float(metric.compute()) for name, metric in expected.items()}
    beside.close()


def test_class_numbers_are_found_on_the_gpu_as_on_the_cpu():
    """bf16 scores of four classes: many are the same, and the first of them is taken on both."""
    metrics = {"accuracy": MulticlassAccuracy(4), "iou": MulticlassJaccardIndex(4)}
    expected = {name: metric.clone() for name, metric in metrics.items()}
    beside = MetricsBeside(metrics, torch.device("cuda"), prefix="", workers=2)
    draw = torch.Generator("cuda").manual_seed(0)
    for _ in range(12):
        scores = torch.randn(4, 4, 256, 256, generator=draw, device="cuda").mul(2).round().bfloat16()
        labels = torch.randint(4, (4, 256, 256), generator=draw, device="cuda")
        beside.add(scores.to(memory_format=torch.channels_last), labels)
        for metric in expected.values():
            metric.update(scores.cpu(), labels.cpu())
    assert beside.compute() == {name: float(metric.compute()) for name, metric in expected.items()}
    beside.close()


def test_small_batches_are_handed_over_together_and_without_a_wait():
    beside = MetricsBeside({"accuracy": MulticlassAccuracy(10)}, torch.device("cuda"), prefix="")
    outputs, labels = torch.randn(32, 10, device="cuda"), torch.randint(10, (32,), device="cuda")
    for _ in range(300):  # pinned memory is there, and the first batch, which is waited for, is over
        beside.add(outputs, labels)
    beside.compute()
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)  # about half a second of the GPU's clock
    began = time.perf_counter()
    for _ in range(300):
        beside.add(outputs, labels)
    assert time.perf_counter() - began < 0.25
    expected = MulticlassAccuracy(10)
    expected.update(outputs.cpu(), labels.cpu())
    assert beside.compute()["accuracy"] == pytest.approx(float(expected.compute()), abs=1e-6)
    beside.close()


def test_metrics_that_the_cpu_can_not_keep_up_with_go_to_the_device_and_count_the_same():
    class Slow(BinaryAccuracy):
        def update(self, preds, target):
            if preds.device.type == "cpu":
                time.sleep(0.2)
            super().update(preds, target)

    beside = MetricsBeside({"slow": Slow()}, torch.device("cuda"), prefix="", workers=1)
    outputs = torch.rand(1, 4096, 4096, device="cuda")  # more than is gathered
    masks = torch.randint(2, (1, 4096, 4096), device="cuda")
    for _ in range(60):
        beside.add(outputs, masks)
    assert beside.decision is not None
    assert beside.decision.value == {"slow"}
    expected = BinaryAccuracy()
    expected.update(outputs.cpu(), masks.cpu())
    assert beside.compute() == {"slow": pytest.approx(float(expected.compute()), abs=1e-7)}
    beside.close()


def test_batches_are_prepared_and_on_the_device_in_time():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 3))
    trainer = HybridPrecisionTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), device="cuda")
    raw = [(torch.randint(0, 256, (8, 3, 4, 4), dtype=torch.uint8), torch.randint(3, (8,))) for _ in range(20)]

    def prepare(batch):
        return batch[0].float() / 255, batch[1]

    seen = 0
    for (images, labels), (expected, _) in zip(trainer.prepared(raw, prepare), raw, strict=True):
        assert images.is_cuda
        assert torch.equal(images.cpu(), expected.float() / 255)
        assert trainer.train_step(images, labels).loss.isfinite()
        seen += 1
    assert seen == 20
