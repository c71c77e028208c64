"""ResNet-50 from JPEG files against its limit: our feed in several ways, and DataLoaders."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from fulltilt.bench.feed.figures import Case, Rate, target
from fulltilt.bench.feed.ladder import augmentation
from fulltilt.bench.feed.limit import Limit, Plan, against
from fulltilt.bench.feed.loader import Photos, loading, way
from fulltilt.bench.feed.measure import confined, endless, measure
from fulltilt.bench.feed.models import Step, resnet50, small_classifier
from fulltilt.bench.feed.scale import Scale
from fulltilt.bench.ground import Say
from fulltilt.bench.target import Target
from fulltilt.cache import CacheSettings
from fulltilt.cache.build import build
from fulltilt.feed import Feed, ImageFiles, feed
from fulltilt.feed.images.file_feed import FileFeed

TRAIN, CORES = "train", "cores"
"""The two parts: all cores and a given number of decoders; fewer cores, and numbers that are found."""
TARGETS = {"fast": 0.97, "exact": 0.88, "auto": 0.97, "cache": 0.99, "cores_8": 0.85, "cores_4": 0.77}
"""Shares of the limit."""
_FEWER = (8, 4)
_LOADER_WORKERS = 16
_PLAIN_BATCH, _PLAIN_STEPS = 32, 8


class Training:
    """The step, the files, and every way to feed them."""

    def __init__(self, files: ImageFiles, place: Path, scale: Scale, *, cores: int) -> None:
        self._files, self._place, self._scale, self._cores = files, place, scale, cores
        if scale.gpu:
            model, theirs = resnet50()
            self.title = f"limit: ResNet-50{'' if theirs else ' (ours)'}, bf16 compiled, batch {scale.batch}"
        else:
            model, self.title = small_classifier(), f"limit: a small CNN, batch {scale.batch}"
        self.step = Step(model, scale.device, half=scale.gpu, compiled=scale.gpu)

    def measure(self, *, say: Say) -> list[Case]:
        """With all cores, and DataLoaders."""
        return self._against(TRAIN, self._plans(), say)

    def measure_cores(self, *, quick: bool, say: Say) -> list[Case]:
        """All at "auto", with all cores and with fewer, against what the cores and the GPU's engines give alone."""
        plans: list[Plan] = []
        if self._scale.gpu:
            plans = [self._plan("auto", f"feed, fast, automatic, {self._cores} cores", num_workers="auto")]
            plans += [plan for cores in _FEWER for plan in self._with_fewer(cores, quick=quick)]
        found = self._against(CORES, plans, say)
        rates = {case.key: case.rate.samples_per_second for case in found if case.rate is not None}

        def compared(case: Case) -> Case:
            alone = [rates[key] for side in ("cpu", "gpu") if (key := f"{case.key}_{side}") in rates]
            if len(alone) < 2 or case.key not in rates:
                return case
            better = target("of_alone", 1.0)
            return replace(case, of_alone=rates[case.key] / max(alone), wanted=(*case.wanted, better))

        return [compared(case) for case in found]

    def _against(self, part: str, plans: list[Plan], say: Say) -> list[Case]:
        say(f"{part}: compiling" if self._scale.gpu else f"{part}: the limit")
        with self._feed() as it:  # a real batch: how long a kernel takes depends on the values, through the power drawn
            batch = tuple(tensor.clone() for tensor in next(iter(it)))
        return against(Limit(self.step, batch, self._scale), part, self.title, plans, say)

    def _plans(self) -> list[Plan]:
        plans = [
            self._plan("fast", "feed, fast decoding"),
            self._plan("exact", "feed, exact decoding", quality="exact"),
            Plan(key="cache", title="feed, from a cache", run=self._from_cache, wanted=self._wanted("cache")),
        ]
        if self._scale.peers:
            workers = min(_LOADER_WORKERS, self._cores)
            plans.append(
                Plan(
                    key="loader_tuned",
                    title=f"DataLoader, hand-tuned, {workers} workers",
                    run=lambda: self._tuned_loader(workers),
                )
            )
        plain = f"DataLoader, untuned: 0 workers, fp32, batch {min(_PLAIN_BATCH, self._scale.batch)}"
        return [*plans, Plan(key="loader_plain", title=plain, run=self._plain_loader)]

    def _plan(self, key: str, title: str, **options: Any) -> Plan:
        return Plan(key=key, title=title, run=lambda: self._fed(**options), wanted=self._wanted(key))

    def _with_fewer(self, cores: int, *, quick: bool) -> list[Plan]:
        title, each = f"feed, fast, automatic, {cores} cores only", {"cores": cores, "num_workers": cores - 1}
        plans = [self._plan(f"cores_{cores}", title, cores=cores, num_workers="auto")]
        if not quick:
            plans += [
                self._plan(
                    f"cores_{cores}_cpu", f"feed, fast, {cores} cores only, by the cores alone", gpu_share=0.0, **each
                ),
                self._plan(
                    f"cores_{cores}_gpu", f"feed, fast, {cores} cores only, by the GPU alone", gpu_share=1.0, **each
                ),
            ]
        if self._cores <= cores:
            return [replace(plan, unavailable=f"{self._cores} cores are usable: none to take away") for plan in plans]
        return plans

    def _wanted(self, key: str) -> tuple[Target, ...]:
        return (target("share", TARGETS[key]),) if self._scale.gpu and key in TARGETS else ()

    @contextmanager
    def _feed(self, **options: Any) -> Iterator[Feed]:
        wanted = {"num_workers": max(1, self._cores - 1), "quality": "fast", "gpu_share": 0.0, **options}
        if wanted["num_workers"] == "auto":
            wanted["gpu_share"] = "auto"
        with feed(
            self._files, batch_size=self._scale.batch, device=self._scale.device, shuffle=True, drop_last=True,
            augment=augmentation(self._scale), **wanted,
        ) as it:  # fmt: skip
            yield it

    def _fed(self, *, cores: int | None = None, **options: Any) -> Rate:
        scale = self._scale
        fewer: AbstractContextManager[None] = nullcontext() if cores is None else confined(cores)
        with fewer, self._feed(**options) as it:
            batches = endless(it)
            note = self._settle(it, batches) if "auto" in options.values() else None
            rate = measure(
                batches, self.step, device=scale.device, warm=scale.warm_steps, steps=scale.steps,
                seconds=scale.seconds, feed=it,
            )  # fmt: skip
        self.step.check()
        return replace(rate, note=note)

    def _settle(self, it: Feed, batches: Iterator[Any]) -> str:
        """Train until workers and share are chosen, or for so long."""
        assert isinstance(it, FileFeed)
        began = time.monotonic()
        while not it.is_settled and time.monotonic() - began < self._scale.settle_seconds:
            self.step(*next(batches))
        took, stats = time.monotonic() - began, it.stats()
        found = [f"{stats['workers']} decoders, {stats['gpu_share']:.0%} by the GPU after {took:.0f} s"]
        if not it.is_settled:
            found = [f"not settled: {found[0]}"]
        found += [f"{d.value:g}: {d.reason}" for d in (it.share_decision, it.decision) if d is not None]
        it.resize(int(stats["workers"]))  # a change in the middle of the measurement would be in its figure
        return "; ".join(found)

    def _from_cache(self) -> Rate:
        folder = self._place / "cache"
        report = build(folder, self._files.paths, settings=CacheSettings(quality="fast"))
        rate = self._fed(cache=folder)
        return replace(rate, note=f"{report.made} photos, {report.bytes / 1e9:.2f} GB, built in {report.seconds:.1f} s")

    def _tuned_loader(self, workers: int) -> Rate:
        scale = self._scale
        photos = self._photos(as_bytes=True)
        with loading(photos, batch=scale.batch, workers=workers, device=scale.device, half=scale.gpu) as batches:
            rate = measure(  # workers deliver in bursts: several rounds of them
                batches, self.step, device=scale.device, warm=2 * workers, steps=4 * workers,
                seconds=3 * scale.seconds, workers=workers,
            )  # fmt: skip
        self.step.check()
        return replace(rate, note=way())

    def _plain_loader(self) -> Rate:
        scale = self._scale
        step = Step(resnet50()[0] if scale.gpu else small_classifier(), scale.device, half=False, compiled=False)
        batch = min(_PLAIN_BATCH, scale.batch)
        with loading(self._photos(), batch=batch, workers=0, device=scale.device) as batches:
            return measure(
                batches, step, device=scale.device, warm=2, steps=_PLAIN_STEPS, seconds=scale.seconds, workers=0
            )

    def _photos(self, *, as_bytes: bool = False) -> Photos:
        labels = self._files.labels
        assert labels is not None
        return Photos(self._files.paths, [int(label) for label in labels], self._scale.crop, as_bytes=as_bytes)
