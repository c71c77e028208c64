"""A classifier of photographs in Lightning, as its introduction has one: nothing is set but the workers.

python lightning_plain.py FOLDER --steps 200
"""

import argparse
import tempfile
from itertools import pairwise
from pathlib import Path

import lightning
import numpy as np
import torch
from PIL import Image
from torch import nn


class Photos(torch.utils.data.Dataset):
    """Class folders of JPEGs."""

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
        if torch.rand(1).item() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.asarray(image, dtype=np.float32) / 255).permute(2, 0, 1)
        return (pixels - 0.45) / 0.25, label


def block(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
    )  # fmt: skip


class Classifier(lightning.LightningModule):
    def __init__(self, classes, width):
        super().__init__()
        widths = [3, width, 2 * width, 4 * width, 8 * width]
        self.net = nn.Sequential(
            *(block(*pair) for pair in pairwise(widths)),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, classes),
        )  # fmt: skip

    def training_step(self, batch):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", help="class folders of JPEGs")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--width", type=int, default=64)
    args = parser.parse_args()

    lightning.seed_everything(0)
    data = Photos(args.folder, args.size)
    loader = torch.utils.data.DataLoader(data, batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
    with tempfile.TemporaryDirectory() as logs:
        trainer = lightning.Trainer(max_steps=args.steps, default_root_dir=logs)
        trainer.fit(Classifier(data.classes, args.width), loader)


if __name__ == "__main__":
    main()
