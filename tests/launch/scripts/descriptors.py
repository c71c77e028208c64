"""Writes and removes by descriptors of folders, and in ways that few scripts use."""

import io
import os
import shutil
import stat
from pathlib import Path


def opened(path, **options):
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY, **options)


def read(path, folder):
    with open(os.open(path, os.O_RDONLY, dir_fd=folder), "rb") as file:
        return file.read()


here = opened(".")
inner = opened("folder", dir_fd=here)
assert os.unlink in os.supports_dir_fd
assert os.scandir in os.supports_fd
with open("data.bin", "rb") as file:
    os.fchmod(file.fileno(), 0o600)
    os.utime(file.fileno(), (1, 1))
assert os.stat("data.bin").st_mode & 0o777 == 0o600
assert os.stat("data.bin", dir_fd=here).st_mtime == 1

# written
written = os.open("new.txt", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=here)
os.write(written, b"new")
os.close(written)
assert Path("new.txt").read_text() == "new"
assert read("new.txt", here) == b"new"
appended = os.open(path="old.txt", flags=os.O_WRONLY | os.O_APPEND, dir_fd=here)
os.write(appended, b"more\n")
os.close(appended)
assert read("old.txt", here) == b"old\nmore\n"
with io.FileIO("raw.bin", "w") as file:
    file.write(b"raw")
    assert isinstance(file, io.FileIO)
with io.FileIO("data.bin", mode="r+") as file:
    file.write(b"D")
with io.FileIO("data.bin") as file:
    assert file.read() == b"Data"
with open("data.bin", "rb", buffering=0) as file:
    assert isinstance(file, io.FileIO)
    assert issubclass(type(file), io.FileIO)
assert not isinstance(io.BytesIO(), io.FileIO)
os.mknod("other", 0o600 | stat.S_IFREG, dir_fd=inner)
assert os.path.exists("folder/other")
os.mkdir("made", dir_fd=here)
os.mkfifo("made/pipe")
assert stat.S_ISFIFO(os.stat("made/pipe").st_mode)
os.mkfifo("pipe", dir_fd=here)  # for real: others may wait there
try:
    os.mkfifo("pipe")
except FileExistsError:
    os.unlink(path="pipe", dir_fd=here)
assert not os.path.exists("pipe")
os.symlink("new.txt", "link.txt", dir_fd=here)
assert Path("link.txt").read_text() == "new"
os.link("new.txt", "twin.txt", src_dir_fd=here, dst_dir_fd=here)
assert os.readlink(b"link.txt", dir_fd=here) in (b"new.txt", os.fsencode(Path("new.txt").absolute()))

# listed, in both layers, whichever of them the descriptor is of
upper = opened("folder")
for folder in (inner, upper):
    assert sorted(os.listdir(folder)) == ["inner.txt", "other"]
    with os.scandir(folder) as entries:
        assert sorted((entry.name, entry.path, entry.is_file()) for entry in entries) == [
            ("inner.txt", "inner.txt", True),
            ("other", "other", True),
        ]
    assert read("inner.txt", folder) == b"inner\n"
    assert os.access("inner.txt", os.R_OK, dir_fd=folder)
assert sorted(entry.path for entry in os.scandir("folder")) == ["folder/inner.txt", "folder/other"]
assert sorted(entry.path for entry in os.scandir(b"folder")) == [b"folder/inner.txt", b"folder/other"]
before = os.getcwd()
os.chdir("folder")  # its upper layer
assert sorted(os.listdir()) == ["inner.txt", "other"]
assert Path("inner.txt").read_text() == "inner\n"
assert Path("../kept.txt").read_text() == "kept\n"
os.chdir(before)

# moved
os.rename("old.txt", "older.txt", src_dir_fd=here, dst_dir_fd=inner)
assert read("older.txt", upper) == b"old\nmore\n"
assert not os.path.exists("old.txt")
os.replace(src="raw.bin", dst="raw2.bin")
os.rename(src="raw2.bin", dst="raw.bin", src_dir_fd=here)
assert os.path.exists("raw.bin")

# removed
os.unlink("kept.txt", dir_fd=here)
assert not os.path.exists("kept.txt")
assert "kept.txt" not in os.listdir(here)
try:
    os.stat("kept.txt", dir_fd=here)
    raise AssertionError("it is still there")
except FileNotFoundError:
    pass
for _, folders, files, at in os.fwalk("folder", topdown=False):
    for name in files:
        os.unlink(name, dir_fd=at)
    for name in folders:
        os.rmdir(name, dir_fd=at)
assert os.listdir("folder") == os.listdir(inner) == []
shutil.rmtree("tree", dir_fd=here)
assert not os.path.exists("tree")
print("all as it should be")
