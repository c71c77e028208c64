"""Images handed over as bytes, with torchvision's own transforms, finished on a GPU: bit for bit the script's own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from tests.gpu.needs import library

from fulltilt.launch.apply.unfinished import LEVELS, Table, Unfinished

pytestmark = pytest.mark.gpu

SCRIPT = """
import hashlib, json, sys, torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2
from torchvision import transforms as v1
from fulltilt.launch.apply.install import install

class Photos(Dataset):
    def __init__(self, transform, after, mode):
        self.transform, self.after, self.mode = transform, after, mode

    def __len__(self):
        return 100

    def __getitem__(self, index):
        made = torch.Generator().manual_seed(index)
        noise = torch.randint(0, 256, (24, 24, 3), generator=made, dtype=torch.uint8).numpy()
        image = Image.fromarray(noise).resize((180 + index % 40, 160 + index % 30))
        return self.after(self.transform(image.convert(self.mode))), index % 10

def as_it_is(image):
    return image

mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
chains = {
    "v1": (v1.Compose([
        v1.RandomResizedCrop(128), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(mean, std, inplace=True),
    ]), as_it_is),
    "gray": (v1.Compose([v1.Resize((96, 96)), v1.ToTensor(), v1.Normalize((0.5,), (0.25,))]), as_it_is),
    "v1 tensors": (v1.Compose([
        v1.PILToTensor(), v1.RandomCrop(128), v1.ConvertImageDtype(torch.float32), v1.Normalize(mean, std),
    ]), as_it_is),
    "v2": (v2.Compose([
        v2.Resize(140), v2.RandomCrop(128), v2.ToImage(), v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(mean, std),
    ]), as_it_is),
    "v2 images": (v2.Compose([
        v2.ToImage(), v2.RandomResizedCrop(128, antialias=True), v2.RandomHorizontalFlip(),
        v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std), v2.ToPureTensor(),
    ]), as_it_is),
    "used": (v2.Compose([
        v2.Resize((128, 128)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std),
    ]), lambda image: v2.functional.horizontal_flip(image) - image.mean()),
}

settings, pin, notes = json.loads(sys.argv[1]), sys.argv[2] == "pin", []
torch.zeros(1, device="cuda")
install(settings, notes)
result = {}
for chain, (transform, after) in chains.items():
    torch.manual_seed(0)
    photos = Photos(transform, after, "L" if chain == "gray" else "RGB")
    loader = DataLoader(
        photos, batch_size=32, shuffle=True, num_workers=3, persistent_workers=True, pin_memory=pin,
    )
    found, kinds = [], set()
    for epoch in range(2):
        for images, labels in loader:
            kinds.add(f"{type(images).__name__} {images.device.type} {images.is_pinned()}")
            images = images.to("cuda", non_blocking=True)
            labels = labels.to("cuda", non_blocking=True)
            found.append([
                hashlib.sha256(images.cpu().numpy().tobytes()).hexdigest(), list(images.shape), list(images.stride()),
                str(images.dtype), type(images).__name__, labels.tolist(),
            ])
        found.append(torch.rand(1).item())
    result[chain] = {"found": found, "kinds": sorted(kinds)}
    del loader
print(json.dumps({"chains": result, "notes": notes}))
"""

CHAINS = ("v1", "gray", "v1 tensors", "v2", "v2 images", "used")
RUNS: dict[str, tuple[dict[str, bool], str]] = {
    "as is": ({}, "no"),
    "bytes": ({"loader.bytes": True}, "no"),
    "ahead": ({"loader.bytes": True, "loader.ahead": True}, "pin"),
}


@pytest.fixture(scope="module")
def looked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Every chain's batches, in each of the runs."""
    library("torchvision.transforms.v2")
    script = tmp_path_factory.mktemp("bytes") / "look.py"
    script.write_text(SCRIPT)
    found: dict[str, dict[str, Any]] = {}
    for run, (settings, pin) in RUNS.items():
        words = [sys.executable, str(script), json.dumps(settings), pin]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=200, check=False)
        assert ended.returncode == 0, ended.stderr
        found[run] = json.loads(ended.stdout)
    return found


@pytest.mark.parametrize("chain", CHAINS)
def test_batches_are_the_scripts_own_bit_for_bit(looked: dict[str, dict[str, Any]], chain: str) -> None:
    before, after, ahead = (looked[run]["chains"][chain] for run in RUNS)
    assert before["found"] == after["found"] == ahead["found"]
    assert [looked[run]["notes"] for run in RUNS] == [[], [], []]
    kind = "Tensor" if chain == "used" else "Unfinished"
    assert before["kinds"] == ["Tensor cpu False"]
    assert after["kinds"] == [f"{kind} cpu False"]
    assert ahead["kinds"] == sorted([f"{kind} cpu True", "Tensor cuda False"]), "first the script moves them itself"


def batch(gpu: torch.device) -> tuple[Unfinished, torch.Tensor]:
    values = torch.randn(3, LEVELS)
    pixels = torch.randint(0, LEVELS, (32, 64, 48, 3), dtype=torch.uint8)
    expected = torch.stack([values[channel][pixels[..., channel].long()] for channel in range(3)], 1)
    return Unfinished(pixels, Table.of(values), last=True), expected.to(gpu)


def test_every_way_to_the_gpu(gpu: torch.device) -> None:
    images, expected = batch(gpu)
    like = torch.zeros(1, device=gpu, dtype=torch.float16)
    for sent, wanted in (
        (images.to(gpu), expected),
        (images.to("cuda"), expected),
        (images.to(0), expected),
        (images.to(device=gpu, non_blocking=True), expected),
        (images.cuda(), expected),
        (images.cuda(0, non_blocking=True), expected),
        (images.cuda(non_blocking=True), expected),
        (images.pin_memory().to(gpu, non_blocking=True), expected),
        (images.to(gpu, torch.bfloat16), expected.bfloat16()),
        (images.to(like), expected.half()),
        (images.to(gpu, memory_format=torch.channels_last), expected.to(memory_format=torch.channels_last)),
        (images.float().contiguous().to(gpu, copy=True), expected),
        (images.pin_memory().cuda(memory_format=torch.channels_last), expected.to(memory_format=torch.channels_last)),
    ):
        assert type(sent) is torch.Tensor
        assert (sent.device, sent.dtype, sent.stride()) == (wanted.device, wanted.dtype, wanted.stride())
        assert torch.equal(sent, wanted)
    assert torch.equal(images.double().to(gpu), expected.double())
    assert torch.equal(images.to(gpu), expected), "asked for its numbers, it goes with them"


def test_it_takes_two_kernels_and_waits_for_nothing(gpu: torch.device) -> None:
    images, expected = batch(gpu)
    pinned = images.pin_memory()
    pinned.to(gpu, non_blocking=True)  # the table goes there once
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    sent = pinned.to(gpu, non_blocking=True)
    torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(sent, expected)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        pinned.to(gpu, non_blocking=True)
        torch.cuda.synchronize()
    kernels = [one.name for one in profile.events() if str(one.device_type).endswith("CUDA") and "Mem" not in one.name]
    assert len(kernels) == 2, kernels
