"""Generated data sets on disk: made once, whole or not at all."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

from fulltilt.errors import FulltiltError, InputError
from fulltilt.machine.cores import read_cores
from fulltilt.recipes.making import Write, in_processes, processes_for

log = logging.getLogger("fulltilt.recipes")

ROOT = "runs/data"
"""Where generated data sets go, below the working directory, unless something else is said."""


def generated(
    name: str,
    arguments: Mapping[str, int | float | str],
    count: int,
    write: Write,
    *,
    sample_seconds: float = 0.0,
    root: str | os.PathLike[str] = ROOT,
) -> Path:
    """The folder of a data set that `arguments` determine; made now if it is not there.

    It is written aside and renamed, so that a folder of this name is complete. Processes that ask for the same one
    (ranks of torchrun) wait for the first.

    Args:
        write: puts sample `i` into a folder; threads call it, in any order.
        sample_seconds: CPU time that one takes, about: what takes long in all is made by processes, where there are
            cores for them. `write` can be pickled then.
    """
    if count < 1:
        raise InputError(f"{name}: count is {count}; a data set has at least 1 sample")
    folder = Path(root) / "-".join([name, *(f"{key}={value}" for key, value in arguments.items())])
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(f".{folder.name}.lock")):
            if not folder.is_dir():
                _make(folder, count, write, sample_seconds)
    except OSError as error:
        raise FulltiltError(
            f"{folder} can't be made ({error.strerror or error}); run it in another folder, or give another root "
            "(data.args.root=FOLDER)"
        ) from error
    return folder


def _make(folder: Path, count: int, write: Write, sample_seconds: float) -> None:
    aside = folder.with_name(f".{folder.name}.aside")
    shutil.rmtree(aside, ignore_errors=True)  # left by one that was killed; nobody else is at it, for there is a lock
    aside.mkdir()
    log.info("making %d samples in %s, once", count, folder)
    cores = read_cores().usable
    processes = processes_for(count, sample_seconds=sample_seconds, cores=cores)
    try:
        with _bar(folder.name, count) as advance:
            if processes:
                in_processes(aside, count, write, processes, advance)
            else:
                _in_threads(aside, count, write, cores, advance)
        aside.rename(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _in_threads(folder: Path, count: int, write: Write, threads: int, advance: Callable[[int], None]) -> None:
    with ThreadPoolExecutor(threads) as pool:

        def one(index: int) -> None:
            write(folder, index)
            advance(1)

        try:  # Ctrl-C may come while tasks are still handed in: of thousands, that takes seconds
            tasks = [pool.submit(one, index) for index in range(count)]
            done, _ = wait(tasks, return_when=FIRST_EXCEPTION)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        pool.shutdown(cancel_futures=True)
        for task in done:
            task.result()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _bar(title: str, count: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal; elsewhere nothing."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=count)
        yield lambda more: progress.advance(task, more)
