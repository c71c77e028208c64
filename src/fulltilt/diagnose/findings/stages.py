"""What the loader's work consists of: one transform, the disk, decoding, collate.

It costs a step that waits for its batches, and one on a CPU whose cores it is done on.
"""

from __future__ import annotations

import re

from fulltilt import words
from fulltilt.measure.observation import Loader, Stage

from ..figures import Figures, transforms
from ..finding import Finding
from ..thresholds import THRESHOLDS
from .loading import condition, settings, wanted_workers, with_values, with_workers

_ON_GPU = re.compile(
    r"flip|rot|affine|crop|resize|jitter|bright|contrast|hue|satur|gamma|normali[sz]e|blur|noise|grayscale|erasing"
    r"|perspective|elastic|scale|totensor|toimage|todtype|convert",
    re.IGNORECASE,
)
"""Names of transforms that `fulltilt.augment` does on the GPU, in torchvision's and Albumentations' words."""


def stages(figures: Figures) -> list[Finding]:
    loader = figures.train_loader
    if loader is None or loader.in_memory or not (figures.starved or figures.crowding):
        return []
    ranked = figures.ranked_stages()
    if not ranked:
        return []
    found = []
    stage, share = ranked[0]
    if _dominates(ranked):
        if figures.waits_for_files(stage):
            found += [_disk(figures, loader, stage, share)] if figures.starved else []
        elif stage.name == "collate":
            found.append(_collate(figures, loader, stage, share))
        elif stage.name == "decode":
            found.append(_decode(figures, loader, stage, share))
            found += _cacheable(figures, loader, share)
        elif (stage, share) in transforms(ranked):
            found.append(_transform(figures, loader, stage, share))
    return found + _gpu_augmentation(figures, loader)


def without(figures: Figures, share: float, factor: float) -> float:
    """Seconds of a step when that share of the loader's work becomes `factor` times faster."""
    loader = figures.train_loader
    left = 1 - share * (1 - 1 / factor)
    if loader is None or loader.num_workers == 0:
        return max(figures.own + figures.start + figures.wait * left, figures.limit or 0.0)
    own = figures.own - figures.crowding * (1 - left)
    return figures.fed(figures.loader * left, own=own, core_work=figures.core_work * left)


def _dominates(ranked: list[tuple[Stage, float]]) -> bool:
    share = ranked[0][1]
    following = ranked[1][1] if len(ranked) > 1 else 0.0
    return share >= THRESHOLDS.dominant_stage and share >= THRESHOLDS.dominant_over_next * following


def _takes(figures: Figures, stage: Stage, share: float) -> str:
    taken = words.seconds(figures.taken(stage))
    return f"{stage.name} takes {words.percent(share)} of the loader's work: {taken} per sample"


def _title(figures: Figures, what: str, share: float, *, starved: str) -> str:
    """`starved` where the step waits for its loader; else what that takes from it."""
    if figures.starved:
        return starved
    return f"{what} takes {words.seconds(figures.core_work * share)} of a core from each step, which has none to spare"


def _cost(figures: Figures, share: float) -> float:
    """Seconds of a step that such a share of the loader's work costs."""
    return (figures.wait + figures.crowding) * share


def _seen(figures: Figures) -> list[str]:
    """What loading was seen to cost the step."""
    waits = f"{words.percent(figures.wait / figures.step)} of each step is spent waiting for data"
    beside = (
        f"loading takes {words.seconds(figures.core_work)} of a core from each step, whose own work takes "
        f"{words.seconds(figures.own)} beside it and {words.seconds(figures.limit or 0.0)} alone"
    )
    return [waits] * figures.starved + [beside] * (figures.crowding > 0)


def _transform(figures: Figures, loader: Loader, stage: Stage, share: float) -> Finding:
    rest = [(other, part) for other, part in figures.ranked_stages() if other is not stage]
    evidence = [_takes(figures, stage, share), *_seen(figures)]
    if rest:
        evidence.append(f"the next is {rest[0][0].name} with {words.percent(rest[0][1])}")
    return Finding(
        cause="slow-transform",
        title=_title(figures, stage.name, share, starved=f"One transform holds the loader up: {stage.name}"),
        evidence=tuple(evidence),
        gain=figures.gain(step=without(figures, share, THRESHOLDS.transform_factor)),
        fix=f"Write {stage.name} with whole-array operations (numpy, torch, OpenCV) instead of loops, "
        "do it once before training, or on the GPU for a whole batch",
        place=loader.place,
        seconds=_cost(figures, share),
    )


def _disk(figures: Figures, loader: Loader, stage: Stage, share: float) -> Finding:
    workers = max(wanted_workers(figures), loader.num_workers)
    more = workers > loader.num_workers and condition(loader) is None
    step = with_workers(figures, workers) if more else without(figures, share, THRESHOLDS.cache_factor)
    instead = f"or let more of it wait at once: DataLoader(…, num_workers={workers})" if more else "or pack small files"
    return Finding(
        cause="slow-disk",
        title="The loader waits for its files, not for a processor",
        evidence=(
            _takes(figures, stage, share),
            f"in {words.percent(figures.waited_share(stage))} of that no core worked: "
            "the disk or the network was waited for",
            *_seen(figures),
        ),
        gain=figures.gain(step=step),
        fix=f"Copy the data set to a local disk or into memory, {instead}",
        place=loader.place,
        settings=settings(with_values(loader, workers)) if more else {},
        seconds=_cost(figures, share),
    )


def _collate(figures: Figures, loader: Loader, stage: Stage, share: float) -> Finding:
    return Finding(
        cause="slow-collate",
        title=_title(
            figures,
            "Putting samples together into batches",
            share,
            starved="Putting the samples together into a batch takes longer than making them",
        ),
        evidence=(_takes(figures, stage, share), *_seen(figures)),
        gain=figures.gain(step=without(figures, share, THRESHOLDS.collate_factor)),
        fix="Return arrays or tensors of one shape from the data set and stack them in one call in collate_fn; "
        "no lists of numbers, no loops over elements",
        place=loader.place,
        seconds=_cost(figures, share),
    )


def _decode(figures: Figures, loader: Loader, stage: Stage, share: float) -> Finding:
    return Finding(
        cause="slow-decode",
        title=_title(figures, "Decoding images", share, starved="Decoding images holds the loader up"),
        evidence=(_takes(figures, stage, share), *_seen(figures)),
        gain=figures.gain(step=without(figures, share, THRESHOLDS.decode_factor)),
        fix="Decode with simplejpeg instead of Pillow (fulltilt.decode), or store the images smaller",
        place=loader.place,
        level="numeric",
        settings={"decode": True},
        seconds=_cost(figures, share),
    )


def _cacheable(figures: Figures, loader: Loader, share: float) -> list[Finding]:
    """Where workers can't decode fast enough on all cores, the same files need not be decoded each epoch."""
    left = 1 - share * (1 - 1 / THRESHOLDS.decode_factor)
    workers = max(wanted_workers(figures), loader.num_workers, 1)
    if figures.reach is None or loader.num_workers == 0:  # workers first: they cost nothing
        return []
    own = figures.reach + figures.crowding * left
    fastest = figures.fed(figures.work * left / workers, own=own, core_work=figures.core_work * left)
    if fastest <= figures.reach * (1 + THRESHOLDS.no_headroom):
        return []
    return [
        Finding(
            cause="cacheable",
            title="The same files are decoded again in each epoch, "
            + ("and the cores cannot keep up" if figures.starved else "on cores that the step needs"),
            evidence=(
                f"with a faster decoder {words.many(workers, 'worker')} would still take "
                f"{words.seconds(fastest)} for a step that could be done in {words.seconds(figures.reach)}",
            ),
            gain=figures.gain(step=without(figures, share, THRESHOLDS.cache_factor)),
            fix="Decode once and keep the pixels: fulltilt cache build, then fulltilt.feed.feed(…, cache=…)",
            place=loader.place,
            seconds=_cost(figures, share),
        )
    ]


def _gpu_augmentation(figures: Figures, loader: Loader) -> list[Finding]:
    """Where the cores do not suffice and the GPU could do it in passing."""
    moved = [
        (stage, share)
        for stage, share in transforms(figures.ranked_stages())
        if (stage.name in loader.movable if loader.movable else _ON_GPU.search(stage.name))
    ]
    share = sum(part for _, part in moved)
    if not figures.on_gpu or share < THRESHOLDS.gpu_augmentation or figures.limit is None:
        return []
    workers = max(wanted_workers(figures), loader.num_workers)
    if with_workers(figures, workers) <= figures.limit * (1 + THRESHOLDS.no_headroom):
        return []
    names = ", ".join(stage.name for stage, _ in moved)
    return [
        Finding(
            cause="gpu-augmentation",
            title="Augmentation keeps the cores busy that the GPU would do in passing",
            evidence=(
                f"{names} take {words.percent(share)} of the loader's work",
                f"{workers} workers would still need {words.seconds(with_workers(figures, workers))} for a step",
                *_seen(figures),
            ),
            gain=figures.gain(step=without(figures, share, THRESHOLDS.gpu_augmentation_factor)),
            fix="Send the decoded uint8 images and augment the batch on the GPU: fulltilt.augment."
            f"{loader.augmentation or 'GPUAugmentation'} (the random draws differ)",
            place=loader.place,
            level="semantic",
            settings={"augment": True} if loader.augmentation else {},
            seconds=_cost(figures, share),
        )
    ]
