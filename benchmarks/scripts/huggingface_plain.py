"""A vision transformer on photographs in Hugging Face's Trainer, with its defaults but for the workers.

python huggingface_plain.py FOLDER --steps 200
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification


class Photos(torch.utils.data.Dataset):
    """Class folders of JPEGs, as the Trainer takes its samples."""

    def __init__(self, folder, size):
        self.size = size
        classes = sorted(path for path in Path(folder).iterdir() if path.is_dir())
        self.samples = [(file, label) for label, path in enumerate(classes) for file in sorted(path.glob("*.jpg"))]
        self.classes = len(classes)

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, label = self.samples[index]
        image = Image.open(path).convert("RGB").resize((self.size, self.size))
        pixels = torch.from_numpy(np.asarray(image, dtype=np.float32) / 255).permute(2, 0, 1)
        return {"pixel_values": (pixels - 0.5) / 0.5, "labels": label}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", help="class folders of JPEGs")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--layers", type=int, default=12)
    args = parser.parse_args()

    torch.manual_seed(0)
    data = Photos(args.folder, args.size)
    model = ViTForImageClassification(
        ViTConfig(
            image_size=args.size, num_labels=data.classes, hidden_size=192, intermediate_size=768,
            num_attention_heads=3, num_hidden_layers=args.layers,
        )
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as out:
        arguments = TrainingArguments(
            out, max_steps=args.steps, per_device_train_batch_size=args.batch_size,
            dataloader_num_workers=args.workers, report_to=[], save_strategy="no",
        )  # fmt: skip
        Trainer(model, arguments, train_dataset=data).train()


if __name__ == "__main__":
    main()
