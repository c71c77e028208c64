"""`fulltilt run` where a GPU trains: settings that leave losses alone, settings within the band, the whole way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fulltilt.launch.command import parse
from fulltilt.launch.observe import observe
from fulltilt.launch.search.redrawn import draws_others
from fulltilt.launch.search.verify import roundings, verdict

pytestmark = pytest.mark.gpu

SCRIPT = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

class Images(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        torch.manual_seed(index)
        image = torch.randn(3, 32, 32)
        for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 0):
            image = image + 0.0 * torch.fft.fft2(image).real
        return image, torch.tensor(index % 10)

torch.manual_seed(0)
torch.use_deterministic_algorithms(True, warn_only=True)
kind = sys.argv[1]
if kind == "tensors":
    made = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(8192, 64, generator=made), torch.arange(8192) % 10)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
elif kind == "dropout":
    data = Images()
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(2), nn.Linear(225, 64), nn.Dropout(0.2),
        nn.TransformerEncoderLayer(64, 4, 128, dropout=0.2, batch_first=True), nn.Flatten(), nn.Dropout(0.5),
        nn.Linear(2048, 10),
    ).cuda()
else:
    data = Images()
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    ).cuda()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for epoch in range(3):
    for inputs, labels in DataLoader(data, batch_size=64, shuffle=True, num_workers=0 if kind == "tensors" else 2):
        inputs, labels = inputs.cuda(), labels.to("cuda")
        loss = nn.functional.cross_entropy(net(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("done")
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run tells of files that change in its working directory: in the checkout, other tests write meanwhile."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.chdir(tmp_path)


def losses(
    folder: Path, kind: str, settings: dict[str, Any], *, tie_dropout: bool = False
) -> tuple[tuple[float, ...], tuple[str, ...]]:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    seen = observe(
        parse([str(script), kind]), settings=settings, max_steps=60, max_seconds=60, seed=1, tie_draws=True,
        tie_dropout=tie_dropout, deadline_seconds=200,
    )  # fmt: skip
    assert seen.ended in ("steps", "stable", "time", "script"), seen.notes
    assert len(seen.first_losses) >= 20, seen.notes
    return seen.first_losses[:60], seen.notes


@pytest.mark.parametrize(
    "settings",
    [
        {"loader.num_workers": 4, "loader.persistent_workers": True, "loader.pin_memory": True},
        {"loader.ahead": True},
        {"loader.ahead": True, "loader.pin_memory": True, "copy.non_blocking": True, "loader.num_workers": 6},
    ],
    ids=["workers", "ahead", "all"],
)
def test_exact_settings_on_a_gpu(tmp_path: Path, settings: dict[str, Any]) -> None:
    before, _ = losses(tmp_path, "images", {})
    after, notes = losses(tmp_path, "images", settings)
    again, _ = losses(tmp_path, "images", {})
    found = verdict("exact", before, after, again=again)
    assert found.holds, (found.reason, notes)


def test_tensors_stay_on_the_gpu_in_the_same_order(tmp_path: Path) -> None:
    before, _ = losses(tmp_path, "tensors", {})
    after, notes = losses(tmp_path, "tensors", {"loader.resident": True})
    assert before == after, notes


@pytest.mark.parametrize(
    "settings",
    [
        {"channels_last": True},
        {"autocast": "bfloat16", "channels_last": True, "fused": True},
        {"compile": True, "tf32": True, "cudnn_benchmark": True},
        {"compile": "reduce-overhead", "autocast": "bfloat16"},
        {"graphs": True},
        {
            "graphs": True,
            "autocast": "bfloat16",
            "channels_last": True,
            "loader.pin_memory": True,
            "loader.ahead": True,
        },
    ],
    ids=["layout", "half", "compiled", "compiled graphs", "graphs", "graphs in half"],
)
@pytest.mark.parametrize("kind", ["images", "dropout"])
def test_numeric_settings_stay_within_the_band(tmp_path: Path, settings: dict[str, Any], kind: str) -> None:
    tied = draws_others(settings)  # a graph drops what the script does
    before, _ = losses(tmp_path, kind, {}, tie_dropout=tied)
    nudged, _ = losses(tmp_path, kind, {"verify.nudge": roundings(settings)}, tie_dropout=tied)
    after, notes = losses(tmp_path, kind, settings, tie_dropout=tied)
    found = verdict("numeric", before, after, nudged=[nudged])
    assert found.holds, (found.reason, notes)
    assert not notes


@pytest.mark.alone
def test_the_whole_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: samples that take a core some milliseconds, and two workers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "train.py").write_text(SCRIPT)
    result = tmp_path / "found.json"
    words = ["--max-seconds", "120", "--json", str(result), str(tmp_path / "train.py"), "images", "20"]
    ended = subprocess.run(
        [sys.executable, "-m", "fulltilt", "run", *words], capture_output=True, text=True, timeout=280, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "done\n"
    plan = json.loads(result.read_text())["plan"]
    assert plan["after"] >= 1.5 * plan["before"], ended.stderr
