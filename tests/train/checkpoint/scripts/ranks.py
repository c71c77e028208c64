"""A model spread over ranks, saved by two and loaded by one, two and three. Ranks are forked from one warm process.

python ranks.py FOLDER
"""

from __future__ import annotations

import datetime
import os
import socket
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint.state_dict_saver
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from fulltilt.errors import FulltiltError, InputError
from fulltilt.train.checkpoint import Checkpoints, load_checkpoint, rng

STEPS = 6

# Libraries' threads are idle when children are forked, and these use none of them.
warnings.filterwarnings("ignore", message=r"This process .* is multi-threaded", category=DeprecationWarning)


def with_ranks(size: int, folder: Path, work: Callable[[Path], None], *, dying: tuple[int, ...] = ()) -> None:
    meeting = socket.create_server(("127.0.0.1", 0))  # held from here on: nobody else gets its port
    children = {}
    for rank in range(size):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                patience = datetime.timedelta(seconds=30)
                host, port = meeting.getsockname()
                listening = meeting.detach() if rank == 0 else None
                store = dist.TCPStore(host, port, None, rank == 0, patience, master_listen_fd=listening)
                dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=patience)
                work(folder)
                if not dying:
                    dist.destroy_process_group()
                status = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        children[rank] = child
    meeting.close()
    ends = {rank: os.waitpid(child, 0)[1] for rank, child in children.items()}
    assert all(status == 0 for rank, status in ends.items() if rank not in dying), ends


def model_and_optimizer(*, sharded: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    # 7 and 5 rows can't be shared out evenly; a bias of one element leaves a rank with nothing.
    model = nn.Sequential(nn.Linear(4, 7), nn.BatchNorm1d(7), nn.Linear(7, 5), nn.Linear(5, 1))
    if sharded:
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), 0.01)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(number))  # the same on every rank
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> dict:
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": {**rng.take(), "rank": dist.get_rank()},
        "step": number,
    }


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()


def flat(state: dict) -> dict[str, torch.Tensor]:
    weights = {f"model.{key}": whole(value) for key, value in state["model"].items()}
    for index, entries in state["optimizer"]["state"].items():
        weights |= {f"optimizer.{index}.{key}": whole(value) for key, value in entries.items()}
    return weights


def same(first: dict, second: dict) -> None:
    assert first.keys() == second.keys(), first.keys() ^ second.keys()
    for key, value in first.items():
        assert torch.equal(value, second[key]), key


def save(folder: Path) -> None:
    """Two ranks save after step 3 and after step 4, train on meanwhile, and keep what they had."""
    model, optimizer = model_and_optimizer(sharded=True)
    with Checkpoints(folder / "checkpoints", keep_last=2) as checkpoints:
        for number in range(1, STEPS + 1):
            step(model, optimizer, number)
            if number in (2, 3, 4):
                checkpoints.save(state_of(model, optimizer, number), step=number, epoch=0)
            if number == 4:
                at_four = flat(state_of(model, optimizer, number))
        checkpoints.wait()
        with pytest.raises(InputError, match=r"model\.0\.weight: a tensor that is spread over ranks"):
            Checkpoints(folder / "checkpoints", sharded=False).save(state_of(model, optimizer, 0), step=0, epoch=0)
        if dist.get_rank() == 0:
            assert [path.name[-1] for path in sorted(checkpoints.folder.iterdir())] == ["3", "4"]
            torch.save({"four": at_four, "end": flat(state_of(model, optimizer, STEPS))}, folder / "expected.pt")
        else:
            flat(state_of(model, optimizer, STEPS))


def load_into(folder: Path) -> None:
    """Any number of ranks go on where two were, each reading its own part."""
    expected = torch.load(folder / "expected.pt", weights_only=True)
    model, optimizer = model_and_optimizer(sharded=True)
    step(model, optimizer, 99)  # so that the optimizer has a state to load into
    size = dist.get_world_size()
    with Checkpoints(folder / "checkpoints") as checkpoints:
        state = checkpoints.load(into=state_of(model, optimizer, 0))
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    assert all(isinstance(p, DTensor) for p in state["model"].values() if p.dim() == 2)
    assert state["rng"]["rank"] == (dist.get_rank() if dist.get_rank() < 2 else 0)
    same(flat(state_of(model, optimizer, 4)), expected["four"])
    for number in range(state["step"] + 1, STEPS + 1):
        step(model, optimizer, number)
    now = flat(state_of(model, optimizer, STEPS))
    for key, value in expected["end"].items():  # gradients are summed in another order when there are other ranks
        assert torch.equal(now[key], value) if size == 2 else torch.allclose(now[key], value, atol=1e-6), key


def damaged(folder: Path) -> None:
    """What one rank finds damaged, none uses."""
    with Checkpoints(folder / "checkpoints") as checkpoints:
        dist.barrier()
        if dist.get_rank() == 0:
            shard = next((checkpoints.latest() / "shards").glob("__1_*"))
            content = bytearray(shard.read_bytes())
            content[len(content) // 2] ^= 1
            shard.write_bytes(content)
        dist.barrier()
        assert checkpoints.load()["step"] == 3


def one_fails(folder: Path) -> None:
    """One rank can't write: every rank is told, the folder stays as it was, and the next one is saved."""
    before = sorted((folder / "checkpoints").iterdir())
    model, optimizer = model_and_optimizer(sharded=True)
    step(model, optimizer, 1)
    with Checkpoints(folder / "checkpoints") as checkpoints:
        if dist.get_rank() == 1:
            import resource
            import signal

            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            limits = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
        checkpoints.save(state_of(model, optimizer, 5), step=5, epoch=0)
        with pytest.raises(FulltiltError, match="File too large"):
            checkpoints.wait()
        dist.barrier()
        assert sorted((folder / "checkpoints").iterdir()) == before
        if dist.get_rank() == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        dist.barrier()
        checkpoints.save(state_of(model, optimizer, 5), step=5, epoch=0)
        checkpoints.wait()
        assert checkpoints.load()["step"] == 5


def one_dies(folder: Path) -> None:
    """One rank is killed while all are saving: the other is told, and nothing half is left for the next run."""
    model, optimizer = model_and_optimizer(sharded=True)
    step(model, optimizer, 1)
    checkpoints = Checkpoints(folder / "checkpoints")
    checkpoints.save(state_of(model, optimizer, 6), step=6, epoch=0)
    checkpoints.wait()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), 9)
    checkpoints.save(state_of(model, optimizer, 7), step=7, epoch=0)
    with pytest.raises(FulltiltError, match="another rank has ended"):
        checkpoints.close()


def replicated(folder: Path) -> None:
    """Plain tensors, as under DistributedDataParallel: rank 0 writes a file, or all write a folder with their own."""
    model, optimizer = model_and_optimizer(sharded=False)
    step(model, optimizer, 1)
    with Checkpoints(folder / "plain") as checkpoints:
        checkpoints.save(state_of(model, optimizer, 1), step=1, epoch=0)
        checkpoints.wait()
        dist.barrier()
        assert [path.is_file() for path in checkpoints.folder.iterdir()] == [True]
        assert checkpoints.load()["rng"]["rank"] == 0
    with Checkpoints(folder / "plain", sharded=True) as checkpoints:
        checkpoints.save(state_of(model, optimizer, 2), step=2, epoch=0)
        state = checkpoints.load()
        assert checkpoints.latest().is_dir()
        assert state["rng"]["rank"] == dist.get_rank()
        same(flat(state), flat(state_of(model, optimizer, 2)))


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    with_ranks(2, folder, save)
    for size in (1, 2, 3):
        with_ranks(size, folder, load_into)
    # One process that knows nothing of ranks gets whole tensors, for the same model unsharded.
    expected = torch.load(folder / "expected.pt", weights_only=True)
    state = Checkpoints(folder / "checkpoints").load()
    same(flat(state), expected["four"])
    model, optimizer = model_and_optimizer(sharded=False)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    with_ranks(2, folder, damaged)
    with_ranks(2, folder, one_fails)
    with_ranks(2, folder, one_dies, dying=(1,))
    assert load_checkpoint(Checkpoints(folder / "checkpoints").latest())["step"] == 6
    assert not list((folder / "checkpoints").glob(".*")), "leftovers"
    with_ranks(2, folder, replicated)
    print("done")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
