"""A script watched on the GPU: both clocks, copies and waits by line, its limits, and what watching costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from fulltilt.launch.command import Command, parse
from fulltilt.launch.observe import observe
from fulltilt.measure.observation import Observation

pytestmark = pytest.mark.gpu

SCRIPT = """
import sys
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(float(sys.argv[1]))
        return torch.randn(3, 64, 64), index % 10


if __name__ == "__main__":
    torch.manual_seed(0)
    device = torch.device("cuda")
    pinned = "pinned" in sys.argv
    loader = DataLoader(Slow(), batch_size=16, num_workers=2, pin_memory=pinned)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(64, 10),
    ).to(device)
    if "compile" in sys.argv:
        model = torch.compile(model, mode="reduce-overhead")
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda") if "half" in sys.argv else None
    total = 0.0
    for step, (images, labels) in enumerate(loader):
        images = images.to(device, non_blocking=pinned)
        labels = labels.to(device, non_blocking=pinned)
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16, enabled=scaler is not None):
            loss = nn.functional.cross_entropy(model(images), labels)
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        if "reads" in sys.argv:
            total += loss.item()  # the wait
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def watched(script: Path, *words: str, **options: object) -> Observation:
    seen = observe(command(script, *words), max_steps=60, **options)
    assert seen.exit_status == 0, seen.notes
    assert len(seen.steps) > 30
    return seen


def command(script: Path, *words: str) -> Command:
    return parse([str(script), *words])


def test_a_starved_gpu(script: Path) -> None:
    seen = watched(script, "0.002")
    assert seen.training is not None
    assert seen.training.device.startswith("cuda")
    assert seen.training.images
    starved = [step.starved_seconds for step in seen.steps if step.starved_seconds is not None]
    assert len(starved) > 0.9 * len(seen.steps)
    waits = sum(step.phases.get("data wait", 0.0) for step in seen.steps)
    assert sum(starved) == pytest.approx(waits, rel=0.3)  # 16 ms for a batch, and a step of a millisecond
    seconds = sum(step.seconds for step in seen.steps)
    assert sum(step.gpu_seconds or 0.0 for step in seen.steps) == pytest.approx(seconds, rel=0.1)
    assert waits > 0.6 * seconds
    assert seen.attributed is not None
    assert seen.attributed > 0.95
    assert all(step.loss is not None for step in seen.steps)
    assert seen.surroundings is not None
    assert seen.surroundings.gpu is not None


def test_kernels_of_a_step_are_counted(script: Path) -> None:
    seen = watched(script, "0")
    assert seen.training is not None
    assert seen.training.launches is not None, seen.notes
    assert 20 < seen.training.launches < 500
    assert seen.training.kernel_seconds is not None
    gpu = [step.gpu_seconds for step in seen.steps if step.gpu_seconds is not None]
    assert 0 < seen.training.kernel_seconds < 1.5 * sum(gpu) / len(gpu)
    assert seen.steps[-1].number == 59  # the step that was profiled is not among them


def test_copies_and_waits_have_the_users_line(script: Path) -> None:
    seen = watched(script, "0", "reads")
    lines = {sync.place.text: sync for sync in seen.syncs if sync.place is not None}
    sync = lines["total += loss.item()  # the wait"]
    assert sync.kind == "item"
    assert sync.count >= 55
    copies = {copy.place.text: copy for copy in seen.copies if copy.place is not None and copy.count > 50}
    assert set(copies) == {
        "images = images.to(device, non_blocking=pinned)",
        "labels = labels.to(device, non_blocking=pinned)",
    }
    assert not any(copy.pinned or copy.non_blocking for copy in copies.values())
    images = copies["images = images.to(device, non_blocking=pinned)"]
    assert images.bytes == images.count * 16 * 3 * 64 * 64 * 4


def test_pinned_copies_that_do_not_block(script: Path) -> None:
    seen = watched(script, "0", "pinned")
    often = [copy for copy in seen.copies if copy.count > 50]
    assert len(often) == 2
    assert all(copy.pinned and copy.non_blocking for copy in often)
    (loader,) = seen.loaders
    assert "pin" in {stage.name for stage in loader.stages}


@pytest.mark.alone
def test_the_steps_limit_is_without_loader_and_copies(script: Path) -> None:
    actual = watched(script, "0.002", "reads")
    limit = watched(script, "0.002", "reads", mode="replay")
    assert actual.samples_per_second is not None
    assert limit.samples_per_second is not None
    assert limit.samples_per_second > 3 * actual.samples_per_second
    assert sum(step.phases.get("copy", 0.0) for step in limit.steps) < 0.02 * sum(step.seconds for step in limit.steps)


def test_the_loaders_limit(script: Path) -> None:
    seen = observe(command(script, "0.002"), mode="loader")
    (loader,) = seen.loaders
    assert loader.samples_per_second == pytest.approx(2 / 0.0021, rel=0.25)


def test_a_scaled_loss_is_read_unscaled(script: Path) -> None:
    seen = watched(script, "0", "half")
    assert seen.training is not None
    assert seen.training.autocast == "float16"
    assert all(step.loss is not None and step.loss < 100 for step in seen.steps)


def test_graphs_of_compiled_models_are_left_whole(script: Path) -> None:
    seen = watched(script, "0", "compile", "reads", max_seconds=200)
    assert seen.training is not None
    assert seen.training.compiled
    assert all(step.loss is not None for step in seen.steps)


@pytest.mark.alone
def test_watching_costs_next_to_nothing() -> None:
    from fulltilt.bench.observe import measure

    found = measure(quick=False, say=print, device="cuda")
    missed = [cost for cost in found.costs if not cost.target.met]
    assert not missed, missed


WAITS = """
import torch
from torch import nn

model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
features = torch.randn(2048, 2048, device="cuda")
for _ in range(100_000):
    output = model(features)
    kept = output[output > 0]  # mask
    kinds = torch.unique(output[0].round())  # unique
    where = torch.nonzero(output[0])  # nonzero
    some = torch.masked_select(output, output > 1)  # select
    if output.sum() > 1e30:  # if
        break
    read = output[0, :3].tolist()  # list
    host = output[0].detach().cpu().numpy()  # numpy
    text = f"{output[0, 0]}"  # format
    loss = output.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_waits_that_no_method_says_have_their_line(tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text(WAITS)
    seen = observe(command(script), max_steps=40)
    assert seen.exit_status == 0, seen.notes
    found = {sync.place.text.rpartition("# ")[2]: sync for sync in seen.syncs if sync.place is not None}
    assert {name: sync.kind for name, sync in found.items()} == {
        "mask": "a mask as index", "unique": "unique", "nonzero": "nonzero", "select": "masked_select", "if": "bool",
        "list": "tolist", "numpy": "cpu", "format": "print",
    }  # fmt: skip
    heard = {name for name, sync in found.items() if sync.implicit}
    assert heard == {"mask", "unique", "nonzero", "select"}
    assert all(abs(sync.count / len(seen.steps) - 1) < 0.6 for sync in found.values())
    assert found["mask"].seconds > 0  # it comes first, and waits for the forward


SHORT = """
import torch
from torch import nn

model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
features = torch.randn(32, 64, device="cuda")
for _ in range(100_000):
    loss = model(features).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()  # the wait
"""


def test_short_steps_are_watched_in_bursts_on_both_clocks(tmp_path: Path) -> None:
    script = tmp_path / "short.py"
    script.write_text(SHORT)
    seen = observe(command(script))
    assert seen.exit_status == 0, seen.notes
    assert any("were watched, in bursts" in note for note in seen.notes), seen.notes
    clocked = [step for step in seen.steps if step.gpu_seconds is not None]
    assert len(clocked) > 0.9 * len(seen.steps)
    host = sum(step.seconds for step in clocked)
    assert sum(step.gpu_seconds or 0.0 for step in clocked) == pytest.approx(host, rel=0.1)
    (wait,) = [sync for sync in seen.syncs if sync.place is not None and sync.place.text.endswith("# the wait")]
    assert wait.count == pytest.approx(len(seen.steps), rel=0.1)
