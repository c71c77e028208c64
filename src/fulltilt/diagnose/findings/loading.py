"""How the loader is set: samples in memory, no workers, too few, too many, too little room for their batches."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from fulltilt import words
from fulltilt.measure.observation import Loader

from .. import edits
from ..figures import Figures
from ..finding import Finding
from ..thresholds import THRESHOLDS

_DEFAULT_PREFETCH = 2
_MUCH_MORE = 1.5


def loading(figures: Figures) -> list[Finding]:
    loader = figures.train_loader
    if loader is None:
        return []
    if loader.in_memory and figures.starved:
        return [_in_memory(figures, loader)]
    found = _too_many(figures, loader)
    if found:
        return found
    if not figures.starved:
        return _full_shm(figures, loader)
    return _more_workers(figures, loader)


def wanted_workers(figures: Figures) -> int:
    """As few as keep the step fed, as many as the cores allow; more where they wait for a disk and need no core."""
    # A GPU's step needs a core to itself, to launch; a CPU's that has less to do than its loader shares its own.
    shared = not figures.on_gpu and figures.work > _MUCH_MORE * figures.own
    loader_cores = max(1, figures.cores - (0 if shared else 1))
    if figures.work > figures.file_work:
        loader_cores = min(ceil(loader_cores * figures.work / (figures.work - figures.file_work)), 4 * figures.cores)
    target = THRESHOLDS.worker_reserve * (figures.limit if figures.limit is not None else figures.own)
    return max(1, min(loader_cores, ceil(figures.work / target) if target > 0 else loader_cores))


def with_workers(figures: Figures, workers: int) -> float:
    """Seconds of a step with that many workers."""
    loader = figures.train_loader
    if loader is None:
        return figures.step
    if loader.num_workers:
        return figures.fed(figures.loader * loader.num_workers / workers)
    moved = THRESHOLDS.hand_over_seconds + (loader.batch_bytes or 0) / THRESHOLDS.hand_over_bytes_per_second
    return figures.fed((figures.work + moved) / workers)


def with_values(loader: Loader, workers: int) -> dict[str, int | bool]:
    """Its arguments with so many workers. They live on, unless they would go on with what the script has changed."""
    lives_on = not (loader.iterable or loader.changes or (loader.num_workers and loader.remembers))
    return {"num_workers": workers, **({"persistent_workers": True} if lives_on else {})}


def settings(values: Mapping[str, int | bool]) -> dict[str, int | bool]:
    """The same as `fulltilt run` sets them."""
    return {f"loader.{name}": value for name, value in values.items()}


def condition(loader: Loader) -> str | None:
    """What the script has to see to before it can have more workers, behind the edit; nobody can from outside."""
    if loader.iterable:
        return ", with each worker giving a share of the samples (torch.utils.data.get_worker_info), not all of them"
    if loader.opened is not None:
        return f", with {loader.opened} opened anew in each worker, or one reads at another's place in it"
    if loader.remembers is not None and (not loader.num_workers or loader.persistent_workers):
        return f", with {loader.remembers} filled before they start, or each of them has one of its own"
    if loader.generator is not None:
        return f", with {loader.generator} seeded anew in each worker and epoch, or all of them draw the same numbers"
    return None


def _in_memory(figures: Figures, loader: Loader) -> Finding:
    step = max(figures.own + THRESHOLDS.resident_seconds, figures.limit or 0.0) + figures.start
    where = "on the GPU" if figures.on_gpu else "in memory"
    return Finding(
        cause="in-memory",
        title=f"The samples of {loader.dataset} lie in memory already, but are fetched one by one",
        evidence=(
            _waits(figures),
            f"{words.seconds(figures.loader)} are spent to fetch and collate "
            f"{figures.per_step or 0:.0f} samples that one index operation would give",
        ),
        gain=figures.gain(step=step),
        fix=f"Cut batches out of the tensors directly and keep them {where}: fulltilt.feed.feed(tensors, batch_size=…)",
        place=loader.place,
        settings={"loader.resident": True},
        seconds=figures.wait,
    )


def _more_workers(figures: Figures, loader: Loader) -> list[Finding]:
    wanted = wanted_workers(figures)
    if wanted <= loader.num_workers:
        return []
    room = _shm_workers(figures, loader)
    findings = []
    if room is not None and room < wanted:
        findings.append(_small_shm(figures, loader, wanted, room))
        wanted = room
    if wanted > loader.num_workers:
        findings.append(_workers(figures, loader, wanted))
    return findings


def _workers(figures: Figures, loader: Loader, wanted: int) -> Finding:
    alone = loader.num_workers == 0
    values = with_values(loader, wanted)
    first = condition(loader)
    title = (
        "The training process loads its own data: while it loads it does not train"
        if alone
        else f"{words.many(loader.num_workers, 'worker')} cannot load as fast as the step trains"
    )
    evidence = [_waits(figures), _compared(figures)]
    if not alone and figures.observation.surroundings is not None:
        evidence.append(f"the machine has {figures.cores} usable cores")
    file, edit = edits.loader_edit(loader.place, values)
    return Finding(
        cause="single-process" if alone else "too-few-workers",
        title=title,
        evidence=tuple(evidence),
        gain=figures.gain(step=with_workers(figures, wanted)),
        fix=f"DataLoader(…, {', '.join(f'{name}={value}' for name, value in values.items())}){first or ''}",
        place=loader.place,
        diff=None if first else edits.edited(figures.read_source, file, edit),
        settings={} if first else settings(values),
        seconds=figures.wait,
    )


def _small_shm(figures: Figures, loader: Loader, wanted: int, room: int) -> Finding:
    found = figures.observation.surroundings
    assert found is not None
    assert found.shm_bytes is not None
    return Finding(
        cause="small-shm",
        title=f"/dev/shm is too small for the workers that the loader needs: there is room for {room}",
        evidence=(
            _waits(figures),
            f"/dev/shm has {words.memory_size(found.shm_bytes)}; {wanted} workers with "
            f"{loader.prefetch_factor or _DEFAULT_PREFETCH} batches each of "
            f"{words.memory_size(loader.batch_bytes or 0)} need {words.memory_size(_shm_needed(loader, wanted))}",
        ),
        gain=figures.gain(step=with_workers(figures, wanted)),
        fix=f"Give the container more: docker run --shm-size={_shm_size(_shm_needed(loader, wanted))} … "
        f"(or --ipc=host), then num_workers={wanted}",
        place=loader.place,
        seconds=figures.wait,
    )


def _full_shm(figures: Figures, loader: Loader) -> list[Finding]:
    """Fast enough, but what is on its way may not fit: a worker dies of a bus error then."""
    room = _shm_workers(figures, loader)
    if room is None or room >= loader.num_workers:
        return []
    found = figures.observation.surroundings
    assert found is not None
    assert found.shm_bytes is not None
    return [
        Finding(
            cause="small-shm",
            title="/dev/shm can run full: a worker would be killed by a bus error",
            evidence=(
                f"{loader.num_workers} workers hold up to {words.memory_size(_shm_needed(loader, loader.num_workers))}"
                f", /dev/shm has {words.memory_size(found.shm_bytes)}",
            ),
            gain=None,
            fix=f"docker run --shm-size={_shm_size(_shm_needed(loader, loader.num_workers))} …, or fewer workers",
            place=loader.place,
            about="between",  # it costs no time, until it ends the run
        )
    ]


def _too_many(figures: Figures, loader: Loader) -> list[Finding]:
    """More workers than cores, and the step itself is slower while they work than without them."""
    if loader.num_workers <= figures.cores or not figures.crowding or not figures.limit:
        return []
    contention = figures.own / figures.limit
    wanted = min(wanted_workers(figures), figures.cores)
    file, edit = edits.loader_edit(loader.place, {"num_workers": wanted})
    return [
        Finding(
            cause="too-many-workers",
            title=f"{loader.num_workers} workers on {figures.cores} cores take the processor from the training itself",
            evidence=(
                f"the step's own work takes {words.seconds(figures.own)} while they load and "
                f"{words.seconds(figures.limit)} without them: {contention:.1f} times as long",
            ),
            gain=figures.gain(step=figures.fed(figures.loader, own=figures.own - figures.crowding)),
            fix=f"DataLoader(…, num_workers={wanted})",
            place=loader.place,
            diff=edits.edited(figures.read_source, file, edit),
            settings={"loader.num_workers": wanted},
            seconds=figures.crowding,
        )
    ]


def _shm_needed(loader: Loader, workers: int) -> int:
    return workers * (loader.prefetch_factor or _DEFAULT_PREFETCH) * (loader.batch_bytes or 0)


def _shm_workers(figures: Figures, loader: Loader) -> int | None:
    """How many workers' batches fit into /dev/shm; None where that is not known."""
    found = figures.observation.surroundings
    if found is None or found.shm_bytes is None or not loader.batch_bytes:
        return None
    return int(THRESHOLDS.shm_share * found.shm_bytes) // _shm_needed(loader, 1)


def _shm_size(needed: int) -> str:
    return f"{max(1, ceil(needed / THRESHOLDS.shm_share / 2**30))}g"


def _waits(figures: Figures) -> str:
    share = words.percent(figures.wait / figures.step)
    return f"{share} of each step ({words.seconds(figures.wait)}) is spent waiting for data"


def _compared(figures: Figures) -> str:
    if figures.limit is None:
        return f"loading a step's samples takes {words.seconds(figures.work)} of one core"
    return (
        f"loading a step's samples takes {words.seconds(figures.work)} of one core; "
        f"the step itself could be done in {words.seconds(figures.limit)}"
    )
