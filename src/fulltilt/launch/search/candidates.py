"""From findings to settings worth trying, in the order of what they are predicted to give. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fulltilt.diagnose.finding import Finding, Level
from fulltilt.launch.search.rate import rate_of, waited
from fulltilt.launch.settings import SETTINGS
from fulltilt.measure.observation import Loader, Observation
from fulltilt.words import many

LEVELS: tuple[Level, ...] = ("exact", "numeric", "semantic")
_RIDER = 0.02
"""What no finding predicts, but what often pays once the step itself is faster."""
_MOST_WORKERS_PER_CORE = 8
"""Workers that wait for files need no core; more of them are only kept if they pay."""
_WAITS = 0.05
"""Share of the step in which the loop waits for a batch."""
_RESERVE = 2.0
"""So many times the workers that are predicted to be needed: those that aren't only wait."""
_LESS = 0.75
"""Of a batch of floats is not there in one of bytes."""
_LEAST_EPOCH_STEPS = 16
"""An epoch of fewer steps learns something else; a batch is not made that large."""
_WORKERS = ("loader.num_workers", "loader.persistent_workers")
_LADDER = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)

_WORDS: dict[str, Callable[[Any], str]] = {
    "loader.num_workers": lambda value: many(value, "worker"),
    "loader.undrawn": lambda _: "only where samples draw nothing",
    "loader.prefetch_factor": lambda value: f"{value} batches ahead per worker",
    "loader.persistent_workers": lambda value: "workers live on" if value else "workers end with the epoch",
    "loader.keep_memory": lambda _: "workers keep memory",
    "loader.pin_memory": lambda value: "pinned batches" if value else "batches not pinned",
    "loader.ahead": lambda _: "batches on the device ahead",
    "loader.resident": lambda _: "tensors cut directly",
    "loader.bytes": lambda _: "images handed over as bytes",
    "threads": lambda value: many(value, "thread"),
    "copy.non_blocking": lambda _: "copies that do not wait",
    "fused": lambda _: "fused optimizer",
    "tf32": lambda _: "TF32",
    "cudnn_benchmark": lambda _: "cuDNN autotuning",
    "channels_last": lambda _: "channels_last",
    "autocast": lambda value: f"{value} autocast",
    "graphs": lambda _: "CUDA graphs",
    "compile": lambda value: "compiled" if value is True else f"compiled ({value})",
    "decode": lambda _: "simplejpeg",
    "augment": lambda _: "augmentation on the GPU",
    "loader.batch_size": lambda value: f"batches of {value}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Settings that are tried together."""

    title: str
    settings: Mapping[str, Any]
    gain: float
    """Predicted, as a finding's."""

    @property
    def compiles(self) -> bool:
        """Its first trial takes much longer than those of others."""
        return "compile" in self.settings


def allowed(level: Level, wanted: Level) -> bool:
    return LEVELS.index(level) <= LEVELS.index(wanted)


def level_of(settings: Mapping[str, Any]) -> Level:
    """The least exact of them."""
    levels = [LEVELS.index(SETTINGS[name].level) for name in settings]
    return LEVELS[max(levels, default=0)]


def candidates(
    findings: Sequence[Finding], observation: Observation, *, cores: int, level: Level
) -> tuple[Candidate, ...]:
    """What to try for these findings; nothing where none of them can be mended from outside."""
    taken: dict[str, Any] = {}
    found: list[Candidate] = []
    refused = _refused(observation, level)
    for finding in sorted(findings, key=_predicted, reverse=True):
        if not allowed(finding.level, level):
            continue
        settings = {
            name: value
            for name, value in finding.settings.items()
            if name not in taken and allowed(SETTINGS[name].level, level) and name not in refused
        }
        if settings:
            taken |= settings
            found.append(Candidate(title=describe(settings), settings=settings, gain=_predicted(finding)))
    found += _workers(observation, taken, cores, _faster(found), refused)
    found += _semantic(findings, observation, taken) if level == "semantic" else []
    taken |= {name: value for one in found for name, value in one.settings.items()}
    found += _bytes(observation, taken, _faster(found))
    # Workers that are too few, and can't be more, have what makes each of them faster.
    starved = redraws(observation, level) and wants_workers(findings, observation, cores=cores)
    found += _riders(observation, taken, level, cores) if found or starved else []
    found = [_with_precision(candidate, observation, taken) for candidate in found]
    return tuple(_with_workers_for_all(candidate, found, observation, cores) for candidate in found)


def describe(settings: Mapping[str, Any]) -> str:
    """Settings in a few words: `8 workers that live on, bfloat16`."""
    return ", ".join(_WORDS[name](value) for name, value in settings.items() if name in _WORDS) or "as it is"


def neighbours(
    settings: Mapping[str, Any],
    *,
    cores: int,
    waits: float | None,
    workers: int | None = None,
    samples: int | None = None,
    world: int = 1,
) -> tuple[dict[str, Any], ...]:
    """Other numbers of workers around the one that was found: more of them first where the loop still waits.

    Where it does not, a compiled model may be bound by its launches: recorded as a graph it has one. A batch that was
    doubled may be doubled again; `samples` are the data set's. `workers` are the script's own, which are only left for
    more of them.
    """
    graphed: tuple[dict[str, Any], ...] = ()
    larger = larger_batch(settings.get("loader.batch_size"), samples, world)
    if larger is not None:
        graphed = ({**settings, "loader.batch_size": larger},)
    if settings.get("compile") is True and "graphs" not in settings and waits is not None and waits <= _WAITS:
        graphed += ({**settings, "compile": "reduce-overhead"},)
    now = settings.get("loader.num_workers")
    if now is None and workers and (waits or 0.0) > _WAITS:
        now = workers
    if not isinstance(now, int):
        return graphed
    most = max(_MOST_WORKERS_PER_CORE * cores, now)
    above = next((count for count in _LADDER if now < count <= most), None)
    below = next((count for count in reversed(_LADDER) if 0 < count < now), None)
    order = [above, below] if (waits or 0.0) > _WAITS else [below, above]
    if waits is not None and _WAITS < waits < 1.0:  # as many as would do, if none of them held up another
        enough = next((count for count in reversed(_LADDER) if now < count <= min(now / (1 - waits), most)), above)
        order = [enough, *(count for count in order if count != enough)]
    return graphed + tuple({**settings, "loader.num_workers": count} for count in order if count is not None)


def redraws(observation: Observation, level: Level) -> bool:
    """Another number of workers is not exact, or may not be: samples that draw would draw others."""
    loader = observation.train_loader
    return level == "exact" and loader is not None and loader.draws is not False


def wants_workers(findings: Sequence[Finding], observation: Observation, *, cores: int) -> bool:
    """Whether another number of them would be tried, did samples not draw."""
    found = candidates(findings, observation, cores=cores, level="numeric")
    return any("loader.num_workers" in one.settings for one in found)


def _refused(observation: Observation, level: Level) -> tuple[str, ...]:
    """Settings that its loader can't have."""
    loader = observation.train_loader
    if loader is None:
        return ()
    fixed = redraws(observation, level)
    if loader.keeps_workers or (fixed and not loader.num_workers):
        return _WORKERS
    return (
        *(("loader.num_workers",) if fixed else ()),
        *(("loader.persistent_workers",) if loader.changes or loader.remembers else ()),
    )


def _predicted(finding: Finding) -> float:
    """Of the rate, or of the step's limit: what binds now may be mended by another one."""
    return max(finding.gain or 0.0, getattr(finding, "limit_gain", None) or 0.0)


def _workers(
    observation: Observation, taken: Mapping[str, Any], cores: int, faster: float, refused: Sequence[str]
) -> list[Candidate]:
    """A loop that waits for a loader with fewer workers than cores, or that would: a trial says more than any
    forecast. `faster`: so many times, the others are predicted to make the step."""
    loader = observation.train_loader
    waits, total = waited(observation)
    feeding = "loader.num_workers" in taken or "loader.resident" in taken
    if loader is None or loader.in_memory or feeding or loader.num_workers >= cores:
        return []
    if "loader.num_workers" in refused:
        return []
    wanted, gain = cores, _RIDER
    if waits > _WAITS * total:
        gain = waits / (2 * (total - waits / 2))
    else:
        training, share = observation.training, _share(observation, loader)
        on_gpu = training is not None and training.device.startswith("cuda")  # else the step needs the cores itself
        if not on_gpu or share is None or not loader.num_workers or faster * share < 1.0:
            return []
        enough = math.ceil(_RESERVE * loader.num_workers * share)  # as fast as it is now
        wanted = min(cores, max(loader.num_workers + 1, enough))
    settings = {"loader.num_workers": wanted, "loader.persistent_workers": True}
    settings = {name: value for name, value in settings.items() if name not in taken and name not in refused}
    return [Candidate(title=describe(settings), settings=settings, gain=gain)]


def _share(observation: Observation, loader: Loader) -> float | None:
    """Of what the loader alone could give, what the loop takes; None where one of them was not seen."""
    rate, alone = rate_of(observation), loader.samples_per_second
    return None if rate is None or not alone else rate.value / alone


def _bytes(observation: Observation, taken: Mapping[str, Any], faster: float) -> list[Candidate]:
    """Images as bytes, where the loop waits for its workers, or would with a step that is `faster`."""
    training, loader = observation.training, observation.train_loader
    if training is None or loader is None or not training.device.startswith("cuda") or not loader.tail:
        return []
    if "augment" in taken or not taken.get("loader.num_workers", loader.num_workers):
        return []
    waits, total = waited(observation)
    share = _share(observation, loader)
    outruns = share is not None and faster * share >= 1.0
    if waits <= _WAITS * total and not outruns and "loader.num_workers" not in taken:
        return []
    # Where it waits, the step takes as long as the loader's work, down to what it takes by itself.
    spared = max((total - waits) / total, 1.0 - _spared(loader)) if total > 0 else 1.0
    gain = max(1.0 / spared - 1.0 if spared > 0 else 0.0, _RIDER)
    settings = {"loader.bytes": True}
    return [Candidate(title=describe(settings), settings=settings, gain=gain)]


def _spared(loader: Loader) -> float:
    """Share of the loader's work that is not done for bytes: the last transforms, and three quarters of the joining."""
    whole = math.fsum(stage.seconds for stage in loader.stages)
    tail = math.fsum(stage.seconds for stage in loader.stages if stage.name in loader.tail)
    joins = math.fsum(stage.seconds for stage in loader.stages if stage.name == "collate")
    return (tail + _LESS * joins) / whole if whole > 0 else 0.0


def _faster(found: Sequence[Candidate]) -> float:
    """How many times faster the step itself is predicted to become."""
    own = (one for one in found if not any(name.startswith("loader.") for name in one.settings))
    return math.prod(1.0 + one.gain for one in own)


def _semantic(findings: Sequence[Finding], observation: Observation, taken: Mapping[str, Any]) -> list[Candidate]:
    """What is another training, for who asks for that by name: no finding needs to plead for it."""
    training, loader = observation.training, observation.train_loader
    if training is None or loader is None or not training.device.startswith("cuda"):
        return []
    found: list[Candidate] = []
    if loader.augmentation is not None and "augment" not in taken:
        waits, total = waited(observation)
        settings = {"augment": True, "decode": True, "loader.pin_memory": True}
        settings = {name: value for name, value in settings.items() if name not in taken}
        gain = max(waits / (2 * (total - waits / 2)) if total > 0 else 0.0, _RIDER)
        found.append(Candidate(title=describe(settings), settings=settings, gain=gain))
    launches = next((one for one in findings if one.cause == "small-batch"), None)
    larger = larger_batch(loader.batch_size, loader.samples, observation.world)
    if launches is not None and larger is not None:
        batches = {"loader.batch_size": larger}
        found.append(Candidate(title=describe(batches), settings=batches, gain=_predicted(launches)))
    return found


def larger_batch(size: int | None, samples: int | None, world: int) -> int | None:
    """Twice the batch, as long as an epoch has steps enough for it to be one."""
    if not size or not samples or samples / (2 * size * max(world, 1)) < _LEAST_EPOCH_STEPS:
        return None
    return 2 * size


def _riders(observation: Observation, taken: Mapping[str, Any], level: Level, cores: int) -> list[Candidate]:
    training, loader = observation.training, observation.train_loader
    if training is None:
        return []
    workers = int(taken.get("loader.num_workers", 0 if loader is None else loader.num_workers))
    found: list[dict[str, Any]] = []
    if loader is not None and not loader.in_memory and 0 < workers <= loader.num_workers:
        found.append({"loader.keep_memory": True})
    if training.device == "cpu":
        # A team of threads waits for its slowest: one whose core a worker needs holds up all.
        threads = max(1, cores - workers)
        found += [{"threads": threads}] if workers and threads < training.threads else []
    else:
        found += [{"cudnn_benchmark": True}] if training.images and not training.cudnn_benchmark else []
        decodes = loader is not None and loader.tail and any(stage.name == "decode" for stage in loader.stages)
        if decodes and "loader.num_workers" in taken:  # Pillow's images, and cores that become few
            found.append({"decode": True})
        if "graphs" in taken:  # what is left to launch one by one, and what the compiler can add
            found += [] if training.fused else [{"fused": True}]
            found.append({"compile": True})
        if loader is not None and not loader.in_memory:
            found.append({"loader.ahead": True, **({} if loader.pin_memory else {"loader.pin_memory": True})})
    return [
        Candidate(title=describe(settings), settings=settings, gain=_RIDER)
        for settings in found
        if not settings.keys() & taken.keys() and allowed(level_of(settings), level)
    ]


def _with_precision(candidate: Candidate, observation: Observation, taken: Mapping[str, Any]) -> Candidate:
    """A compiler, or graphs, with what pays once launches no longer bind: before, it would only add to them."""
    training = observation.training
    launches = candidate.compiles or "graphs" in candidate.settings
    if not launches or training is None or not training.device.startswith("cuda"):
        return candidate
    settings = dict(candidate.settings)
    if training.autocast is None and "float32" in training.dtype and "autocast" not in taken:
        settings["autocast"] = "bfloat16"
    if "autocast" in settings and training.images and not training.channels_last and "channels_last" not in taken:
        settings["channels_last"] = True
    return Candidate(title=describe(settings), settings=settings, gain=candidate.gain)


def _with_workers_for_all(
    candidate: Candidate, found: Sequence[Candidate], observation: Observation, cores: int
) -> Candidate:
    """As many workers as all candidates together want.

    On a GPU, a step that others make faster wants its batches faster, too: workers in proportion, up to the cores. On a
    CPU training needs cores itself, but none while it waits: workers may have the cores for as long as that.
    """
    training, loader = observation.training, observation.train_loader
    workers = candidate.settings.get("loader.num_workers")
    if training is None or loader is None or not workers or workers <= loader.num_workers:
        return candidate
    if training.device.startswith("cuda"):
        wanted = min(cores, round(workers * _faster(found)))
    else:
        waits, total = waited(observation)
        wanted = math.ceil(cores * waits / total) if total > 0 else 0
    settings = {**candidate.settings, "loader.num_workers": max(int(workers), wanted), "loader.keep_memory": True}
    return Candidate(title=describe(settings), settings=settings, gain=candidate.gain)
