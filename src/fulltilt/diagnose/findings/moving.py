"""Between the loader and the device: workers that start anew, copies that hold the loop up, waits for the GPU."""

from __future__ import annotations

from math import fsum

from fulltilt import words

from .. import edits
from ..figures import Figures
from ..finding import Finding
from ..thresholds import THRESHOLDS

_COPY_LEFT = 0.1
"""Share of a blocking copy's time that the host still needs to ask for one that does not block."""

_READ_SELDOM = "Keep losses and metrics on the GPU (loss.detach()) and read them every 50 steps or once an epoch"
_BY_WEIGHT = "Keep shapes fixed: multiply by the mask, or torch.where(mask, x, 0.0), and divide by mask.sum()"
_INSTEAD = {
    "a mask as index": f"{_BY_WEIGHT}; x[mask] has to ask the GPU how many there are",
    "masked_select": f"{_BY_WEIGHT}; masked_select has to ask the GPU how many there are",
    "nonzero": f"{_BY_WEIGHT}; nonzero has to ask the GPU how many there are",
    "unique": "Find them once, when the data is prepared: unique has to ask the GPU how many there are",
    "repeat_interleave": "Tell it the size: repeat_interleave(…, output_size=n)",
    "one_hot": "Tell it the size: one_hot(…, num_classes=n)",
    "bincount": "Use scatter_add_ into a tensor of known size",
    "synchronize": "Leave it out: results are waited for when they are read",
}
"""What else to do; what is not here reads a value."""


def moving(figures: Figures) -> list[Finding]:
    return [*_restarted(figures), *_copies(figures), *_syncs(figures)]


def _restarted(figures: Figures) -> list[Finding]:
    loader = figures.train_loader
    if loader is None or loader.num_workers == 0 or loader.persistent_workers or not loader.start_seconds:
        return []
    if loader.changes or loader.remembers:  # workers that live on would not know, or keep ever more
        return []
    if loader.starts < 2 and figures.steps > figures.epoch_steps:
        return []
    # With workers that stay, an epoch's first batch still has to be made, by one of them alone.
    batches = max((figures.per_step or 0.0) / loader.batch_size, 1.0) if loader.batch_size else 1.0
    first_batch = min(figures.work / batches, loader.start_seconds)
    saved = (loader.start_seconds - first_batch) / figures.epoch_steps
    if saved < THRESHOLDS.epoch_start * figures.whole:
        return []
    within = min(saved, figures.start)
    between = figures.whole - figures.step - min(saved - within, figures.outside.get("epoch start", 0.0))
    file, edit = edits.loader_edit(loader.place, {"persistent_workers": True})
    anew = loader.made > 1  # then workers can't live on, whatever the loader is told
    by_hand = anew or loader.iterable  # of a stream they may go on where they were; only the script knows
    once = "Make it once, before the loop over epochs: " if anew else ""
    if_anew = ", if its data set's __iter__ begins anew each time" if loader.iterable else ""
    several = loader.num_workers > 1
    return [
        Finding(
            cause="restarted-workers",
            title="The loader is made anew for each epoch, and its workers with it"
            if anew
            else "The loader's workers are started again for each epoch",
            evidence=(
                f"each epoch's first batch is waited for {words.seconds(loader.start_seconds)}; "
                f"an epoch has {figures.epoch_steps:.0f} steps of {words.seconds(figures.step)}",
                f"{loader.num_workers} worker{'s were' if several else ' was'} started {loader.starts} times while "
                "watching",
            ),
            gain=figures.gain(step=figures.step - within, outside=between),
            fix=f"{once}DataLoader(…, persistent_workers=True){if_anew}",
            place=loader.place,
            diff=None if by_hand else edits.edited(figures.read_source, file, edit),
            settings={} if by_hand else {"loader.persistent_workers": True},
            seconds=saved,
        )
    ]


def _copies(figures: Figures) -> list[Finding]:
    seconds = figures.phases.get("copy", 0.0)
    slow = [copy for copy in figures.observation.copies if not (copy.pinned and copy.non_blocking)]
    if not figures.on_gpu or not slow or seconds < THRESHOLDS.copy * figures.step:
        return []
    if figures.headroom is not None and figures.headroom < THRESHOLDS.no_headroom:
        return []
    loader = figures.train_loader
    worst = max(slow, key=lambda copy: copy.seconds)
    pinned = all(copy.pinned for copy in slow)
    step = max(figures.step - seconds * (1 - _COPY_LEFT), figures.limit or 0.0)
    moved = fsum(copy.bytes for copy in slow) / max(sum(copy.count for copy in slow), 1)
    pin: dict[str, object] = {} if pinned or loader is None else {"loader.pin_memory": True}
    file, edit = edits.loader_edit(None if loader is None else loader.place, {"pin_memory": True})
    if pinned and worst.place is not None:
        file, edit = worst.place.file, edits.with_keywords(worst.place.line, "to", {"non_blocking": True})
    state = "pinned" if pinned else "pageable"
    return [
        Finding(
            cause="blocking-copies",
            title="The loop stands still while batches are copied to the GPU",
            evidence=(
                f"copies take {words.percent(seconds / figures.step)} of each step ({words.seconds(seconds)} of the "
                f"host's time), {words.memory_size(moved)} at a time",
                f"they come from {state} memory and {'do not block' if worst.non_blocking else 'block'}",
            ),
            gain=figures.gain(step=step),
            fix="Pin the loader's memory and copy without blocking: DataLoader(…, pin_memory=True) and "
            "batch.to(device, non_blocking=True); or bring batches to the device ahead: fulltilt.feed.feed(loader)",
            place=worst.place,
            diff=edits.edited(figures.read_source, file, edit),
            settings={**pin, "copy.non_blocking": True, "loader.ahead": True},
            seconds=seconds,
        )
    ]


def _syncs(figures: Figures) -> list[Finding]:
    syncs = sorted(figures.observation.syncs, key=lambda sync: -sync.seconds)
    seconds = figures.sync
    count = sum(sync.count for sync in syncs)
    if not figures.on_gpu or not syncs or seconds < THRESHOLDS.sync * figures.step:
        return []
    if count < THRESHOLDS.sync_count * figures.steps:
        return []
    # Without them the host goes on while the GPU works: the step takes as long as the slower of the two.
    busy = figures.gpu_busy
    gain = None if busy is None else figures.gain(step=min(max(figures.step - seconds, busy), figures.step))
    if gain is not None and gain < THRESHOLDS.least_gain:
        return []
    worst = syncs[0]
    where = [
        f"{sync.place or 'a library'}: {sync.kind}, {sync.count / figures.steps:.1f} times a step, "
        f"{words.seconds(sync.seconds / figures.steps)}"
        for sync in syncs[:3]
    ]
    idle = [] if busy is None else [f"the GPU is busy in {words.percent(busy / figures.step)} of the time"]
    return [
        Finding(
            cause="hidden-sync",
            title=f"The loop waits for the GPU in each step: {worst.kind}"
            + (f" in {worst.place}" if worst.place is not None else ""),
            evidence=(
                f"{words.percent(seconds / figures.step)} of each step is spent waiting for results of the GPU",
                *where,
                *idle,
            ),
            gain=gain,
            fix=_INSTEAD.get(worst.kind, _READ_SELDOM),
            place=worst.place,
            about="step",
            seconds=seconds,
        )
    ]
