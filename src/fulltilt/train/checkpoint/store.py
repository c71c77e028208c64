"""Checkpoints: saved beside the step, loaded as the last good one.

save ─► copies begin ─► back to training
            └─► a thread: wait for the copies, write aside, sync, rename, then remove what is superfluous
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

from fulltilt.errors import CheckpointError, FulltiltError, InputError
from fulltilt.machine.closing import Closing
from fulltilt.machine.ranks import rank
from fulltilt.train.checkpoint import folder as folders
from fulltilt.train.checkpoint import ranks, sharded
from fulltilt.train.checkpoint.file import read_file, read_notes, write_file
from fulltilt.train.checkpoint.keep import Entry, Mode, best_first, newest_first, superfluous
from fulltilt.train.checkpoint.staging import Staged, Staging
from fulltilt.train.checkpoint.tree import flatten, unflatten

log = logging.getLogger("fulltilt.train")

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Checkpoints(Closing):
    """A folder of checkpoints.

    keep_last   how many of the newest stay; keep_best: how many of the best by `metric`, which is never removed
    mode        whether the metric is better when it is smaller ("min") or larger ("max"); None: as those in the folder
                were saved, in an empty one smaller
    figure      what the metric is, where that may change: others are not compared with it; None: as the newest has it
    background  write in a thread; otherwise `save` returns when the file is on the disk
    sharded     "auto": where tensors are spread over ranks, each rank saves its part, into a folder; otherwise rank 0
                writes one file, and the others nothing. True: always a folder
    own         the state's keys that differ from rank to rank and are kept for each (only in a sharded one)

    In a process group every rank calls `save` and `load`, and all of them see the same folder.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep_last: int = 3,
        keep_best: int = 1,
        mode: Mode | None = None,
        figure: str | None = None,
        background: bool = True,
        sharded: bool | Literal["auto"] = "auto",
        own: tuple[str, ...] = ("rng",),
    ) -> None:
        if keep_last < 1:
            raise InputError(f"keep_last is {keep_last}; at least 1 must be kept")
        if keep_best < 0:
            raise InputError(f"keep_best is {keep_best}; use 0 to keep none for its metric")
        if mode is not None and mode not in get_args(Mode):
            raise InputError(f"mode is {mode!r}; use 'min' (smaller is better) or 'max', or leave it out")
        if sharded not in (True, False, "auto"):
            raise InputError(f"sharded is {sharded!r}; use True, False or 'auto'")
        self.folder = Path(folder).absolute()
        self._keep_last, self._keep_best, self._mode, self._figure = keep_last, keep_best, mode, figure
        self._by: tuple[Mode, str | None] | None = None
        """What is saved is compared by it, and all that follows."""
        self._background, self._sharded, self._own = background, sharded, own
        self._staging, self._shard_staging = Staging(), Staging()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._known: dict[tuple[str, int], Mapping[str, Any]] = {}
        """What checkpoints say about themselves."""
        folders.prepare(self.folder)

    def save(
        self, state: Mapping[str, Any], *, step: int, epoch: int, metric: float | None = None, run: str | None = None
    ) -> None:
        """Begin to save; what is changed after the call is not in it. Raises the error of the save before, if any.

        Args:
            run: names the run that this belongs to, for `read_run`.
        """
        self.wait()
        flat = flatten(state)
        self._by = mode, figure = self._compared()
        notes: dict[str, Any] = {
            "step": int(step),
            "epoch": int(epoch),
            "metric": None if metric is None else float(metric),
            "mode": mode,
            "figure": figure,
            "run": run,
        }
        if self._sharded is True or (self._sharded == "auto" and flat.sharded):
            part = sharded.part_of(state, flat, self._own, rank=rank())
            plain, shards = self._staging.take(part.tensors), self._shard_staging.take(part.shards)
            team = ranks.team()
            self._start(
                lambda: self._write(lambda: sharded.write(self.folder, team, part, plain, shards, notes), notes)
            )
        elif flat.sharded:
            name = next(iter(flat.sharded))
            raise InputError(
                f"{name}: a tensor that is spread over ranks (DTensor); use sharded='auto' or save it whole"
            )
        elif rank() == 0:
            staged = self._staging.take(flat.tensors)
            self._start(lambda: self._write(lambda: self._write_file(staged, {**notes, "tree": flat.tree}), notes))

    def wait(self) -> None:
        """Until the last save is on the disk; raises its error."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def close(self) -> None:
        """Wait, and give the memory back. Another save takes it again."""
        try:
            self.wait()
        finally:
            self._staging.release()
            self._shard_staging.release()

    def latest(self) -> Path | None:
        """The newest; None when there is none."""
        return next((entry.path for entry in newest_first(folders.entries(self.folder))), None)

    def best(self) -> Path | None:
        """The one with the best metric; None when none has one."""
        known, _ = self._measured()
        return next((entry.path for entry in best_first(known, *self._compared())), None)

    def _compared(self) -> tuple[Mode, str | None]:
        """Which way which figure gets better: whoever loads has not always said what whoever saved did."""
        if self._by is not None:
            return self._by
        said = (_notes_of(entry) for entry in newest_first(folders.entries(self.folder)))
        newest = next((notes for notes in said if notes.get("mode") in get_args(Mode)), {})
        return self._mode or newest.get("mode", "min"), self._figure or newest.get("figure")

    def load(
        self, path: str | os.PathLike[str] | None = None, *, into: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The state of a checkpoint, every byte verified: the newest that isn't damaged, or the given one.

        Tensors come to the CPU. Those that are sharded in `into` (a state like the saved one) are filled there, each
        rank reading its part; without it they come whole.
        """
        self.wait()
        team = ranks.team()
        if path is not None:
            return _load_together(Path(path), team, into)
        tried: set[Path] = set()
        # Looked for again when none can be read: a process that trains in the folder makes new ones and removes others.
        while found := [path for path in self._listed(team) if path not in tried]:
            for candidate in found:
                tried.add(candidate)
                try:
                    return _load_together(candidate, team, into)
                except CheckpointError as error:
                    if team.rank == 0:
                        log.warning("%s; trying the one before it", error)
        if not tried:
            raise CheckpointError(f"there is no checkpoint in {self.folder}; name another folder, or begin anew")
        raise CheckpointError(
            f"all {len(tried)} checkpoints in {self.folder} are damaged; begin anew in another folder"
        )

    def _listed(self, team: ranks.Team) -> list[Path]:
        """Newest first. One rank lists for all of them: the others might see the folder earlier or later."""
        return team.from_first(lambda: [entry.path for entry in newest_first(folders.entries(self.folder))])

    def _start(self, work: Callable[[], None]) -> None:
        if not self._background:
            work()
            self.wait()
            return
        # Not a daemon: a program that ends without close() still finishes its last checkpoint.
        self._thread = threading.Thread(target=work, name="fulltilt-checkpoint")
        self._thread.start()

    def _write(self, save: Callable[[], Path], notes: Mapping[str, Any]) -> None:
        began = time.perf_counter()
        try:
            path = save()
            log.debug("checkpoint %s written in %.2f s", path.name, time.perf_counter() - began)
            if rank() == 0:
                self._remove_superfluous(path, notes)
        except OSError as error:
            self._error = self._explained(error, notes["step"])
        except BaseException as error:
            self._error = error

    def _write_file(self, staged: Staged, notes: Mapping[str, Any]) -> Path:
        data = staged.wait()
        return folders.add_file(
            self.folder, notes["step"], lambda descriptor: write_file(descriptor, staged.layout, notes, data)
        )

    def _remove_superfluous(self, newest: Path, notes: Mapping[str, Any]) -> None:
        with contextlib.suppress(FileNotFoundError):  # another process may have removed it already
            # Known without reading it: parsing a header would hold the interpreter's lock for some milliseconds.
            self._known[newest.name, newest.stat().st_mtime_ns] = _compared_by(notes)
        known, unknown = self._measured()
        mode, figure = self._compared()
        go = superfluous(known, keep_last=self._keep_last, keep_best=self._keep_best, mode=mode, figure=figure)
        for entry in go:
            # Two processes may count differently; neither removes what it has just written, nor what it can't read.
            if entry.path != newest and entry not in unknown:
                try:
                    folders.remove(entry.path)
                except OSError as error:
                    log.warning("can't remove the old checkpoint %s (%s)", entry.path, error.strerror or error)

    def _measured(self) -> tuple[list[Entry], list[Entry]]:
        """All entries with their metrics, and those of them whose header can't be read just now."""
        known, unknown = [], []
        said, self._known = self._known, {}  # those of removed ones are forgotten
        for entry in folders.entries(self.folder):
            notes: Mapping[str, Any] = {}
            try:
                key = (entry.path.name, entry.path.stat().st_mtime_ns)
                notes = self._known[key] = said[key] if key in said else _compared_by(_notes(entry.path))
            except FileNotFoundError:
                continue
            except OSError:
                unknown.append(entry)
            known.append(replace(entry, **notes))
        return known, unknown

    def _explained(self, error: OSError, step: int) -> FulltiltError:
        reason = error.strerror or str(error)
        remedy = "see what is wrong with the folder"
        if error.errno in _FULL:
            free = shutil.disk_usage(self.folder).free
            remedy = f"{free / 1e6:,.1f} MB are free: make room, keep fewer (keep_last), or name another folder"
        explained = FulltiltError(
            f"can't write the checkpoint of step {step} into {self.folder} ({reason}); "
            f"earlier ones are untouched; {remedy}"
        )
        explained.__cause__ = error
        return explained


def load_checkpoint(path: str | os.PathLike[str], *, into: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The state in a checkpoint, every byte verified; CheckpointError names it when it is damaged."""
    return _load_together(Path(path), ranks.Team(None, rank(), 1), into)


def _load_together(path: Path, team: ranks.Team, into: Mapping[str, Any] | None) -> dict[str, Any]:
    """All ranks get their state, or all raise. They share the work of verifying a folder's files."""
    loaded: dict[str, Any] = {}

    def read() -> None:
        if path.is_dir():
            state = sharded.load(path, rank=team.rank, into=into)
        else:
            tensors, notes = read_file(path)
            state = unflatten(notes.get("tree"), tensors)
        if not isinstance(state, dict):
            raise CheckpointError("it holds no state")
        loaded.update(state)

    def named(work: Callable[[], None]) -> None:
        try:
            work()
        except CheckpointError as error:
            raise CheckpointError(f"the checkpoint {path} can't be used: {error}") from None
        except OSError as error:
            raise CheckpointError(f"the checkpoint {path} can't be read ({error.strerror or error})") from None

    if path.is_dir():
        team.together(lambda: named(lambda: sharded.verify(path, rank=team.rank if team.size > 1 else 0, of=team.size)))
    team.together(lambda: named(read))
    return loaded


def read_run(path: Path) -> str | None:
    """Which run a checkpoint belongs to; None where it does not say, or can't be read."""
    with contextlib.suppress(OSError):
        return _notes(path).get("run")
    return None


def _notes_of(entry: Entry) -> Mapping[str, Any]:
    """None of one that is gone, or can't be read just now."""
    with contextlib.suppress(OSError):
        return _notes(entry.path)
    return {}


def _compared_by(notes: Mapping[str, Any]) -> dict[str, Any]:
    """What of its notes says how good it is."""
    metric = notes.get("metric")
    return {
        "metric": None if metric is None else float(metric), "figure": notes.get("figure"), "mode": notes.get("mode"),
    }  # fmt: skip


def _notes(path: Path) -> Mapping[str, Any]:
    """What a checkpoint says about itself, without reading its tensors."""
    try:
        return sharded.read_manifest(path) if path.is_dir() else read_notes(path)
    except CheckpointError:
        return {}
