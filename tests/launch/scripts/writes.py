"""Writes checkpoints and logs at every step, in all the ways that scripts do."""

import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

Path("runs").mkdir(exist_ok=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
assert Path("old.txt").read_text() == "old\n"
for step in range(8):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).mean().backward()
    optimizer.step()
    torch.save(model.state_dict(), "last.pt")
    torch.save(model.state_dict(), Path("runs") / f"step-{step}.pt")
    with open("log.txt", "a") as file:
        file.write(f"{step}\n")
    with open("old.txt", "a") as file:
        file.write(f"{step}\n")
    os.makedirs(f"runs/deep/{step}", exist_ok=True)
    np.save(f"runs/deep/{step}/weights.npy", model.weight.detach().numpy())
    Path("state.json.part").write_text(json.dumps({"step": step}))
    os.replace("state.json.part", "state.json")

# what it has written is there for itself
assert len(Path("log.txt").read_text().splitlines()) == 8
assert Path("old.txt").read_text().splitlines() == ["old", *map(str, range(8))]
assert json.loads(Path("state.json").read_text()) == {"step": 7}
assert sorted(os.listdir("runs")) == ["deep", *(f"step-{step}.pt" for step in range(8))]
assert sorted(path.name for path in Path("runs").glob("*.pt")) == [f"step-{step}.pt" for step in range(8)]
assert os.path.isdir("runs/deep/3")
assert os.path.getsize("last.pt") > 0
torch.load("last.pt")
shutil.copy("last.pt", "best.pt")
assert os.path.exists("best.pt")
os.remove("kept.txt")
assert not os.path.exists("kept.txt")
assert "kept.txt" not in os.listdir(".")
shutil.rmtree("folder")
assert not Path("folder").exists()
os.mkdir("folder")
assert os.listdir("folder") == []
os.rename("data.bin", "moved.bin")
assert Path("moved.bin").read_bytes() == b"data"
assert not Path("data.bin").exists()
os.symlink("best.pt", "link.pt")
assert Path("link.pt").resolve().stat().st_size == os.path.getsize("best.pt")
os.symlink(Path("runs").absolute(), "latest")
assert "step-7.pt" in os.listdir("latest")
assert Path("latest/step-7.pt").stat().st_size == os.path.getsize("runs/step-7.pt")
os.symlink(Path("gone.txt").absolute(), "nothing.txt")
assert not os.path.exists("nothing.txt")
refused = []
for links in (os.link, os.symlink):  # in the place of what it has not touched so far
    try:
        links("best.pt", "writes.py")
    except FileExistsError as error:
        refused.append((error.filename, error.filename2))
assert refused == [("best.pt", "writes.py")] * 2
with tempfile.NamedTemporaryFile("w", dir="runs/deep", delete=False) as file:  # aside, then renamed
    file.write("whole")
os.replace(file.name, "runs/whole.txt")
assert Path("runs/whole.txt").read_text() == "whole"
with tempfile.NamedTemporaryFile(dir="runs/deep") as file:
    assert Path(file.name).name in os.listdir("runs/deep")
with tempfile.TemporaryFile(dir="runs/deep") as file:
    file.write(b"nameless")
assert sorted(os.listdir("runs/deep")) == [str(step) for step in range(8)]
with open("runs/private.txt", "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
    file.write("private")
assert os.stat("runs/private.txt").st_mode & 0o777 == 0o600
missed = None
try:
    Path("nowhere/file.txt").write_text("")
except FileNotFoundError as error:
    missed = str(error.filename)
assert missed == "nowhere/file.txt"
print("all as it should be")
