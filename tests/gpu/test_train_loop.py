"""The loop on a real GPU: nothing in it waits for the device, a bad loss is named exactly, metrics are exact."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from fulltilt import GPUAugmentation, Trainer
from fulltilt.errors import InputError, LossError
from fulltilt.feed import feed
from fulltilt.train.callbacks import Callback
from fulltilt.train.models import SmallCnn
from fulltilt.train.shapes import shapes

FIXED = {"precision": "fp32", "compile": False, "cuda_graph": False, "channels_last": False, "fused": True}


def dense() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(768, 16), nn.ReLU(), nn.Linear(16, 4))


def pictures(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = shapes(count, 16)
    return images.float() / 255, labels


def trained(model: nn.Module, source, *, augmentation=None, callbacks=(), metrics=None, **config) -> Trainer:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    settings = {"training": {"epochs": 2, **FIXED, **config}, "logging": {"perf_interval": 20}}
    return Trainer(
        model,
        source,
        None,
        functional.cross_entropy,
        optimizer,
        config=settings,
        gpu_augmentation=augmentation,
        callbacks=callbacks,
        metrics=metrics,
    )


def test_the_loop_never_waits_for_the_device():
    """In the second epoch, when all kernels are known: augmentation, losses and [perf] lines without a waiting call."""

    class Strict(Callback):
        def on_epoch_end(self, trainer, record):
            run = trainer._training.run

            def strictly(*args):
                torch.cuda.set_sync_debug_mode("error")
                try:
                    return run(*args)
                finally:
                    torch.cuda.set_sync_debug_mode("default")

            trainer._training.run = strictly

    source = feed(shapes(4096, 16), batch_size=32, shuffle=True, seed=1)
    trainer = trained(SmallCnn(4, width=8), source, augmentation=GPUAugmentation(0.5), callbacks=[Strict()])
    history = trainer.fit()
    assert len(history.losses) == 256
    assert history.epochs[1]["train_loss"] < history.epochs[0]["train_loss"]


@pytest.mark.parametrize("graph", [False, True])
def test_a_bad_loss_is_named_exactly_however_late_it_is_seen(graph):
    images, labels = pictures(120 * 32)
    images[101 * 32 + 5] = float("inf")
    trainer = trained(dense(), feed((images, labels), batch_size=32), cuda_graph=graph)
    with pytest.raises(LossError) as caught:
        trainer.fit()
    assert (caught.value.step, caught.value.epoch, caught.value.batch) == (102, 1, 102)


def test_skip_on_the_device_is_as_if_the_batch_had_not_been():
    images, labels = pictures(640)
    keep = torch.cat([torch.arange(320), torch.arange(352, 640)])
    plain, guarded = dense(), dense()
    trained(plain, feed((images[keep], labels[keep]), batch_size=32)).fit()
    images[320] = float("nan")
    history = trained(guarded, feed((images, labels), batch_size=32), nan_policy="skip").fit()
    assert [record["bad_losses"] for record in history.epochs] == [1, 1]
    for first, second in zip(plain.parameters(), guarded.parameters(), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-6)


def test_rollback_goes_back_to_before_the_batch(tmp_path):
    images, labels = pictures(120 * 32)
    images[101 * 32 + 5] = float("nan")
    trainer = trained(
        dense(),
        feed((images, labels), batch_size=32),
        epochs=1,
        nan_policy="rollback",
        checkpoint_every_steps=20,
        output=str(tmp_path),
    )
    trainer.fit()
    assert trainer.step == 119
    assert all(bool(torch.isfinite(weight).all()) for weight in trainer.model.parameters())


@pytest.mark.parametrize("graph", [False, True])
def test_metrics_and_losses_survive_a_step_that_reuses_its_memory(graph):
    source = feed(pictures(1024), batch_size=32)
    metric = MulticlassAccuracy(4, average="micro")
    expected = metric.clone().cuda()
    seen: list[float] = []

    trainer = trained(dense(), source, metrics={"accuracy": metric}, epochs=1, cuda_graph=graph)
    step = trainer.stepper.train_step

    def watched(*batch):
        result = step(*batch)
        expected.update(result.outputs, batch[1])
        seen.append(float(result.loss))
        return result

    trainer.stepper.train_step = watched  # type: ignore[method-assign]
    history = trainer.fit()
    assert history.last["train_accuracy"] == float(expected.compute())
    assert list(history.losses) == seen


def test_resuming_in_the_middle_of_an_epoch_goes_on_from_the_same_weights(tmp_path):
    def make(**config):
        source = feed(shapes(2048, 16), batch_size=32, shuffle=True, seed=1)
        torch.manual_seed(0)
        model = SmallCnn(4, width=8)
        return trained(model, source, augmentation=GPUAugmentation(0.5, seed=4), output=str(tmp_path), **config)

    whole = make(checkpoint_every_steps=40, keep_last=99).fit()
    (saved,) = (tmp_path / "checkpoints").glob("*-step-40.*")
    again = make()
    assert again.resume(saved) == 40
    continued = again.fit()
    assert list(continued.losses) == pytest.approx(list(whole.losses)[40:], rel=2e-2)
    assert list(continued.losses)[:3] == pytest.approx(list(whole.losses)[40:43], rel=1e-4)


@pytest.mark.parametrize("kind", ["loader", "iterable", "tensors"])
def test_a_label_out_of_range_in_any_batch_leaves_the_device_alive(kind):
    images, labels = pictures(128)
    labels[100] = 4
    source = {
        "loader": lambda: DataLoader(TensorDataset(images, labels), 8),
        "iterable": lambda: list(zip(images.split(8), labels.split(8), strict=True)),
        "tensors": lambda: feed((images, labels), batch_size=8),
    }[kind]()
    with pytest.raises(InputError, match="labels out of range: found 4; the model has 4 outputs"):
        trained(dense(), source).fit()
    torch.cuda.synchronize()
    assert float(torch.ones(2, device="cuda").sum()) == 2.0


def test_mappings_train_as_tuples_do():
    images, labels = pictures(64)
    records = [{"label": y, "path": "somewhere", "image": x} for x, y in zip(images, labels, strict=True)]
    losses = [
        trained(dense(), DataLoader(source, 8)).fit().losses for source in (TensorDataset(images, labels), records)
    ]
    assert losses[0] == losses[1]
