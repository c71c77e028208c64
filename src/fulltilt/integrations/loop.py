"""A loop of torch's that is watched from inside its own program, for as long as a `with` block lasts.

with watching() as run: ──► hooks (once per process) ──► Totals, step by step ─┐
                        └─► Sampling: a thread reads the machine ──────────────┴─► LoopSummary ──► its line
"""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from fulltilt.errors import InputError
from fulltilt.integrations.summary import LoopSummary, Totals, summarised
from fulltilt.machine.sampling import Sampling
from fulltilt.monitor.summary import Tally

if TYPE_CHECKING:
    from fulltilt.assist.beside import Metrics, MetricsBeside
    from fulltilt.launch.watch.inside import Process

log = logging.getLogger("fulltilt.integrations")

KEPT_STEPS = 1000
"""The latest steps that are kept one by one, at least; up to twice as many are."""
LEAST_INTERVAL_SECONDS = 0.1
"""The driver's own figures are not newer than that."""
LEFT_ALONE = "fulltilt diagnose or fulltilt run watches this process already"


def watching(
    *, metrics: Metrics | None = None, interval: float = 1.0, show: Callable[[str], Any] | None = print
) -> Watching:
    """Watch the loop in a `with` block: GPU utilisation, waits for data, the phases of its steps.

    Args:
        metrics: torchmetrics, counted beside the step from what `add` is given.
        interval: seconds between two readings of the machine.
        show: is given the summary's line at the end, on the first rank; None keeps it to `summary`.
    """
    return Watching(metrics=metrics, interval=interval, show=show)


class Watching:
    """One loop while it is watched. The hooks stay in the process afterwards, and do nothing."""

    def __init__(
        self, *, metrics: Metrics | None = None, interval: float = 1.0, show: Callable[[str], Any] | None = print
    ) -> None:
        if not interval >= LEAST_INTERVAL_SECONDS:
            raise InputError(f"interval is {interval!r}; it is seconds, {LEAST_INTERVAL_SECONDS:g} or more")
        self.summary: LoopSummary | None = None
        """There when the loop is over."""
        self._metrics, self._interval, self._show = metrics, interval, show
        self._beside: MetricsBeside | None = None
        self._counted = False
        """Something was added since the metrics were last asked for."""
        self._epochs: list[dict[str, float]] = []
        self._metrics_problem: str | None = None
        self._totals = Totals()
        self._sampling: Sampling | None = None
        self._machine = Tally()
        self._left_alone = False
        """Somebody else watches this process."""

    def __enter__(self) -> Self:
        if _active is not None:
            raise InputError("this process is watching a loop already; leave that one's block first")
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop(failed=error is not None)

    def start(self) -> None:
        """Begin: the thread that calls this is the one that trains."""
        global _active  # noqa: PLW0603  # torch's hooks are the process's, and so is this
        if _active is not None:  # a trainer that failed may not have told its callback
            _active.stop(failed=True)
        self.summary, self._totals, self._epochs, self._metrics_problem = None, Totals(), [], None
        self._left_alone = _is_watched()
        if self._left_alone:
            return
        process = _engine()
        process.watch.clear()
        process.stages.clear()
        for file in Path(process.job.out).glob("stages-*"):  # of the loop before
            file.unlink(missing_ok=True)
        _active = self
        self._machine = Tally()
        self._sampling = Sampling(self._machine.add, self._interval, pid=os.getpid())
        self._sampling.start()

    def stop(self, *, failed: bool = False) -> LoopSummary | None:
        """End, and sum up; a second call does nothing. Where `fulltilt diagnose` or `run` watches already, a summary
        without steps: a program that reads it must not end there.

        Args:
            failed: the loop ended with an error: nothing is shown, and metrics that other ranks would have to take part
                in are not asked for.
        """
        global _active  # noqa: PLW0603
        self._end_metrics(failed=failed)
        if self._left_alone and self.summary is None:
            self.summary = summarised(
                Totals(),
                Tally().summary(),
                problem=LEFT_ALONE,
                metrics=self._epochs,
                metrics_problem=self._metrics_problem,
            )
        if _active is not self or self._sampling is None:
            return self.summary
        _active = None
        process = _engine()
        watch = process.watch
        watch.thread = 0
        self._sampling.close()
        rest = watch.timeline.rest()
        seen = dataclasses.replace(process.seen(), first_losses=())  # the kept losses are of the latest steps
        self._totals.add(watch.records)  # only now: the GPU's figures have come
        self._totals.end(rest)
        self.summary = summarised(
            self._totals,
            self._machine.summary(),
            uuid=_uuid(None if seen.training is None else seen.training.device),
            problem=self._sampling.problem,
            metrics=self._epochs,
            metrics_problem=self._metrics_problem,
            observation=seen,
        )
        if not failed and self._show is not None and watch.ranks[0] == 0:
            self._show(self.summary.line())
        return self.summary

    def batches(self, iterable: Iterable[Any]) -> Iterator[Any]:
        """The same batches, with the waits for them counted: for what is no DataLoader, which is seen by itself."""
        from fulltilt.launch.watch.loaders import Watched
        from fulltilt.launch.watch.watch import LoaderSeen

        if _active is not self:
            return iter(iterable)
        return Watched(_engine().watch, LoaderSeen(-1, iterable, None), iter(iterable), 0)

    def add(self, outputs: Any, targets: Any) -> None:
        """Have a batch counted by the metrics, on threads beside the step."""
        if self._metrics is None:
            raise InputError("there are no metrics to count; give some: watching(metrics=…)")
        if self._beside is None:
            import torch

            from fulltilt.assist.beside import MetricsBeside

            device = outputs.device if isinstance(outputs, torch.Tensor) else torch.device("cpu")
            self._beside = MetricsBeside(self._metrics, device, prefix="train_")
        self._beside.add(outputs, targets)
        self._counted = True

    def compute(self) -> dict[str, float]:
        """The metrics so far, over all ranks; counting starts anew. At an epoch's end, say."""
        if self._beside is None or not self._counted:
            return {}
        self._counted = False
        self._epochs.append(self._beside.compute())
        return self._epochs[-1]

    def _end_metrics(self, *, failed: bool) -> None:
        """What fails here is said, and no more: training is over, and its own end must not be lost to a metric."""
        if not failed:
            try:
                self.compute()
            except Exception as error:
                self._metrics_problem = f"{type(error).__name__}: {error}"
                log.warning("metrics could not be computed: %s", self._metrics_problem)
        if self._beside is not None:
            self._beside.close()
            self._beside = None

    def _step_ended(self, process: Process) -> None:
        process.step_ended()
        records = process.watch.records
        if len(records) >= 2 * KEPT_STEPS:
            self._totals.add(records[:KEPT_STEPS])
            del records[:KEPT_STEPS]


_active: Watching | None = None
_process: Process | None = None
_lock = threading.Lock()


def _engine() -> Process:
    """The hooks, put into torch once: compiled code guards on what it has seen, so they stay."""
    global _process  # noqa: PLW0603
    with _lock:
        if _process is None:
            import torch

            from fulltilt.launch.job import Job
            from fulltilt.launch.watch.inside import Process

            out = tempfile.mkdtemp(prefix="fulltilt-watching-")  # loader workers write there where their time goes
            owner = os.getpid()
            atexit.register(lambda: shutil.rmtree(out, ignore_errors=True) if os.getpid() == owner else None)
            process = Process(Job(out=out, full=True))
            process.hook(torch, ended=_step_ended)
            process.watch.thread = 0
            os.register_at_fork(after_in_child=_forked)
            _process = process
        return _process


def _is_watched() -> bool:
    """`fulltilt diagnose` or `run` has started this process: two watchers would count each other's waits."""
    from fulltilt.launch import job

    return job.given() is not None


def _step_ended() -> None:
    if _active is not None and _process is not None:
        _active._step_ended(_process)


def _forked() -> None:
    """A child trains nothing that this process was asked to watch."""
    global _active  # noqa: PLW0603
    _active = None
    if _process is not None:
        _process.forked()
        _process.watch.thread = 0


def _uuid(device: str | None) -> str | None:
    """Of a GPU as torch names it, the name that the driver knows."""
    if device is None or not device.startswith("cuda"):
        return None
    import torch

    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"
