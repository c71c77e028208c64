"""Temporary files in all the ways that Python makes them, and others that have to find them."""

import multiprocessing
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
from multiprocessing import shared_memory
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

WHERE = (None, "/dev/shm")


def seen(path):
    """By a program that knows nothing of us."""
    return subprocess.run(["cat", path], capture_output=True, check=True).stdout


def uses():
    for where in WHERE:
        with tempfile.NamedTemporaryFile("w", dir=where) as file:
            file.write("named")
            file.flush()
            assert seen(file.name) == b"named"
            assert Path(file.name).name in os.listdir(where or tempfile.gettempdir())
        assert not os.path.lexists(file.name)
        with tempfile.TemporaryDirectory(dir=where) as folder:
            subprocess.run(["sh", "-c", f"echo from outside > {folder}/made"], check=True)
            assert Path(folder, "made").read_text() == "from outside\n"
            os.makedirs(f"{folder}/deep/er")
            Path(folder, "deep/er/mine").write_text("from inside")
            assert seen(f"{folder}/deep/er/mine") == b"from inside"
            os.replace(f"{folder}/deep/er/mine", f"{folder}/yours")
            assert seen(f"{folder}/yours") == b"from inside"
            with tempfile.NamedTemporaryFile("w", dir=f"{folder}/deep", delete=False) as file:
                file.write("within")
            assert seen(file.name) == b"within"
            database = sqlite3.connect(f"{folder}/some.db")
            database.execute("pragma journal_mode=wal")
            database.execute("create table some (value)")
            database.commit()
            assert seen(f"{folder}/some.db").startswith(b"SQLite format 3")
            database.close()
            torch.save({"a": torch.ones(2)}, f"{folder}/a.pt")
            assert len(seen(f"{folder}/a.pt")) > 100
        assert not os.path.lexists(folder)
        handle, name = tempfile.mkstemp(dir=where)
        os.write(handle, b"by number")
        os.close(handle)
        assert seen(name) == b"by number"
        os.unlink(name)
        name = tempfile.mktemp(dir=where)
        subprocess.run(["sh", "-c", f"echo later > {name}"], check=True)
        Path(name).write_text("rewritten")
        assert seen(name) == b"rewritten"
        os.unlink(name)
        assert subprocess.run(["test", "-e", name], check=False).returncode == 1
        with tempfile.TemporaryFile(dir=where) as file:
            file.write(b"nameless")


def fills(folder, queue):
    """In another process: what the first one made is as real here, and so is what is made here."""
    uses()
    Path(folder, "filled").write_text("by a worker")
    own = tempfile.mkdtemp()
    Path(own, "mine").write_text("a worker's own")
    queue.put(own)


class Samples(Dataset):
    def __getitem__(self, index):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(str(index))
            file.flush()
            return torch.full((1000,), int(seen(file.name)))

    def __len__(self):
        return 8


def doubles(tensor, there, back):
    there.put(tensor.mul_(2))
    back.get()  # by another queue: this end would be as welcome to its own


def main(start):
    uses()
    context = multiprocessing.get_context(start)
    queue = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        process = context.Process(target=fills, args=(folder, queue))
        process.start()
        own = queue.get()
        process.join()
        assert process.exitcode == 0
        assert seen(f"{folder}/filled") == b"by a worker"
        assert seen(f"{own}/mine") == b"a worker's own"
        Path(own, "mine").write_text("changed here")
        assert seen(f"{own}/mine") == b"changed here"
    for strategy in ("file_descriptor", "file_system"):
        torch.multiprocessing.set_sharing_strategy(strategy)
        loader = DataLoader(Samples(), batch_size=2, num_workers=1, multiprocessing_context=start)
        assert sum(int(batch[:, 0].sum()) for batch in loader) == sum(range(8))
        there, back = (torch.multiprocessing.get_context(start).SimpleQueue() for _ in range(2))
        tensor = torch.ones(5000).share_memory_()
        process = torch.multiprocessing.get_context(start).Process(target=doubles, args=(tensor, there, back))
        process.start()
        assert there.get().sum() == tensor.sum() == 10000
        back.put(None)
        process.join()
    with context.Manager() as manager:
        shared = manager.dict(a=1)
        shared["b"] = manager.list([2])
        assert sorted(shared.keys()) == ["a", "b"]
    array = context.Array("d", 1000)  # in a file of /dev/shm without a name
    array[0] = 1.0
    memory = shared_memory.SharedMemory(create=True, size=100)
    assert Path("/dev/shm", memory.name).stat().st_size == 100
    memory.close()
    memory.unlink()
    pipes()


def pipes():
    """A pipe by a name of the script's own is no file: both ends have to meet."""
    name = f"{tempfile.gettempdir()}/pipe-{os.getpid()}"
    os.mkfifo(name)
    reader = subprocess.Popen(["cat", name], stdout=subprocess.PIPE)
    writer = threading.Thread(target=Path(name).write_text, args=("through the pipe",), daemon=True)
    writer.start()
    assert reader.communicate(timeout=60)[0] == b"through the pipe"
    os.unlink(name)
    assert subprocess.run(["test", "-e", name], check=False).returncode == 1


if __name__ == "__main__":
    main(sys.argv[1])
