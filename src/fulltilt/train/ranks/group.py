"""The process group of a run under torchrun: started where it is missing, and closed again.

    torchrun ─ RANK, WORLD_SIZE, LOCAL_RANK … ─► start: this process's GPU and cores, then the group ─► stop

Whoever starts a group by himself (`torch.distributed.init_process_group`) keeps it: nothing is started or closed then.
"""

from __future__ import annotations

import atexit
import gc
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from fulltilt.errors import UnavailableError
from fulltilt.machine.cores import read_cores
from fulltilt.machine.ranks import grouped, told_local_rank, told_local_world, told_world
from fulltilt.machine.resting import rest_at_exit
from fulltilt.train.ranks import own_group

_TOLD = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun tells each process."""


@contextmanager
def process_group() -> Iterator[None]:
    """Under torchrun: all processes of the run, connected while this is open. Without torchrun nothing happens."""
    started = start()
    try:
        yield
    finally:
        if started:
            stop()


def start() -> bool:
    """Connect this process with the others that torchrun started; False where there is nothing to do."""
    if not launched() or told_world() == 1 or dist.is_initialized():
        return False
    rest_at_exit()
    local_rank = told_local_rank()
    if torch.cuda.is_available():
        device = torch.device("cuda", gpu_of(local_rank, torch.cuda.device_count()))
        torch.cuda.set_device(device)
        _connect("cpu:gloo,cuda:nccl", device)
    else:
        torch.set_num_threads(threads_of_rank(torch.get_num_threads()))
        _connect("gloo", None)
    return True


def start_until_exit() -> None:
    """As `start`, for a program that does not say when it is done."""
    if start():
        atexit.register(stop)
    elif grouped():
        atexit.register(_let_go)


def _let_go() -> None:
    """Groups of our own beside somebody's: their threads must have ended before the interpreter does."""
    own_group.forget()
    gc.collect()


def stop() -> None:
    """Leave the group; a second time does nothing.

    No group may be left to the interpreter's end: its threads would ask for a lock that is gone by then.
    """
    if dist.is_initialized():
        _let_go()  # models that are gone but for their circles hold groups, too
        dist.destroy_process_group()


def launched() -> bool:
    """Whether torchrun, or something like it, has started this process, maybe beside others."""
    return dist.is_available() and all(name in os.environ for name in _TOLD)


def restarted() -> bool:
    """Whether torchrun has started the processes again, after one of them had ended."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def _connect(backend: str, device: torch.device | None) -> None:
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, rank, world = next(rendezvous("env://"))
    store = PrefixStore(_agreed_token(store, rank, world), store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, device_id=device)
    # A rank that is still connecting fails when another one leaves, which a short program may do by then.
    if store.add("connected", 1) == world:
        store.set("all connected", "")
    store.wait(["all connected"])


def _agreed_token(store: Any, rank: int, world: int) -> str:
    """A name that this start of the processes has for itself, the same on all ranks.

    torchrun's store outlives the processes. Without a name of their own, those that are started again find the dead
    ones' addresses in it, and wait for them. The number of restarts won't do: machines may count it differently.
    """
    own = uuid.uuid4().hex
    if rank:
        store.set(f"ask/{rank}", own)
        token: str = store.get(f"answer/{own}").decode()
        store.set(f"heard/{token}/{rank}", "")
        return token
    unheard = set(range(1, world))
    deadline = time.monotonic() + store.timeout.total_seconds()
    while unheard:
        for other in sorted(unheard):
            # An asker may be a dead one's trace: answered as well, and the living one's question comes over it.
            if store.check([f"ask/{other}"]):
                store.set(f"answer/{store.get(f'ask/{other}').decode()}", own)
            if store.check([f"heard/{own}/{other}"]):
                unheard.discard(other)
        if unheard and time.monotonic() > deadline:
            raise UnavailableError(
                f"rank {min(unheard)} of {world} has not come within {store.timeout}; see its output"
            )
        time.sleep(0.01)
    return own


def gpu_of(local_rank: int, visible: int) -> int:
    """The GPU of a process: its own number, or 0 where each process is shown one GPU only."""
    if local_rank < visible:
        return local_rank
    if visible == 1 and "CUDA_VISIBLE_DEVICES" in os.environ:
        return 0
    raise UnavailableError(
        f"LOCAL_RANK is {local_rank}, but there are {visible} GPUs here: give torchrun --nproc-per-node {visible}, "
        "or hide the GPUs (CUDA_VISIBLE_DEVICES=) to train on the CPU"
    )


def threads_of_rank(now: int) -> int:
    """This process's share of the cores, for a model that computes on the CPU.

    torchrun sets OMP_NUM_THREADS to 1 where nobody has set it; another number is somebody's wish.
    """
    if os.environ.get("OMP_NUM_THREADS", "1") != "1":
        return now
    return max(1, read_cores().usable // told_local_world())
