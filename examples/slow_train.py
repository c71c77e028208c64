"""An ordinary training script, and slow in the ordinary ways. Nothing in it knows fulltilt.

python examples/make_photos.py photos && python examples/slow_train.py photos
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Crop:
    """A random square of the image, made smaller."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, image: Image.Image) -> Image.Image:
        side = random.randint(min(image.size) // 2, min(image.size))
        left, top = random.randint(0, image.width - side), random.randint(0, image.height - side)
        return image.resize((self.size, self.size), Image.Resampling.BILINEAR, (left, top, left + side, top + side))


class Flip:
    def __call__(self, image: Image.Image) -> Image.Image:
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else image


class ToTensor:
    def __call__(self, image: Image.Image) -> torch.Tensor:
        pixels = np.asarray(image, dtype=np.float32) / 255
        return torch.from_numpy((pixels - 0.45) / 0.225).permute(2, 0, 1).contiguous()


class Compose:
    def __init__(self, transforms: list) -> None:
        self.transforms = transforms

    def __call__(self, image: Image.Image) -> torch.Tensor:
        for transform in self.transforms:
            image = transform(image)
        return image


class Photos(Dataset):
    def __init__(self, folder: Path, transform: Compose) -> None:
        self.classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
        self.files = [
            (path, at) for at, name in enumerate(self.classes) for path in sorted((folder / name).glob("*.jpg"))
        ]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.files[index]
        image = Image.open(path).convert("RGB")
        return self.transform(image), label


def block(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1, bias=False), nn.BatchNorm2d(outside), nn.ReLU(), nn.MaxPool2d(2)
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("slow_train.pt"))
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    random.seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = Photos(args.folder, Compose([Crop(args.size), Flip(), ToTensor()]))
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = nn.Sequential(
        *(block(3, 16), block(16, 32), block(32, 64)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, len(data.classes)),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss()

    for epoch in range(args.epochs):
        right = seen = 0
        for step, batch in enumerate(loader):
            images, labels = batch[0].to(device), batch[1].to(device)
            optimizer.zero_grad()
            output = model(images)
            loss = criterion(output, labels)
            loss.backward()
            optimizer.step()
            right += (output.argmax(1) == labels).sum().item()
            seen += len(labels)
            if step % 5 == 0:
                print(
                    f"epoch {epoch + 1} step {step:3d} loss {loss.item():.4f} accuracy {right / seen:.3f}", flush=True
                )
        torch.save(model.state_dict(), args.out)


if __name__ == "__main__":
    main()
