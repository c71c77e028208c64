"""Writes with libraries that open their files themselves; those not installed are stood in for by the C library."""

import ctypes
import os
import sqlite3
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

folder = tempfile.TemporaryDirectory()
STAND_INS = folder.name
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p


def written(path, *_, **__):
    """As a native library would."""
    file = libc.fopen(os.fsencode(path), b"wb")
    assert file, path
    libc.fputs(b"native", ctypes.c_void_p(file))
    libc.fclose(ctypes.c_void_p(file))


class File:
    def __init__(self, name, mode="r"):
        self.name = name
        if mode != "r":
            written(name)
        else:
            assert libc.access(os.fsencode(name), 0) == 0, name


def stand_in(name, **members):
    """Found as a module on disk is: the shield waits for its import."""
    (Path(STAND_INS) / f"{name}.py").write_text(f"import __main__\nglobals().update(__main__.members[{name!r}])\n")
    sys.modules["__main__"].members = {**getattr(sys.modules["__main__"], "members", {}), name: members}


sys.path.insert(0, STAND_INS)
stand_in("cv2", imwrite=lambda filename, image: written(filename), VideoWriter=type("VideoWriter", (File,), {}))
stand_in("h5py", File=type("File", (File,), {}))
stand_in("soundfile", write=lambda file, data, rate: written(file))
import cv2  # noqa: E402
import h5py  # noqa: E402
import soundfile  # noqa: E402

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
database = sqlite3.connect("old.db")
assert database.execute("select value from kept").fetchall() == [(1,)]
for step in range(6):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).mean().backward()
    optimizer.step()
    torch.save(model.state_dict(), "last.pt")
    torch.save(model.state_dict(), f"{os.getcwd()}/step-{step}.pt")
    torch.save(model.state_dict(), f=Path("größe.pt"))
    database.execute("insert into kept values (?)", (step,))
    database.commit()
database.close()

assert sqlite3.connect(database="old.db").execute("select count(*) from kept").fetchone() == (7,)
sqlite3.connect(":memory:").close()
assert torch.load("last.pt").keys() == model.state_dict().keys()
assert torch.load("last.pt", mmap=True).keys() == model.state_dict().keys()
assert torch.load("größe.pt").keys() == model.state_dict().keys()
writer = torch._C.PyTorchFileWriter("archive.zip")
writer.write_record("a", b"bytes", 5)
writer.write_end_of_file()
assert torch._C.PyTorchFileReader("archive.zip").get_record("a") == b"bytes"
torch.from_file("mapped.bin", shared=True, size=4, dtype=torch.uint8).fill_(7)
assert Path("mapped.bin").read_bytes() == bytes([7] * 4)

import safetensors.numpy  # noqa: E402
import safetensors.torch  # noqa: E402

safetensors.torch.save_file({"a": torch.ones(2)}, "weights.safetensors")
assert torch.equal(safetensors.torch.load_file("weights.safetensors")["a"], torch.ones(2))
safetensors.numpy.save_file({"a": torch.ones(2).numpy()}, "more.safetensors")
assert safetensors.numpy.load_file("more.safetensors")["a"].tolist() == [1, 1]

import av  # noqa: E402

with av.open("clip.mp4", "w") as container:
    stream = container.add_stream("mpeg4", rate=5)
    stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
    container.mux(stream.encode(av.VideoFrame(32, 32, "yuv420p")))
    container.mux(stream.encode(None))
with av.open("clip.mp4") as container:
    assert container.streams.video[0].width == 32

cv2.imwrite("image.png", None)
cv2.imwrite(filename="other.png", image=None)
assert isinstance(cv2.VideoWriter("film.avi", "w"), cv2.VideoWriter)
h5py.File("data.h5", "w")
h5py.File("data.h5")
soundfile.write("sound.wav", None, 1)
assert all(os.path.exists(name) for name in ("image.png", "other.png", "film.avi", "data.h5", "sound.wav"))
