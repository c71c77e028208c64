"""The example code of the guide on CPU and GPU working together, as it is written there."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import autocast, nn
from torch.nn import functional as F

from fulltilt import AsyncDataProcessor, CPUAssistedTraining, HybridPrecisionTrainer
from fulltilt.assist import extract_features


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.mix = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(6, 4)
        self.head = nn.Conv2d(4, 1, 1)

    def forward(self, images, sim_feats):
        return self.head(self.conv(images) + self.mix(sim_feats)[:, :, None, None])


def batch():
    return torch.rand(2, 3, 16, 16), torch.randint(0, 2, (2, 1, 16, 16)).float(), torch.rand(2, 6)


def test_tasks_by_the_names_of_the_guide():
    """`compute_metrics`, `data_preprocessing` and feature extraction, taken from a queue by worker threads."""
    images, masks, _ = batch()
    before = set(threading.enumerate())
    num_cpu_workers = 2
    assist = CPUAssistedTraining(num_cpu_workers)
    futures = {
        task_type: assist.submit(task_type, *data)
        for task_type, data in {
            "compute_metrics": (torch.randn(2, 1, 16, 16), masks),
            "data_preprocessing": ((images, masks),),
            "extract_features": (images,),
        }.items()
    }
    results = {task_type: future.result(timeout=10) for task_type, future in futures.items()}
    assert {"iou", "dice", "accuracy"} <= results["compute_metrics"].keys()
    assert torch.equal(results["data_preprocessing"][0], images)
    assert results["extract_features"].shape == (2, 3 * 16 + 8 * 4)
    started = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("fulltilt-")]
    workers = [thread for thread in started if thread.name.rpartition("-")[2].isdigit()]
    assert len(workers) == num_cpu_workers
    assist.close()
    assert not any(thread.is_alive() for thread in started)


def test_the_trainer_of_the_guide_set_up_by_hand(capsys):
    """Its code for use, to the letter; nothing is measured of a GPU after one step, or where there is none."""
    model, device = Segmenter(), torch.device("cpu")
    optimizer = torch.optim.AdamW(model.parameters())
    images, masks, sim_feats = batch()

    hybrid_trainer = HybridPrecisionTrainer(
        model=model,
        optimizer=optimizer,
        device=device
    )  # fmt: skip

    loss, outputs = hybrid_trainer.train_step(images, masks, sim_feats)

    stats = hybrid_trainer.get_performance_stats()
    print(f"GPU利用率: {stats['gpu_utilization']:.1f}%")

    assert loss.isfinite()
    assert outputs.shape == masks.shape
    assert capsys.readouterr().out == "GPU利用率: nan%\n"
    assert "gpu_utilization" not in stats
    assert stats["avg_cpu_time"] > 0
    with pytest.raises(KeyError, match="figures are avg_cpu_time"):
        stats["utilization"]


def test_the_three_classes_of_the_guide_in_one_loop():
    """Metrics on CPU threads, the next batch made ready by others, the step on the device."""
    model = Segmenter()
    trainer = HybridPrecisionTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), device="cpu")
    raw = [((images * 255).byte(), masks) for images, masks, _ in (batch() for _ in range(8))]
    reference = torch.rand(6, 3 * 16 + 8 * 4)

    def prepare(pair):
        images, masks = pair
        return images.float() / 255, masks, extract_features(images, reference=reference)

    with CPUAssistedTraining(2) as assist:
        pending = []
        for images, masks, sim_feats in trainer.prepared(raw, prepare):
            loss, outputs = trainer.train_step(images, masks, sim_feats)
            pending.append(assist.submit("compute_metrics", outputs, masks))
            assert loss.isfinite()
        assert all(0 <= future.result()["iou"] <= 1 for future in pending)
    assert len(pending) == len(raw)
    assert trainer.get_performance_stats()["background_seconds"] > 0


def test_the_step_of_the_guide():
    """Its train_step: a CPU task is submitted, the GPU works, what the CPU has completed is collected."""

    class HybridPrecisionTrainer:
        def __init__(self, model, optimizer, num_async_workers):
            self.model, self.optimizer = model, optimizer
            self.async_processor = AsyncDataProcessor(num_async_workers, preprocess=lambda b: b[0].mean())

        def train_step(self, images, masks, sim_feats):
            cpu_future = self.async_processor.submit_preprocessing((images, masks))
            with autocast("cpu", torch.bfloat16):
                outputs = self.model(images, sim_feats)
            loss = F.binary_cross_entropy_with_logits(outputs.float(), masks)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            cpu_results = self.async_processor.get_completed_results()
            return loss, outputs, cpu_future, cpu_results

    model = Segmenter()
    trainer = HybridPrecisionTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), num_async_workers=2)
    collected, batches = [], [batch() for _ in range(10)]
    for images, masks, sim_feats in batches:
        loss, outputs, cpu_future, cpu_results = trainer.train_step(images, masks, sim_feats)
        collected += cpu_results
        assert loss.isfinite()
        assert outputs.shape == masks.shape
    assert cpu_future.exception(timeout=10) is None
    trainer.async_processor.close()
    collected += trainer.async_processor.get_completed_results()
    assert torch.equal(torch.stack(collected), torch.stack([images.mean() for images, _, _ in batches]))


def test_the_numbers_of_workers_of_the_guide():
    """4 + 3 from 8 cores on, 2 + 2 from 4, 1 + 1 below, where loading can spare them; "auto" is at least 1."""
    with CPUAssistedTraining() as assist, AsyncDataProcessor() as processor:
        assert 1 <= assist.stats().workers <= 4
        assert 1 <= processor.stats().workers <= 3
