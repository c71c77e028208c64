"""Saves at every step into a folder that is named to it, where a finished run lies."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

out = Path(sys.argv[1])
assert sorted(os.listdir(out)) == ["best.pt", "log.txt", "old.pt"], os.listdir(out)  # nothing of a trial before
assert torch.load(out / "best.pt") == {"step": 1000}
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).mean().backward()
    optimizer.step()
    torch.save({"step": step}, out / "best.pt")
    torch.save({"step": step}, out / f"step-{step}.pt")
    with open(out / "log.txt", "a") as file:
        file.write(f"{step}\n")
(out / "old.pt").unlink()

# aside, then renamed: such a name is the folder's, though tempfile has drawn it
with tempfile.NamedTemporaryFile(dir=out, delete=False) as file:
    file.write(b"whole")
os.replace(file.name, out / "whole.bin")
with tempfile.TemporaryFile(dir=out) as file:
    file.write(b"nameless")
with tempfile.TemporaryDirectory(dir=out) as inner:
    (Path(inner) / "part").touch()
# from a temporary file to its place
with tempfile.NamedTemporaryFile(delete=False) as file:
    file.write(b"moved")
shutil.move(file.name, out / "moved.bin")
assert not os.path.exists(file.name)

assert torch.load(out / "best.pt") == {"step": 5}
assert (out / "log.txt").read_text().splitlines() == ["1000", *map(str, range(6))]
steps = [f"step-{step}.pt" for step in range(6)]
assert sorted(os.listdir(out)) == sorted(["best.pt", "log.txt", "moved.bin", "whole.bin", *steps])

# beside it, in the folder that everybody uses
beside = out.parent / "beside.txt"
beside.write_text("beside")
assert beside.name in os.listdir(out.parent)
assert beside in out.parent.glob("*.txt")
shutil.rmtree(out)
assert not out.exists()
assert out.name not in os.listdir(out.parent)
