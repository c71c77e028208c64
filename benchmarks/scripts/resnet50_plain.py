"""ResNet-50 from a folder of photographs, as most scripts begin: float32, batch 32, Pillow, four workers.

python resnet50_plain.py FOLDER --steps 200
"""

import argparse
import time

import torch
import torchvision
from torch import nn
from torchvision import transforms


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", help="class folders of images, as ImageFolder reads them")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--size", type=int, default=224)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = torchvision.datasets.ImageFolder(
        args.folder,
        transforms.Compose(
            [
                transforms.RandomResizedCrop(args.size),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
            ]
        ),
    )
    loader = torch.utils.data.DataLoader(
        data, batch_size=args.batch_size, shuffle=True, num_workers=args.workers, drop_last=True
    )
    model = torchvision.models.resnet50(num_classes=len(data.classes)).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9, weight_decay=1e-4)

    step, began = 0, time.time()
    model.train()
    while step < args.steps:
        for batch in loader:
            images, labels = batch[0].to(device), batch[1].to(device)
            loss = criterion(model(images), labels)
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
