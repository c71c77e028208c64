"""Inside a watched process: begins with the interpreter, hooks torch when it is imported, writes what was seen.

sitecustomize ─► start() ─► (torch is imported) ─► hooks ─► steps ─► Enough, or the script's own end ─► rank-N-PID.json
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from fulltilt.launch import job as jobs
from fulltilt.launch.imports import after_import
from fulltilt.launch.job import Job
from fulltilt.launch.patching import put
from fulltilt.launch.watch.stages import Stages
from fulltilt.launch.watch.traces import without_us
from fulltilt.launch.watch.watch import Enough, Watch

if TYPE_CHECKING:
    from fulltilt.measure.observation import Observation

INSISTENCE = 3
"""How often the script may go on after it was told that watching is over; then the process ends."""

GPU_STEPS = 20
"""A model that is on no GPU after so many is on none."""


MOST_PATH = 80
"""A socket's path may have 107 characters, its name included."""


class Process:
    """This process: its job, what it has seen, and how it ends."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.watch = Watch(job)
        self.stages = Stages(Path(job.out))
        self.is_command = os.environ.get(jobs.LAUNCHER) == str(os.getppid())
        self.told = 0
        self.counter: Any = None
        self.waits: Any = None
        self.again: Any = None
        self.as_is: Observation | None = None
        """What was seen of the script, once its limits are measured behind that."""
        self.hush: Any = None
        self.listened = 0
        self.inherited: list[Any] = []
        self.begun = False

    def hook(self, torch: ModuleType, *, ended: Callable[[], Any] | None = None) -> None:  # noqa: ARG002
        """Right after `import torch`. `ended` is called at each step's end, instead of what may leave the script."""
        from fulltilt.launch.watch import hooks, loaders, transfers, workers

        _seed(self.job)
        if self.job.settings:
            from fulltilt.launch.apply import install as apply

            apply.install(self.job.settings, self.watch.notes)
        if not self.job.watch:
            return
        loaders.install(self.watch, self.stages)
        workers.install(self.watch, self.stages, tie_draws=(self.job.seed or 0) if self.job.tie_draws else None)
        if self.job.tie_dropout:
            from fulltilt.launch.watch import dropout

            dropout.install()
        hooks.install(self.watch, ended or self.step_ended)
        transfers.install(self.watch)
        if self.job.mode == "replay":
            from fulltilt.launch.watch.replay import Replay

            self.watch.replay = Replay()

    def clock_gpu(self) -> None:
        """Have the GPU's clock read from here on, where the model is on one."""
        watch = self.watch
        watch.gpu = _gpu_clock(watch)
        watch.seeks_gpu = watch.gpu is None and watch.steps < GPU_STEPS

    def step_ended(self) -> None:
        watch = self.watch
        if not self.begun:
            self.begun = True
            with suppress(OSError):
                (Path(self.job.out) / jobs.BEGUN).touch()
        if watch.seeks_gpu:
            self.clock_gpu()
        if self.job.mode == "loader" and watch.records:
            self.loader_alone()
        if self.counter is not None:
            self.kernels_counted()
        if self.waits is not None:
            self.waits_heard()
            return
        if self.again is not None:
            self.given_again()
            return
        why = watch.wants_to_stop()
        if why is not None and not self.counts_kernels(why):
            self.steps_over(why)

    def counts_kernels(self, why: str) -> bool:
        """One more step, with its kernels counted: of the script as it is, alone on its GPU."""
        watch = self.watch
        if watch.gpu is None or self.job.mode != "as is" or self.job.settings or self.job.tie_draws:
            return False
        if watch.closed is not None or watch.group != (0, 1):
            return False
        from fulltilt.launch.watch.launches import Counter

        watch.ended, watch.closed = why, watch.steps
        with watch.unseen():
            watch.gpu.finish()  # what was launched before is not this step's
        self.counter = Counter()
        refused = self.counter.begin()
        if refused is not None:
            watch.notes.append(refused)
            self.counter = None
        return refused is None

    def kernels_counted(self) -> None:
        """Then two more steps, to hear where they wait for the GPU."""
        watch = self.watch
        counter, self.counter = self.counter, None
        with watch.unseen():
            found = counter.end()
        if not watch.records[-1].beside and found.count:
            watch.launched = found
        from fulltilt.launch.watch.traced import compiles
        from fulltilt.launch.watch.waits import Waits, listening

        if watch.compiled or compiles():
            self.steps_over(watch.ended or "steps")
            return
        self.waits = Waits(listen=listening)
        self.listened = watch.steps
        self.waits.begin()

    def waits_heard(self) -> None:
        from fulltilt.launch.watch.waits import STEPS

        watch = self.watch
        if watch.steps - self.listened < STEPS:
            return
        waits, self.waits = self.waits, None
        waits.end()
        watch.heard = waits.found
        self.steps_over(watch.ended or "steps")

    def steps_over(self, why: str) -> None:
        """The script as it is was seen. Limits are measured behind it, where they are asked for: what is printed
        meanwhile is nothing that anybody wants to read, and what else is noted of the script does not count."""
        watch = self.watch
        watch.ended = why
        if not self.job.then or watch.written or not any(one.role == "train" for one in watch.loaders):
            self.enough(why)
        from fulltilt.launch.watch.again import Again
        from fulltilt.launch.watch.hush import Hush

        self.as_is = self.seen()
        self.report(self.as_is, jobs.AS_IS)
        self.hush = Hush()
        if "replay" not in self.job.then or watch.left_out or watch.place != (0, 1):
            self.enough(why)
        self.again = Again(watch)

    def given_again(self) -> None:
        if self.again.step_ended():
            self.again.end()
            self.again = None
            self.enough(self.watch.ended or "steps")

    def enough(self, why: str) -> NoReturn:
        """Write, and leave the script."""
        self.watch.ended = why
        if "loader" in self.job.then and not self.watch.written:
            self.measure_loader()
        self.write()
        if self.hush is not None:
            self.hush.end()
            self.hush = None
        self.told += 1
        if self.told > INSISTENCE:
            self.leave(0)
        raise Enough

    def loader_alone(self) -> NoReturn:
        """The first step has shown which loader trains; what follows is that loader's alone."""
        if not self.measure_loader():
            self.watch.notes.append("the script trains without a DataLoader: there is no loader to measure alone")
        self.enough("steps")

    def measure_loader(self) -> bool:
        """Whether there is one."""
        from fulltilt.launch.watch.alone import samples_per_second

        watch = self.watch
        seen = next((seen for seen in watch.loaders if seen.role == "train"), None)
        if seen is None or seen.loader is None:
            return False
        with watch.unseen():
            seen.samples_per_second = samples_per_second(seen.loader, seen.iterator)
        return True

    def write(self) -> None:
        """Once, and only where there is something to say."""
        watch = self.watch
        if watch.written or not self.job.watch or not (watch.records or watch.loaders or self.is_command):
            return
        watch.written = True
        if getattr(sys, "last_value", None) is not None:  # set by the interpreter, whoever's excepthook shows it
            watch.ended = watch.ended or "failed"
        if "torch" not in sys.modules:
            return
        found = self.seen() if self.as_is is None else self.with_limits(self.as_is)
        self.report(found, jobs.REPORT)

    def seen(self) -> Observation:
        from fulltilt.launch.watch.seen import nothing_seen, observation

        watch = self.watch
        self.stages.write()
        with watch.unseen():  # losses are read, which waits for the GPU
            try:
                return observation(watch)
            except Exception as error:
                # A GPU that has failed, a dataset that can't tell its length: the script must not fail for us.
                return nothing_seen(watch, f"what was seen could not be put together: {type(error).__name__}: {error}")

    def with_limits(self, as_is: Observation) -> Observation:
        from fulltilt.launch.watch.seen import with_limits

        with self.watch.unseen():
            try:
                return with_limits(as_is, self.watch)
            except Exception:  # they are measured in runs of their own, then
                return as_is

    def report(self, found: Observation, name: str) -> None:
        from fulltilt.measure.observation import write

        with suppress(OSError):  # a full disk, or a folder that was tidied away, is none of the script's business
            write(found, Path(self.job.out) / name.format(rank=found.rank, pid=os.getpid()))

    def leave(self, status: int) -> NoReturn:
        sys.stdout.flush()
        sys.stderr.flush()
        _exit(status)

    def forked(self) -> None:
        self.inherited.append(dict(vars(self.watch)))  # events and tensors of a GPU can't be let go of in a fork
        self.is_command = False
        self.told = 0
        self.again = self.as_is = self.hush = None
        self.watch.clear()
        self.stages.clear()


_exit = os._exit


def start() -> None:
    """Called once per interpreter, before the script."""
    job = jobs.given()
    if job is None:
        return
    if job.shield is not None:
        from fulltilt.launch.shield.shield import raise_shield
        from fulltilt.launch.watch.parting import end_with_watcher

        end_with_watcher(job)
        raise_shield(job.shield, guarded=job.guarded, free=(job.out,))
        _meet_in(Path(job.out) / "mp")
    process = Process(job)
    atexit.register(process.write)  # the first to be registered is the last to run
    os.register_at_fork(after_in_child=process.forked)
    put(os, "_exit", _writing_exit(process))
    sys.excepthook = _quiet_hook(process, sys.excepthook)
    after_import("torch", process.hook)


def _meet_in(folder: Path) -> None:
    """Where the processes of a trial hand each other their files: a folder that ends with the trial, however they end.

    Each worker would make one of its own among the temporary ones, and leave it there when it is told to go.
    """
    if len(str(folder)) > MOST_PATH:
        return
    from multiprocessing import process

    folder.mkdir(exist_ok=True)
    process.current_process()._config["tempdir"] = str(folder)  # type: ignore[attr-defined]


def _writing_exit(process: Process) -> Any:
    def _exit_after(status: int) -> NoReturn:
        process.write()
        _exit(status)

    return _exit_after


def _quiet_hook(process: Process, shown: Any) -> Any:
    """A script's own failure looks as it would without us."""

    def hook(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
        process.watch.ended = process.watch.ended or "failed"
        without_us(error)
        shown(kind, error, error.__traceback__ if at is not None else None)

    return hook


def _gpu_clock(watch: Watch) -> Any:
    """Where the model lies on a GPU, once CUDA is up."""
    import torch

    cuda: Any = torch.cuda
    if watch.model is None or not cuda.is_initialized():
        return None
    first = next(iter(watch.model.parameters()), None)
    if first is None or not first.is_cuda:
        return None
    from fulltilt.measure.gpu_clock import GpuClock

    return GpuClock(first.device)


def _seed(job: Job) -> None:
    if job.seed is None:
        return
    import random

    import torch

    random.seed(job.seed)
    torch.manual_seed(job.seed)
    seed = job.seed

    def numpy(module: Any) -> None:
        module.random.seed(seed % 2**32)

    after_import("numpy", numpy)


__all__ = ["Enough", "Process", "start"]
