"""Files on disk, a Compose-like list of transforms, a helper method: what a loader's stages are told from."""

import argparse
import tempfile
import time
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image):
        for transform in self.transforms:
            image = transform(image)
        return image


class Blur:
    def __call__(self, image):
        time.sleep(0.004)
        return image


def to_tensor(image):
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).reshape(16, 16, 3).permute(2, 0, 1) / 255


class Files(Dataset):
    def __init__(self, files, transform):
        self.files = files
        self.transform = transform

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        with open(self.files[index], "rb") as file:
            image = Image.open(file).convert("RGB")
        return self.transform(image), self.label(index)

    def label(self, index):
        return index % 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--context", default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{number}.png" for number in range(32)]
        for file in files:
            Image.effect_noise((16, 16), 50).save(file)
        data = Files(files, Compose([Blur(), to_tensor]))
        loader = DataLoader(data, batch_size=4, num_workers=options.workers, multiprocessing_context=options.context)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(2):
            for images, labels in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()


if __name__ == "__main__":
    main()
