"""What one process knows while it is watched. The hooks write to it; `seen.py` makes an observation of it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary, ref

from fulltilt.launch.job import Job
from fulltilt.launch.watch.agreement import agreement
from fulltilt.launch.watch.dozing import Dozing
from fulltilt.launch.watch.places import Spot
from fulltilt.launch.watch.sources import Sources
from fulltilt.machine import ranks
from fulltilt.measure.observation import Loader
from fulltilt.measure.stable import LEAST_SECONDS, is_stable
from fulltilt.measure.timeline import Record, Timeline

MOST_RECORDS = 20_000
"""Steps kept of a run that is watched to its end."""
MOST_LOSSES = 2_000
CHECK_EVERY = 10
"""Steps between two looks at whether the figures are stable."""
SLOW_NS = 20_000_000
"""Steps that take longer are asked one by one whether the time is up; shorter ones only when figures are looked at."""
LOOK_EVERY = 4
"""Steps between two looks at what rank 0 has decided."""
AGREED_STEPS = 8
"""How many steps after rank 0's decision all ranks stop: more than they can be apart, and than they look away."""


class Enough(SystemExit):
    """Watching is over: leaves the script as `sys.exit(0)` would, so that its `finally`s run."""

    def __init__(self) -> None:
        super().__init__(0)


class LoaderSeen:
    """A DataLoader of the script, or several: one that is made anew, in the same line, takes the place of the last.

    Neither it nor its iterator is held: with a loader lives its data set, with an iterator that was broken off live its
    workers, and a script that makes them anew each epoch counts on their end.
    """

    def __init__(self, number: int, loader: Any, made: Spot | None, facts: Loader | None = None) -> None:
        self.number = number
        self._loader = _weak(loader)
        self._iterator: Callable[[], Any] = _nobody
        self.made = made
        """Where."""
        self.times_made = 1
        self.facts = facts
        """What is known of it from the first; None where it could not be found out."""
        self.role = "unknown"
        self.batch_bytes: int | None = None
        self.starts = 0
        self.waits_ns: list[int] = []
        """For the first batch of each epoch."""
        self.samples_per_second: float | None = None
        self.state: tuple[Any, ...] | None = None
        """Of what its workers had, when they were started last."""
        self.changes = False
        """The script has changed that between two epochs."""
        self.elsewhere = False
        """Another thread than the one that trains asks for its batches."""

    @property
    def loader(self) -> Any:
        """None once the script has let go of it."""
        return self._loader()

    @property
    def iterator(self) -> Any:
        """The one that was begun last; None once the script has let go of it."""
        return self._iterator()

    def made_anew(self, loader: Any) -> None:
        self._loader = _weak(loader)
        self.times_made += 1
        self.state = None  # another one's

    def begun(self, iterator: Any) -> None:
        self._iterator = _weak(iterator)


def _weak(value: Any) -> Callable[[], Any]:
    try:
        return ref(value)
    except TypeError:  # a list, say, that is no loader of torch's
        return lambda: value


def _nobody() -> None:
    return None


class _Held:
    """An attribute of a Watch that is held as the job says: a fold's model and its optimizer, while the next trains."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_{name}"

    def __get__(self, watch: Any, owner: type | None = None) -> Any:
        return getattr(watch, self._name)()

    def __set__(self, watch: Any, value: Any) -> None:
        setattr(watch, self._name, _weak(value) if watch.job.lets_go else lambda: value)


class Watch:
    """State of the process; one for its life."""

    model = _Held()
    optimizer = _Held()

    def __init__(self, job: Job) -> None:
        self.job = job
        self.agreement = agreement(job)
        self.made: WeakKeyDictionary[Any, Spot | None] = WeakKeyDictionary()
        """Where loaders were made. Nothing is kept in them: they may be sent to other processes."""
        self.notes: list[str] = []
        self.clear()

    def clear(self) -> None:
        """Begin anew, as in a process that was just forked."""
        self.timeline = Timeline()
        self.thread = threading.get_ident()
        """The thread whose time is counted; 0 watches nothing, as in a loader's worker."""
        self.sleeper = 0
        """That thread, while its steps are passed by: `thread` is 0 then, and every hook passes through."""
        self.dozing = Dozing()
        self.inside = False
        """Within an outermost module's call, or within a loader: modules called here are no forward."""
        self.records: list[Record] = []
        self.left_out = 0
        self._clear_model()
        self._clear_end()
        self.loaders: list[LoaderSeen] = []
        self.by_loader: WeakKeyDictionary[Any, LoaderSeen] = WeakKeyDictionary()
        self.last_loader: LoaderSeen | None = None
        self.syncs: dict[tuple[Spot | None, str], list[int]] = {}
        self.copies: dict[tuple[Spot | None, bool], list[int]] = {}
        """By place and whether they were asked not to block: count, time, bytes, whether from pinned memory."""
        self.sources = Sources()
        self.optimizer = None
        self.counts: Counter[int] = Counter()
        """Steps of each optimizer since the last one that counted."""
        self.hooked = False
        """An optimizer's step was seen; one that is compiled never is."""
        self.stepped_elsewhere = False
        """An optimizer's step was seen in another thread than the one that is watched."""
        self.unstepped = False
        """There are gradients that no step was seen of."""
        self.backwards = 0
        self.grads = 0
        """Of `torch.autograd.grad`, which a step may have many of, or none."""
        self.losses: list[Any] = []
        self.span_samples = 0
        self.step_samples = 0
        self.counted = False
        """Batches have come from a loader, whose samples are counted. Elsewhere nothing tells them: a forward may be
        one of many of a step, or an episode's, and its first dimension a sequence's."""
        self.unscaled: tuple[Any, Any] | None = None
        self.stepped = False
        """An optimizer stepped since GradScaler's last update."""
        self.gpu: Any = None
        """The GPU's clock, once there is one."""
        self.replay: Any = None
        """The kept batches, in that mode."""
        self.floor = 0
        """Steps before this one don't count: batches were still being kept."""
        self.group: tuple[int, int] | None = None
        """Rank and world, asked for at the first step's end: by then a group is there, if there is one."""

    def _clear_end(self) -> None:
        self.closed: int | None = None
        """Steps from this one on don't count: kernels are counted in them, or batches given again."""
        self.launched: Any = None
        self.heard: dict[tuple[Spot | None, str], list[int]] = {}
        """Waits for the GPU that no hook counts, heard in two steps after those that count."""
        self.seeks_gpu = True
        """Whether the model is on a GPU is not known yet."""
        self.look_at = 0
        """The step whose end is the next to be asked whether watching is over."""
        self.again: int | None = None
        """Steps from this one on had batches that were given before."""
        self.stop_at: int | None = None
        self.ended: str | None = None
        self.written = False

    def _clear_model(self) -> None:
        self.trained: set[int] = set()
        """Outermost modules that were called with gradients."""
        self.model = None
        self.compiled = False
        self.input_shape: tuple[int, ...] = ()
        self.input_last = False
        """What goes into the model is in channels_last."""
        self.autocast: str | None = None
        self.inputs: list[Any] | None = [] if self.job.tie_draws else None
        """Mean and spread of the model's first inputs, where two runs are to be compared; else None."""
        self.draws = False
        """The model draws random numbers; looked for where its dropout is tied to the seed."""

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """What we do ourselves is none of the script's doing."""
        thread, self.thread = self.thread, 0
        try:
            yield
        finally:
            self.thread = thread

    # the loader's side

    def cut(self) -> None:
        """A loader is asked for something: the span before it is over."""
        self.timeline.cut()
        self.span_over()

    def span_over(self) -> None:
        """Its samples are a step's, or an evaluation's."""
        if self.timeline.evaluating:
            if self.last_loader is not None and self.last_loader.role == "unknown":
                self.last_loader.role = "eval"
            if self.gpu is not None:
                self.gpu.drop_waits()
        else:
            self.step_samples += self.span_samples
        self.span_samples = 0

    # the optimizer's side

    def backward(self, tensors: Any) -> None:
        """Of a loss, or of several tensors."""
        self.backwards += 1
        self.unstepped = True
        self.timeline.trained = True
        if self.last_loader is not None:
            self.last_loader.role = "train"
        unscaled, self.unscaled = self.unscaled, None
        if len(self.records) >= MOST_LOSSES:
            return
        # Of a list the first; a generator is torch's to go through.
        loss: Any = next(iter(tensors), None) if isinstance(tensors, list | tuple) else tensors
        if not hasattr(loss, "detach") or loss.numel() != 1 or (self.gpu is not None and self.gpu.capturing()):
            return
        if unscaled is not None and unscaled[0] is loss:
            loss = unscaled[1]
        # It stays where it is, and is read when watching is over. A graph's output is overwritten by its next run;
        # ranks add up their losses in place.
        kept = loss.detach()
        copied = self.compiled or self.group is None or self.group[1] > 1
        self.losses.append(kept.clone() if copied else kept)

    def step_of(self, optimizer: Any) -> None:
        """An optimizer has made its step. Of several, the one that steps most often counts: one that has stepped
        twice while another has not takes its place, be that one rarer or done with."""
        self.stepped = self.hooked = True
        self.unstepped = False
        if optimizer is not self.optimizer:
            self.counts[id(optimizer)] += 1
            if self.optimizer is not None and self.counts[id(optimizer)] <= 1:
                return
            self.optimizer = optimizer
        if self.counts:
            self.counts.clear()
        self.step_ended()

    def cleared_by(self, optimizer: Any) -> bool:
        """Gradients are cleared. Where no step is ever seen, that tells that there was one."""
        if self.hooked or not self.unstepped:
            return False
        self.unstepped = False
        self.optimizer = optimizer
        self.step_ended()
        return True

    def step_ended(self) -> None:
        record = self.timeline.step()
        if self.group is None:
            self.timeline.alone = self.place == (0, 1)
        samples = self.step_samples + self.span_samples
        if samples:
            self.counted = True
        # Loaders that are asked ahead give an epoch's first step two batches and its last none: both are counted so.
        record.samples = samples if self.counted else None
        record.losses = self.losses
        self.losses, self.step_samples, self.span_samples = [], 0, 0
        if len(self.records) < MOST_RECORDS:
            self.records.append(record)
        else:
            self.left_out += 1
        if self.gpu is not None:
            self.gpu.step_ended(record)

    @property
    def place(self) -> tuple[int, int]:
        """Rank and world; asked for at the end of a step."""
        if self.group is None:
            self.group = rank_and_world()
        return self.group

    @property
    def ranks(self) -> tuple[int, int]:
        """Rank and world as they were: a script may have taken its process group down when it is asked."""
        now = rank_and_world()
        return self.group if now == (0, 1) and self.group is not None else now

    @property
    def buffered(self) -> int:
        """Batches that workers may have had ready before the first step: how fast those were had says little."""
        facts = self._fed_by
        return 0 if facts is None else facts.num_workers * (facts.prefetch_factor or 0)

    @property
    def round(self) -> int:
        """Batches that workers give in a burst, one each: a rate is had over whole ones."""
        facts = self._fed_by
        return max(1, 0 if facts is None else facts.num_workers)

    @property
    def _fed_by(self) -> Loader | None:
        seen = next((one for one in self.loaders if one.role == "train"), None)
        return None if seen is None else seen.facts

    @property
    def steps(self) -> int:
        return len(self.records) + self.left_out

    def wants_to_stop(self) -> str | None:
        """Why watching is over, at the end of a step; all ranks stop at the same one."""
        steps = len(self.records) + self.left_out
        if steps < self.look_at or self.job.full:
            return None
        self.look_at = steps + 1
        if self.stop_at is None:
            why = self._why(steps)
            rank, world = self.place
            if world == 1:
                return why
            self._agree(why, steps, rank)
        if self.stop_at is not None and steps >= self.stop_at:
            return self.ended or "steps"
        return None

    def _why(self, steps: int) -> str | None:
        job, timeline = self.job, self.timeline
        if steps >= job.max_steps:
            return "steps"
        now_ns = timeline.clock()
        # From the first step's end: the one that compiles, and imports what it needs, may take longer than all others.
        if steps > 1:
            spent_ns = now_ns - self.records[1].began_ns
            if spent_ns > job.max_seconds * 1e9:
                return "time"
            if self.group == (0, 1) and spent_ns < SLOW_NS * (steps - 1):
                self.look_at = min(steps - steps % CHECK_EVERY + CHECK_EVERY, job.max_steps)
        if steps % CHECK_EVERY or now_ns - self.records[0].began_ns < LEAST_SECONDS * 1e9:
            return None
        past_buffer = self.records[self.buffered :]
        return "stable" if is_stable([record.step_ns / 1e9 for record in past_buffer]) else None

    def _agree(self, why: str | None, steps: int, rank: int) -> None:
        """Rank 0 decides and says at which step; the others look for its word."""
        if rank == 0 and why is not None:
            self.stop_at, self.ended = steps + AGREED_STEPS, why
            self.agreement.say(f"{self.stop_at} {why}")
        elif rank > 0 and steps % LOOK_EVERY == 0:
            said = self.agreement.said()
            if said is not None:
                at, self.ended = said.split()
                self.stop_at = int(at)


def rank_and_world() -> tuple[int, int]:
    """As torchrun says, or the process group where the script has made its ranks itself."""
    return ranks.told() or (ranks.rank(), ranks.world())


def is_compiled(model: Any) -> bool:
    """It or a part of it, by `torch.compile(model)` or `model.compile()`."""
    return any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )
