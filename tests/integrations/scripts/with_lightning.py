"""The task in Lightning."""

import json
import logging
import sys
import warnings
from pathlib import Path

import lightning.pytorch as lightning
import torch
from task import BATCH, EPOCHS, Model, Slow
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy

from fulltilt.integrations import LightningCallback

torch.set_num_threads(1)
warnings.simplefilter("ignore")  # Lightning's advice about workers
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def training_step(self, batch, number):
        return self.model(*batch)

    def validation_step(self, batch, number):
        self.log("val_loss", self.model(*batch)["loss"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main(out: Path) -> None:
    lines = []
    callback = LightningCallback(
        metrics={"accuracy": MulticlassAccuracy(4, average="micro")},
        pair=lambda output, batch: (output["logits"], batch[1]),
        show=lines.append,
    )
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        callbacks=[callback],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(out.parent),
    )
    trainer.fit(Module(), DataLoader(Slow(), batch_size=BATCH), DataLoader(Slow(), batch_size=BATCH))
    logged = float(trainer.callback_metrics["train_accuracy"])
    out.write_text(json.dumps({"summary": callback.summary.to_json(), "lines": lines, "logged": logged}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
