"""A U-Net on 512 x 512 images and masks, augmented by OpenCV in four workers, float32.

python unet_plain.py FOLDER --steps 200
"""

import argparse
import time
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

cv2.setNumThreads(0)


class Pairs(Dataset):
    def __init__(self, folder, size):
        self.images = sorted((Path(folder) / "images").glob("*.jpg"))
        self.masks = [Path(folder) / "masks" / f"{path.stem}.png" for path in self.images]
        self.size = size

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = cv2.cvtColor(cv2.imread(str(self.images[index])), cv2.COLOR_BGR2RGB)
        mask = cv2.imread(str(self.masks[index]), cv2.IMREAD_GRAYSCALE)
        image, mask = (
            cv2.resize(image, (self.size, self.size)),
            cv2.resize(mask, (self.size, self.size), interpolation=cv2.INTER_NEAREST),
        )
        if np.random.rand() < 0.5:
            image, mask = image[:, ::-1], mask[:, ::-1]
        turn = cv2.getRotationMatrix2D((self.size / 2, self.size / 2), np.random.uniform(-15, 15), 1.0)
        image = cv2.warpAffine(np.ascontiguousarray(image), turn, (self.size, self.size))
        mask = cv2.warpAffine(np.ascontiguousarray(mask), turn, (self.size, self.size), flags=cv2.INTER_NEAREST)
        image = cv2.convertScaleAbs(image, alpha=np.random.uniform(0.8, 1.2), beta=np.random.uniform(-25, 25))
        image = (image.astype(np.float32) / 255 - 0.45) / 0.225
        return torch.from_numpy(image.transpose(2, 0, 1).copy()), torch.from_numpy((mask > 127).astype(np.float32))[
            None
        ]


def double(inside, outside):
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU(inplace=True),
        nn.Conv2d(outside, outside, 3, padding=1, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, base=32, depth=4):
        super().__init__()
        widths = [base * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(double(i, o) for i, o in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(w * 2, w, 2, stride=2) for w in reversed(widths[:-1]))
        self.join = nn.ModuleList(double(w * 2, w) for w in reversed(widths[:-1]))
        self.head = nn.Conv2d(base, 1, 1)

    def forward(self, x):
        kept = []
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else nn.functional.max_pool2d(x, 2))
            kept.append(x)
        kept.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([kept.pop(), up(x)], 1))
        return self.head(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", help="images/*.jpg and masks/*.png of the same names")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--size", type=int, default=512)
    args = parser.parse_args()

    torch.manual_seed(0)
    np.random.seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(
        Pairs(args.folder, args.size),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        drop_last=True,
    )
    model = UNet().to(device)
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    step, began = 0, time.time()
    model.train()
    while step < args.steps:
        for batch in loader:
            images, masks = batch[0].to(device), batch[1].to(device)
            loss = criterion(model(images), masks)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step == args.steps // 2:  # the first half warms up
                if device.type == "cuda":
                    torch.cuda.synchronize()
                began = time.time()
            if step == args.steps:
                break
    if device.type == "cuda":
        torch.cuda.synchronize()
    images = (args.steps - args.steps // 2) * args.batch_size
    print(f"{images / (time.time() - began):.1f} images per second")


if __name__ == "__main__":
    main()
