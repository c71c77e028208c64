"""The task in Hugging Face's Trainer."""

import json
import sys
from pathlib import Path

import torch
from task import BATCH, EPOCHS, Model, Slow
from torchmetrics.classification import MulticlassAccuracy
from transformers import Trainer, TrainingArguments

from fulltilt.integrations import HuggingFaceCallback

torch.set_num_threads(1)


def main(out: Path) -> None:
    lines = []
    metrics = {"accuracy": MulticlassAccuracy(4, average="micro")}
    callback = HuggingFaceCallback(metrics=metrics, show=lines.append)
    arguments = TrainingArguments(
        str(out.parent / "trained"),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH,
        eval_strategy="epoch",
        save_strategy="epoch",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    data = Slow(named=True)
    trainer = Trainer(Model(), arguments, train_dataset=data, eval_dataset=data, callbacks=[callback])
    trainer.train()
    logged = [entry["train_accuracy"] for entry in trainer.state.log_history if "train_accuracy" in entry]
    out.write_text(json.dumps({"summary": callback.summary.to_json(), "lines": lines, "logged": logged}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
