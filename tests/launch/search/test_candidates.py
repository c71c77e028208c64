"""From findings to what is tried."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from fulltilt.diagnose.finding import Finding, Level
from fulltilt.launch.search.candidates import candidates, describe, level_of, neighbours, redraws, wants_workers
from fulltilt.launch.search.edits import by_hand, only_by_hand
from fulltilt.launch.settings import SETTINGS
from fulltilt.measure.observation import Loader, Observation, Place, Stage, Step, Training


def finding(settings: dict[str, Any], gain: float | None, level: Level = "exact", **more: Any) -> Finding:
    return Finding(cause="x", title="x", evidence=(), gain=gain, fix="x", level=level, settings=settings, **more)


def observed(device: str = "cpu", *, workers: int = 0) -> Observation:
    loader = Loader(
        role="train", place=None, dataset="Images", samples=1000, batch_size=8, num_workers=workers,
        prefetch_factor=None, persistent_workers=False, pin_memory=False, batch_bytes=1, draws=False,
    )  # fmt: skip
    training = Training(
        model="Net", parameters=1, dtype="float32", device=device, images=True, channels_last=False, compiled=False,
        autocast=None, tf32=False, cudnn_benchmark=False, optimizer="SGD", fused=False, foreach=True,
    )  # fmt: skip
    return Observation(command=("x.py",), ended="steps", seconds=1.0, loaders=(loader,), training=training)


FINDINGS = (
    finding({"loader.num_workers": 4, "loader.persistent_workers": True}, 0.5),
    finding({"autocast": "bfloat16"}, 0.9, "numeric"),
    finding({"tf32": True}, 0.3, "numeric"),
    finding({}, 2.0),
    finding({"loader.num_workers": 8}, 0.4),
)


def test_by_gain_and_within_the_level() -> None:
    found = candidates(FINDINGS, observed(), cores=8, level="numeric")
    assert [list(one.settings) for one in found] == [
        ["autocast"], ["loader.num_workers", "loader.persistent_workers", "loader.keep_memory"], ["tf32"],
    ]  # fmt: skip
    exact = candidates(FINDINGS, observed(), cores=8, level="exact")
    assert [one.settings for one in exact] == [
        {"loader.num_workers": 4, "loader.persistent_workers": True, "loader.keep_memory": True},
    ]  # fmt: skip


def test_workers_are_not_tried_where_samples_depend_on_them() -> None:
    seen = observed()
    iterable = dataclasses.replace(seen, loaders=(dataclasses.replace(seen.loaders[0], samples=None, iterable=True),))
    opened = dataclasses.replace(seen, loaders=(dataclasses.replace(seen.loaders[0], opened="Records.file"),))
    drawing = dataclasses.replace(seen, loaders=(dataclasses.replace(seen.loaders[0], generator="Photos.rng"),))
    keeping = dataclasses.replace(seen, loaders=(dataclasses.replace(seen.loaders[0], remembers="Photos.cache"),))
    for one in (iterable, opened, drawing, keeping):
        found = candidates(FINDINGS, one, cores=8, level="numeric")
        assert [list(candidate.settings) for candidate in found] == [["autocast"], ["tf32"]]
    changes = dataclasses.replace(seen, loaders=(dataclasses.replace(seen.loaders[0], changes=True),))
    ends = dataclasses.replace(keeping.loaders[0], num_workers=1)  # what its workers keep ends with their epoch
    for one in (changes, dataclasses.replace(seen, loaders=(ends,))):
        names = {name for one in candidates(FINDINGS, one, cores=8, level="numeric") for name in one.settings}
        assert "loader.num_workers" in names
        assert "loader.persistent_workers" not in names
    lives_on = dataclasses.replace(seen, loaders=(dataclasses.replace(ends, persistent_workers=True),))
    names = {name for one in candidates(FINDINGS, lives_on, cores=8, level="numeric") for name in one.settings}
    assert "loader.num_workers" not in names
    # A data set without a length, whose sampler knows which samples there are: they are the same with any workers.
    drawn = dataclasses.replace(seen, loaders=(dataclasses.replace(seen.loaders[0], samples=None),))
    settings = [one.settings for one in candidates(FINDINGS, drawn, cores=8, level="numeric")]
    assert any("loader.num_workers" in one for one in settings)


def test_workers_are_tried_where_another_thread_asks_for_batches() -> None:
    """Waits for it are in no phase, so that no finding pleads for them."""
    step = Step(number=0, started=0.0, seconds=1.0, phases={"forward": 0.5, "other": 0.5}, samples=None)
    seen = dataclasses.replace(observed(), steps=(step,))
    for elsewhere in (True, False):
        loader = dataclasses.replace(seen.loaders[0], role="unknown", elsewhere=elsewhere)
        found = candidates((), dataclasses.replace(seen, loaders=(loader,)), cores=8, level="numeric")
        assert any(one.settings.get("loader.num_workers") == 8 for one in found) == elsewhere


def drawing(seen: Observation, draws: bool | None = True, **changes: Any) -> Observation:
    return dataclasses.replace(seen, loaders=(dataclasses.replace(seen.loaders[0], draws=draws, **changes),))


@pytest.mark.parametrize("draws", [True, None], ids=["draws", "not seen"])
def test_where_samples_draw_another_number_of_workers_is_not_exact(draws: bool | None) -> None:
    def tried(seen: Observation, level: Level) -> list[dict[str, Any]]:
        return [dict(one.settings) for one in candidates(FINDINGS, seen, cores=8, level=level)]

    assert tried(drawing(observed(), draws), "exact") == [], "without workers nothing can live on or keep its memory"
    assert tried(drawing(observed(workers=2), draws), "exact") == [
        {"loader.persistent_workers": True}, {"loader.keep_memory": True},
    ]  # fmt: skip
    changed = drawing(observed(workers=2), draws, changes=True)
    assert tried(changed, "exact") == [{"loader.keep_memory": True}]
    assert tried(drawing(observed(), draws), "numeric") == tried(observed(), "numeric")
    assert redraws(drawing(observed(), draws), "exact")
    assert not redraws(drawing(observed(), draws), "numeric")
    assert not redraws(observed(), "exact")
    assert wants_workers(FINDINGS, drawing(observed(), draws), cores=8)
    assert not wants_workers(FINDINGS[1:3], drawing(observed(), draws), cores=8)


def test_on_a_gpu_workers_follow_the_faster_step_up_to_the_cores() -> None:
    for cores, workers in ((6, 6), (16, 10), (4, 4)):
        found = candidates(FINDINGS, observed("cuda:0"), cores=cores, level="numeric")
        counts = [one.settings["loader.num_workers"] for one in found if "loader.num_workers" in one.settings]
        assert counts == [workers]
    names = {
        name for one in candidates(FINDINGS, observed("cuda:0"), cores=8, level="numeric") for name in one.settings
    }
    assert {"cudnn_benchmark", "loader.ahead", "loader.pin_memory"} <= names


def test_what_pays_once_launches_no_longer_bind_is_tried_with_the_compiler() -> None:
    launches, half = finding({"compile": True}, 1.0, "numeric"), finding({"autocast": "bfloat16"}, 0.5, "numeric")

    def compilers(*findings: Finding, device: str = "cuda:0", level: Level = "numeric") -> list[dict[str, Any]]:
        found = candidates(findings, observed(device), cores=8, level=level)
        return [dict(one.settings) for one in found if one.compiles]

    assert compilers(launches) == [{"compile": True, "autocast": "bfloat16", "channels_last": True}]
    assert compilers(launches, half) == [{"compile": True}], "half precision pays by itself, and is tried before"
    assert compilers(launches, device="cpu") == [{"compile": True}]
    assert compilers(launches, level="exact") == []


def test_on_a_cpu_threads_leave_the_workers_their_cores() -> None:
    seen = observed()
    assert seen.training is not None
    seen = dataclasses.replace(seen, training=dataclasses.replace(seen.training, threads=4))
    for level, wanted in (("numeric", [{"threads": 3}]), ("exact", list[Any]())):
        found = candidates((finding({"loader.num_workers": 1}, 0.5),), seen, cores=4, level=level)  # type: ignore[arg-type]
        assert [one.settings for one in found[1:]] == wanted


def test_workers_that_are_enough_may_still_keep_their_memory() -> None:
    found = candidates((finding({"fused": True}, 0.1, "numeric"),), observed(workers=4), cores=4, level="numeric")
    assert [one.settings for one in found] == [
        {"fused": True},
        {"loader.keep_memory": True},
    ]


def test_no_finding_that_can_be_mended_from_outside_no_candidate() -> None:
    assert candidates((finding({}, 3.0),), observed("cuda:0"), cores=8, level="semantic") == ()


def test_a_gain_of_the_limit_counts_too() -> None:
    first = candidates(
        (finding({"tf32": True}, 0.0, "numeric", limit_gain=2.0), finding({"loader.num_workers": 4}, 0.2)),
        observed(), cores=4, level="numeric",
    )[0]  # fmt: skip
    assert first.settings == {"tf32": True}


def test_a_loop_that_waits_is_tried_with_workers_whatever_was_predicted() -> None:
    def seen(wait: float, workers: int) -> Observation:
        step = Step(number=0, started=0.0, seconds=1.0, phases={"data wait": wait, "forward": 1 - wait}, samples=8)
        return dataclasses.replace(observed(workers=workers), steps=(step,) * 9)

    found = candidates((), seen(0.6, 0), cores=4, level="exact")
    assert found[0].settings == {
        "loader.num_workers": 4, "loader.persistent_workers": True, "loader.keep_memory": True,
    }  # fmt: skip
    more = candidates((finding({"loader.num_workers": 1}, 0.1),), seen(0.6, 0), cores=4, level="exact")
    assert more[0].settings == {"loader.num_workers": 3, "loader.keep_memory": True}, "the cores, while training waits"
    assert candidates((), seen(0.6, 4), cores=4, level="exact") == ()
    assert candidates((), seen(0.01, 0), cores=4, level="exact") == ()


def test_neighbours_go_up_first_where_the_loop_waits() -> None:
    def counts(waits: float, workers: int = 4, cores: int = 8) -> list[int]:
        near = neighbours({"loader.num_workers": workers, "tf32": True}, cores=cores, waits=waits)
        assert all(one["tf32"] for one in near)
        return [one["loader.num_workers"] for one in near]

    assert counts(0.3) == [6, 3]
    assert counts(0.0) == [3, 6]
    assert counts(0.3, workers=64) == [48]
    assert counts(0.3, workers=1) == [2]
    assert neighbours({"tf32": True}, cores=8, waits=0.5) == ()
    assert neighbours({"compile": True}, cores=8, waits=0.5) == ()
    assert neighbours({"compile": True}, cores=8, waits=0.0) == ({"compile": "reduce-overhead"},)


def test_every_setting_has_words_and_a_level() -> None:
    assert all(describe({name: True}) != "as it is" for name in SETTINGS)
    assert describe({"loader.num_workers": 1, "autocast": "bfloat16"}) == "1 worker, bfloat16 autocast"
    assert level_of({"loader.num_workers": 2}) == "exact"
    assert level_of({"loader.num_workers": 2, "tf32": True}) == "numeric"
    assert level_of({}) == "exact"


def test_another_training_is_tried_only_by_name() -> None:
    seen = observed("cuda:0", workers=4)
    loader = dataclasses.replace(
        seen.loaders[0], augmentation="GPUAugmentation(…)", movable=("ColorJitter",), samples=100_000
    )
    seen = dataclasses.replace(seen, loaders=(loader,))
    launches = dataclasses.replace(finding({"compile": True}, 0.4, "numeric"), cause="small-batch")
    assert not {"augment", "loader.batch_size"} & {
        name for one in candidates((launches,), seen, cores=8, level="numeric") for name in one.settings
    }
    found = candidates((launches,), seen, cores=8, level="semantic")
    assert {"augment", "loader.batch_size", "compile"} <= {name for one in found for name in one.settings}
    assert level_of({"augment": True, "tf32": True}) == "semantic"
    assert next(one.settings["loader.batch_size"] for one in found if "loader.batch_size" in one.settings) == 16


def test_a_batch_is_doubled_as_long_as_an_epoch_has_steps() -> None:
    for samples, wanted in ((100_000, [64]), (600, []), (None, [])):
        found = neighbours({"loader.batch_size": 32}, cores=4, waits=0.0, samples=samples)
        assert [one["loader.batch_size"] for one in found] == wanted


def test_the_augmentation_to_write_by_hand_has_the_transforms_own_figures() -> None:
    lines = by_hand({"augment": True, "loader.batch_size": 64}, augmentation="GPUAugmentation(size=(224, 224))")
    assert "augment = GPUAugmentation(size=(224, 224))" in [line.strip() for line in lines]
    assert any("batch_size=64), with a learning rate to match" in line for line in lines)
    assert not any("GPUAugmentation(size" in line for line in by_hand({"tf32": True}, augmentation="GPUAugmentation()"))


def test_edits_that_only_the_user_can_make() -> None:
    place = Place(file="/home/me/train.py", line=13)
    found = (finding({}, 0.9, place=place), finding({"tf32": True}, 0.5), finding({}, 0.001), finding({}, None))
    assert only_by_hand(found) == ["+90 %, train.py:13: x"]
    assert only_by_hand((finding({}, 2.0),)) == ["3.0×: x"]


def test_edits_are_written_as_the_script_needs_them() -> None:
    settings = {"fused": True, "compile": "reduce-overhead", "loader.keep_memory": True}
    written = [line.strip() for line in by_hand(settings, command="python my.py --lr 1", optimizer="SGD")]
    assert written[::2] == [
        "SGD(…, fused=True)",
        'model.compile(mode="reduce-overhead")',
        "MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=268435456 python my.py --lr 1",
    ]
    assert "Adam" not in " ".join(by_hand({"fused": True})), "which optimizer it is, is not known"
    for name, kind in SETTINGS.items():
        first, second = by_hand({name: 2})[:2]
        assert "{" not in first
        assert second.strip() == kind.says


def test_a_loop_that_waits_long_is_tried_with_as_many_workers_as_would_do() -> None:
    def tried(waits: float | None, workers: int = 2, cores: int = 4) -> list[int]:
        found = neighbours({"loader.num_workers": workers}, cores=cores, waits=waits)
        return [one["loader.num_workers"] for one in found]

    assert tried(0.9) == [16, 3, 1], "20 would do"
    assert tried(0.999) == [32, 3, 1], "not more than eight for each core"
    assert tried(0.4) == [3, 1]
    assert tried(0.02) == tried(None) == [1, 3]
    assert tried(1.0) == [3, 1]


def test_a_loader_that_suffices_now_has_more_workers_where_the_step_becomes_faster() -> None:
    seen = observed("cuda:0", workers=4)
    steps = tuple(
        Step(number=at, started=0.1 * at, seconds=0.1, phases={"forward": 0.1}, samples=8) for at in range(20)
    )  # 80 samples/s

    def workers(alone: float, cores: int = 16) -> list[int]:
        loader = dataclasses.replace(seen.loaders[0], samples_per_second=alone)
        watched = dataclasses.replace(seen, loaders=(loader,), steps=steps)
        found = candidates((finding({"autocast": "bfloat16"}, 1.0, "numeric"),), watched, cores=cores, level="numeric")
        return [one.settings["loader.num_workers"] for one in found if "loader.num_workers" in one.settings]

    assert workers(120.0) == [12], "160 samples/s are predicted: twice as many workers as those take, and riders"
    assert workers(120.0, cores=8) == [8]
    assert workers(200.0) == [], "fast enough for that, too"


def test_graphs_bring_what_they_make_worth_while() -> None:
    (graphs, *riders) = candidates(
        (finding({"graphs": True}, 0.8, "numeric"),), observed("cuda:0", workers=4), cores=8, level="numeric"
    )
    assert graphs.settings == {"graphs": True, "autocast": "bfloat16", "channels_last": True}
    assert not graphs.compiles
    assert {"fused", "compile"} <= {name for one in riders for name in one.settings}


def test_neighbours_of_the_scripts_own_workers_are_more_of_them() -> None:
    found = neighbours({"autocast": "bfloat16"}, cores=16, waits=0.5, workers=4)
    assert [one["loader.num_workers"] for one in found][:1] == [8]
    assert all(one["autocast"] == "bfloat16" for one in found)
    assert neighbours({"autocast": "bfloat16"}, cores=16, waits=0.0, workers=4) == ()
    assert neighbours({"autocast": "bfloat16"}, cores=16, waits=0.5, workers=0) == ()


def test_images_leave_as_bytes_where_the_loop_waits_for_its_workers() -> None:
    def tried(seen: Observation, level: Level = "exact", **changes: Any) -> float | None:
        seen = dataclasses.replace(seen, loaders=(dataclasses.replace(seen.loaders[0], **changes),))
        found = candidates((), seen, cores=4, level=level)
        return next((one.gain for one in found if "loader.bytes" in one.settings), None)

    def waiting(share: float, workers: int = 4) -> Observation:
        steps = tuple(
            Step(number=number, started=0.1 * number, seconds=0.1, phases={"data wait": 0.1 * share}, samples=8)
            for number in range(20)
        )
        return dataclasses.replace(observed("cuda:0", workers=workers), steps=steps)

    tail = ("ToTensor", "Normalize")
    stages = tuple(
        Stage(name=name, seconds=seconds)
        for name, seconds in (("decode", 5e-3), ("ToTensor", 1.5e-3), ("Normalize", 0.5e-3), ("collate", 1e-3))
    )
    spared = 2.75 / 8.0
    assert tried(waiting(0.8), tail=tail, stages=stages) == pytest.approx(1 / (1 - spared) - 1)
    assert tried(waiting(0.2), tail=tail, stages=stages) == pytest.approx(0.25), "what the loop waits, and no more"
    assert tried(waiting(0.8), tail=tail) == 0.02, "its stages were not seen"
    assert tried(waiting(0.8)) is None, "no such transforms"
    assert tried(waiting(0.01), tail=tail, stages=stages) is None, "it does not wait"
    assert tried(waiting(0.01), tail=tail, samples_per_second=70.0) == 0.02, "it is nearly as fast as its loader"
    assert tried(waiting(0.8), "semantic", tail=tail, augmentation="GPUAugmentation(…)") is None
    cpu = dataclasses.replace(waiting(0.8), training=observed().training)
    assert tried(cpu, tail=tail, stages=stages) is None
    # The script has no workers: with those of another candidate.
    assert tried(waiting(0.8, workers=0), tail=tail, stages=stages) is not None


def test_another_decoder_is_tried_with_more_workers() -> None:
    def tried(settings: dict[str, Any], level: Level, **changes: Any) -> bool:
        seen = observed("cuda:0", workers=4)
        seen = dataclasses.replace(seen, loaders=(dataclasses.replace(seen.loaders[0], **changes),))
        found = candidates((finding(settings, 0.5),), seen, cores=8, level=level)
        return any("decode" in one.settings for one in found)

    photographs = {"tail": ("ToTensor",), "stages": (Stage(name="decode", seconds=5e-3),)}
    assert tried({"loader.num_workers": 8}, "numeric", **photographs)
    assert not tried({"loader.num_workers": 8}, "exact", **photographs)
    assert not tried({"loader.pin_memory": True}, "numeric", **photographs)
    assert not tried({"loader.num_workers": 8}, "numeric")
