"""The feed's benchmark: its logic from canned figures, and for real what a machine without a GPU can run."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import islice, pairwise, repeat
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest
import torch
from rich.console import Console

from fulltilt.bench.feed import grid, ladder, material, run, training, windows
from fulltilt.bench.feed.chart import chart
from fulltilt.bench.feed.figures import Case, FeedBench, Rate, target
from fulltilt.bench.feed.limit import Limit, Plan, against, attempt
from fulltilt.bench.feed.loader import Photos, _Endless, crop_box, loading
from fulltilt.bench.feed.measure import confined, endless, measure, tree_cpu_seconds
from fulltilt.bench.feed.models import Step, UNet, _resnet50, small_classifier
from fulltilt.bench.feed.scale import scale_for
from fulltilt.bench.feed.table import lines, show
from fulltilt.bench.results import parts_of
from fulltilt.errors import FulltiltError, InputError
from fulltilt.feed import ImageFiles, feed
from fulltilt.feed.datasets.probing import look

TINY = scale_for(gpu=False, quick=True, count=16)
FED = Rate(samples_per_second=6500.0, steps=80, seconds=3.15, wait_share=0.031, cpu_cores=14.2, workers=15)
NOTHING = Case(part="train", key="cores_8", title="feed, fast, 8 cores only", problem="OutOfMemoryError: 3 GiB")


def share_case(per_second, at_least=0.97, limit=6700.0):
    return Case(
        part="train", key="fast", title="feed, fast decoding", rate=replace(FED, samples_per_second=per_second),
        limit_per_second=limit, wanted=(target("share", at_least),),
    )  # fmt: skip


def canned():
    alone = Case(
        part="ladder", key="alone_fast_16", title="feed alone, fast, 16 decoders",
        rate=replace(FED, samples_per_second=9450.0, workers=16), wanted=(ladder.ALONE,),
    )  # fmt: skip
    limit = Case(
        part="train", key="train_limit", title="limit: ResNet-50, bf16 compiled, batch 256",
        rate=Rate(samples_per_second=6700.0, steps=100, seconds=3.8, note="measured 4 times, 0.8 % apart"),
    )  # fmt: skip
    loader = Case(
        part="train", key="loader_tuned", title="DataLoader, hand-tuned, 16 workers", limit_per_second=6700.0,
        rate=Rate(samples_per_second=3118.0, steps=40, seconds=3.2, workers=16),
    )  # fmt: skip
    confined_case = replace(NOTHING, wanted=(target("share", 0.85),))
    small = Case(
        part="windows", key="windows_feed_graphed", title="feed, step as a CUDA graph", rate=FED, times_loader=11.8,
        wanted=(windows.AGAINST_LOADER,),
    )  # fmt: skip
    return FeedBench(
        machine={"gpus": ["NVIDIA H200"], "cores": 16, "torchvision": None},
        date="2026-11-15T12:00:00+00:00",
        material="6144 JPEG of about 500×375, 80 KB, in /dev/shm",
        cases=(alone, limit, share_case(6401.0), confined_case, loader, small),
        seconds=201.4,
    )


def text_of(found):
    out = io.StringIO()
    show(found, Console(file=out, width=110))
    return out.getvalue()


# --- targets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("per_second", "met"), [(6499.0, True), (6498.0, False)])
def test_a_share_is_of_the_limit_around_its_own_case(per_second, met):
    assert [target.met for target in share_case(per_second).targets] == [met]


def test_targets_are_those_that_were_promised():
    assert training.TARGETS == {
        "fast": 0.97, "exact": 0.88, "auto": 0.97, "cache": 0.99, "cores_8": 0.85, "cores_4": 0.77,
    }  # fmt: skip
    assert str(ladder.ALONE) == "≥ 9,000 samples/s"
    assert str(windows.AGAINST_LOADER) == "≥ 10 × DataLoader"
    assert str(grid.OF_BEST) == "≥ 95 % of the best of all settings"
    assert str(grid.OF_OWN) == "≥ 98 % of one's own setting"


def test_what_was_missed_or_not_measured_is_said():
    said = [line for line in lines(canned()) if line.startswith(("missed", "not measured"))]
    assert said == [
        "missed: feed, fast decoding: ≥ 97 % of the limit, found 95.54 % of the limit",
        "not measured: feed, fast, 8 cores only: ≥ 85 % of the limit",
    ]
    assert [target.met for _, target in canned().targets] == [True, False, None, True]


def test_the_ladder_has_no_rung_twice_and_none_above_the_cores():
    assert ladder.rungs(16, quick=False) == [1, 2, 4, 8, 15, 16]
    assert ladder.rungs(2, quick=False) == [1, 2]
    assert ladder.rungs(1, quick=False) == [1]
    assert ladder.rungs(16, quick=True) == [1, 16]


def test_the_grid_has_every_number_on_a_small_machine_and_goes_beyond_the_cores_on_a_large_one():
    computing, waiting, memory = grid.workloads(TINY)
    assert [str(s) for s in grid.settings(computing, 2, quick=False)] == [f"{n} processes" for n in range(1, 9)]
    large = [s.workers for s in grid.settings(waiting, 16, quick=False) if s.kind == "processes"]
    assert (min(large), max(large)) == (1, 64)
    assert all(after <= 2 * before for before, after in pairwise(large))
    assert str(grid.settings(memory, 2, quick=True)[0]) == "no workers"
    assert len(grid.settings(memory, 2, quick=True)) == 5


def test_the_grid_s_data_sets_are_what_they_are_said_to_be():
    computing, _, memory = (load.dataset for load in grid.workloads(TINY))
    assert look(computing, list(range(50)), threads=2).draws == ("numpy",)
    assert look(memory, list(range(200)), threads=2).seconds_per_sample < 1e-3


def test_the_grid_s_throttled_source_waits_without_the_lock(hours, monkeypatch):
    monkeypatch.setattr("fulltilt.bench.feed.grid.time", hours)
    _, waiting, _ = (load.dataset for load in grid.workloads(TINY))
    seen = look(waiting, list(range(200)), threads=4)
    assert seen.speedup == pytest.approx(4)
    assert seen.repeatable


def test_windows_are_compared_with_the_fastest_plain_loader():
    rates = {"windows_feed_graphed": 120_000.0, "windows_loader_0": 9_000.0, "windows_loader_8": 12_000.0}
    cases = [
        Case(part="windows", key=key, title=key, rate=replace(FED, samples_per_second=rate))
        for key, rate in rates.items()
    ]
    found = {case.key: case.times_loader for case in windows.with_ratios(cases)}
    assert found == {"windows_feed_graphed": 10.0, "windows_loader_0": None, "windows_loader_8": None}
    alone = windows.with_ratios(cases[:1])
    assert alone[0].times_loader is None, "no loader was measured: there is nothing to compare with"


def test_a_run_without_a_gpu_is_small_and_a_quick_one_smaller_than_a_whole_one():
    whole, quick = (scale_for(gpu=True, quick=quick, count=6144) for quick in (False, True))
    assert (whole.photos, whole.batch, whole.crop, whole.unet_side, whole.windows) == (6144, 256, 224, 512, 200_000)
    assert whole.steps + whole.warm_steps <= 100
    assert quick.steps < whole.steps
    assert not quick.peers
    assert scale_for(gpu=True, quick=False, count=100).batch == 100
    assert TINY.photos == 16


# --- table and JSON -------------------------------------------------------------------------------------------------


def test_the_table_fits_and_says_what_fell_short():
    said = text_of(canned())
    table = said.split("train: limit:")[0]
    assert max(map(len, table.splitlines())) <= 110
    rows = {line.split("  ")[1].strip(): line.split() for line in table.splitlines() if line.startswith("  ")}
    assert rows["feed, fast decoding"][-6:] == ["95.5", "%", "3.1", "%", "14.2", "15"]
    assert rows["feed, step as a CUDA graph"][-5:] == ["11.8×", "3.1", "%", "14.2", "15"]
    assert "feed, fast, 8 cores only" not in table, "no rate, no row"
    assert "train: feed, fast, 8 cores only: OutOfMemoryError: 3 GiB" in said
    assert "measured 4 times, 0.8 % apart" in said
    assert "2 of 4 targets met" in said


def test_the_json_has_targets_and_leaves_out_what_was_not_measured():
    flat = json.loads(json.dumps(canned().to_json()))
    assert flat["machine"] == {"gpus": ["NVIDIA H200"], "cores": 16}
    by_key = {case["key"]: case for case in flat["cases"]}
    fast = by_key["fast"]
    words = "≥ 97 % of the limit"
    assert fast["targets"] == [{"figure": "share", "words": words, "at_least": 0.97, "found": 0.9554, "met": False}]
    assert (fast["samples_per_second"], fast["wait_share"], fast["cpu_cores"], fast["workers"]) == (
        6401.0, 0.031, 14.2, 15,
    )  # fmt: skip
    assert "wait_share" not in by_key["loader_tuned"]
    assert "samples_per_second" not in by_key["cores_8"]
    assert by_key["cores_8"]["targets"] == [{"figure": "share", "words": "≥ 85 % of the limit", "at_least": 0.85}]
    assert by_key["cores_8"]["problem"] == "OutOfMemoryError: 3 GiB"


def test_without_targets_none_are_counted():
    assert not any("targets met" in line for line in lines(replace(canned(), cases=(canned().cases[1],))))


# --- measuring ------------------------------------------------------------------------------------------------------


def test_the_rate_is_that_of_the_loop():
    def step(_):
        time.sleep(0.01)

    rate = measure(repeat((torch.zeros(5),)), step, device="cpu", warm=1, steps=20, seconds=60)
    assert rate.steps == 20
    assert 100 < rate.samples_per_second <= 500
    assert rate.wait_share is None
    short = measure(repeat((torch.zeros(5),)), step, device="cpu", warm=0, steps=10_000, seconds=0.05)
    assert 3 <= short.steps <= 6


def test_waiting_is_the_feed_s_own_and_only_of_what_was_measured():
    with feed((torch.arange(64),), batch_size=8, device="cpu") as it:
        it._clock.waited(1000.0)  # while warming up
        batches = endless(it)
        assert measure(batches, None, device="cpu", warm=2, steps=20, seconds=60, feed=it).wait_share == pytest.approx(
            0
        )

        def step(_):
            time.sleep(0.005)
            it._clock.waited(0.005)

        waiting = measure(batches, step, device="cpu", warm=0, steps=10, seconds=60, feed=it)
        assert 0.3 < waiting.wait_share <= 1.0


def test_cpu_time_counts_children_while_they_run_and_after():
    before = tree_cpu_seconds()
    code = "import time\nwhile time.process_time() < 0.4: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert tree_cpu_seconds() - before >= 0.35


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core")
def test_cores_are_taken_from_all_threads_and_given_back():
    before = os.sched_getaffinity(0)

    def of_all():
        return [os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task")]

    torch.ones(200, 200) @ torch.ones(200, 200)  # starts torch's own threads

    def interrupted():
        with confined(1):
            assert all(len(cores) == 1 for cores in of_all())
            child = subprocess.run(["nproc"], capture_output=True, text=True, check=True)
            assert child.stdout.strip() == "1"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert all(cores == before for cores in of_all())


def test_a_case_that_fails_is_its_own_line_and_the_limit_is_measured_around_the_others():
    def fail():
        raise ValueError("no such codec\nand more")

    said = []
    step = Step(small_classifier(), "cpu", half=False, compiled=False)
    limit = Limit(step, (torch.rand(2, 3, 8, 8), torch.zeros(2, dtype=torch.int64)), TINY)
    plans = [
        Plan(key="bad", title="bad", run=fail),
        Plan(key="absent", title="absent", run=fail, unavailable="2 cores are usable"),
        Plan(key="good", title="good", run=lambda: FED),
    ]
    first, bad, absent, good = against(limit, "train", "limit", plans, said.append)
    assert bad.problem == "ValueError: no such codec"
    assert absent.problem == "2 cores are usable"
    assert said == ["train: bad", "train: good"]
    assert len(limit.rates) == 2
    assert good.limit_per_second == pytest.approx(sum(limit.rates) / 2)
    assert first.key == "train_limit"
    assert "measured 2 times" in first.rate.note


def test_ctrl_c_is_not_a_case_s_failure():
    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attempt("train", Plan(key="k", title="t", run=stop), lambda _: None)


# --- models, material, peer -----------------------------------------------------------------------------------------


def test_our_resnet_is_the_one_that_everybody_means():
    with torch.device("meta"):
        model = _resnet50()
    assert sum(p.numel() for p in model.parameters()) == 25_557_032, "torchvision's count"


def test_a_step_learns_and_says_when_the_loss_is_no_number():
    torch.manual_seed(0)
    model = UNet(2)
    step = Step(model, "cpu", half=False, compiled=False)
    before = [p.clone() for p in model.parameters()]
    step(torch.rand(2, 3, 32, 32), torch.zeros(2, 1, 32, 32, dtype=torch.uint8))
    step.check()
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    step(torch.full((2, 3, 32, 32), float("nan")), torch.zeros(2, 32, 32, dtype=torch.uint8))
    with pytest.raises(FulltiltError, match="the loss is nan"):
        step.check()


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    return material.make_in_parallel(
        folder, 65, size=(64, 48), target_bytes=2_000, processes=2, masks=True, vary=0.0
    )  # fmt: skip


def test_photos_and_masks_are_made_by_several_processes_and_differ(photos):
    images, masks = photos
    assert len(images) == len(masks) == 65
    assert [Path(path).stem for path in images] == [Path(path).stem for path in masks]
    assert len({Path(path).parent for path in images}) == 2
    assert len({Path(path).read_bytes() for path in images}) == 65


def test_a_process_that_fails_is_told_with_its_reason_and_none_is_left(tmp_path):
    (tmp_path / "part-001").write_text("in the way")
    with pytest.raises(FulltiltError, match="FileExistsError"):
        material.make_in_parallel(tmp_path, 64, size=(64, 48), target_bytes=2_000, processes=2)
    assert not [child for child in psutil.Process().children() if "recipes.making" in " ".join(child.cmdline())]


def test_the_workplace_is_removed_whatever_happens(tmp_path):
    def interrupted():
        with material.workplace(tmp_path, needed_bytes=1) as place:
            (place / "photo").write_text("x")
            assert place.parent == tmp_path
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not list(tmp_path.iterdir())
    with (
        pytest.raises(InputError, match=r"lower --count or name another --folder"),
        material.workplace(tmp_path, needed_bytes=1 << 60),
    ):
        pass
    with pytest.raises(InputError, match="there is no folder"), material.workplace(tmp_path / "no", needed_bytes=1):
        pass


def test_memory_is_chosen_only_where_there_is_room(tmp_path):
    assert material.choose_folder(1, in_memory=tmp_path) == tmp_path
    assert material.choose_folder(1 << 60, in_memory=tmp_path) != tmp_path
    assert material.choose_folder(1, in_memory=tmp_path / "no") != tmp_path / "no"


def test_crops_stay_inside():
    draw = random.Random(0)
    boxes = [crop_box(100, 20, draw) for _ in range(200)]
    assert all(0 <= x < right <= 100 and 0 <= y < lower <= 20 for x, y, right, lower in boxes)
    assert len(set(boxes)) > 50


def test_a_dataloader_with_workers_gives_epoch_after_epoch_and_leaves_no_process(photos):
    images, _ = photos
    dataset = Photos(images[:6], range(6), crop=16)
    with loading(dataset, batch=3, workers=1, device="cpu", half=True) as batches:
        taken = [next(batches) for _ in range(5)]
        workers = [c for c in psutil.Process().children(recursive=True) if _is_worker(c)]
        assert len(workers) == 1
    assert taken[0][0].shape == (3, 3, 16, 16)
    assert taken[0][0].dtype == torch.bfloat16
    assert taken[0][0].is_contiguous(memory_format=torch.channels_last)
    assert sorted(torch.cat([labels for _, labels in taken[:2]]).tolist()) == list(range(6))
    assert sorted(torch.cat([labels for _, labels in taken[2:4]]).tolist()) == list(range(6))
    psutil.wait_procs(workers, timeout=10)
    assert not any(worker.is_running() for worker in workers)


def test_workers_never_reach_the_end_of_an_epoch():
    """They would idle there until the loop has taken its last batch."""
    drawn = list(islice(_Endless(6), 18))
    assert [sorted(drawn[start : start + 6]) for start in (0, 6, 12)] == [list(range(6))] * 3
    assert drawn[:6] != drawn[6:12] or drawn[6:12] != drawn[12:]


def _is_worker(process):
    """A child of the fork server, which stays, as the resource tracker does."""
    parent = process.parent()
    return parent is not None and parent.pid != os.getpid()


def test_automatic_workers_say_whether_they_settled(photos, tmp_path):
    images, _ = photos
    files = ImageFiles(images, labels=[0] * len(images))
    case = training.Training(files, tmp_path, replace(TINY, settle_seconds=0.05), cores=2)
    rate = case._fed(num_workers="auto")
    assert rate.note.startswith("not settled: ")
    assert rate.workers >= 1


def test_the_chart_has_a_bar_for_every_case_with_a_limit():
    limit, fast = (
        {"part": "train", "key": "train_limit", "title": "limit: a net", "samples_per_second": 6800.0},
        {"part": "train", "key": "other", "title": "feed <fast>", "samples_per_second": 6700.0},
    )
    fewer = fast | {"part": "cores", "key": "cores_8_cpu", "title": "by the cores alone", "share": 0.6}
    drawn = ElementTree.fromstring(chart({"cases": [limit, fast | {"share": 0.985}, fast | {"share": 0.1}, fewer]}))
    bars = [float(one.attrib["width"]) for one in drawn.iter() if one.tag.endswith("rect")]
    assert bars[0] == pytest.approx(9.85 * bars[1], rel=0.01)
    words = [one.text for one in drawn.iter() if one.tag.endswith("text")]
    assert "feed <fast>" in words
    assert "98.5 %" in words
    assert "a net: limit 6,800/s" in words, "each part has its own"
    assert "8 cores, CPU decodes alone" in words
    assert "limit: batch already on the device" in words
    assert chart({"cases": [limit]}) is None


def test_an_untuned_loader_is_drawn_beside_a_tuned_one_alone():
    plain = {"part": "train", "key": "loader_plain", "title": "DataLoader, untuned", "samples_per_second": 200.0,
             "share": 0.03}  # fmt: skip
    tuned = plain | {"key": "loader_tuned", "title": "DataLoader, hand-tuned", "share": 0.9}
    withheld = {name: value for name, value in tuned.items() if name not in ("share", "samples_per_second")}
    fast = plain | {"key": "fast", "title": "feed", "share": 0.99}
    assert "untuned" not in chart({"cases": [fast, withheld, plain]})
    assert "untuned" in chart({"cases": [fast, tuned, plain]})
    assert chart({"cases": [plain]}) is None


def test_a_gpu_s_plan_has_every_case_and_leaves_out_cores_that_are_not_there(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "Step", lambda *_, **__: None)  # the model itself would have to be on a GPU
    files = ImageFiles(photos[0])

    def plans(cores, quick):
        scale = scale_for(gpu=True, quick=quick, count=6144)
        made = training.Training(files, tmp_path, scale, cores=cores)
        fewer = [plan for cores in (8, 4) for plan in made._with_fewer(cores, quick=quick)]
        return {p.key: p for p in [*made._plans(), *fewer]}

    whole = plans(16, quick=False)
    few = [f"cores_{cores}{how}" for cores in (8, 4) for how in ("", "_cpu", "_gpu")]
    assert list(whole) == ["fast", "exact", "cache", "loader_tuned", "loader_plain", *few]
    for key, share in training.TARGETS.items():
        assert key == "auto" or whole[key].wanted == (target("share", share),)
    assert not whole["loader_tuned"].wanted
    assert whole["loader_tuned"].title == "DataLoader, hand-tuned, 16 workers"
    assert not any(plan.unavailable for plan in whole.values())
    assert plans(6, quick=False)["cores_8"].unavailable == "6 cores are usable: none to take away"
    assert "loader_tuned" not in plans(16, quick=True)


def test_with_fewer_cores_it_has_to_beat_the_cores_alone_and_the_gpu_alone(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "Step", lambda *_, **__: None)
    made = training.Training(ImageFiles(photos[0]), tmp_path, scale_for(gpu=True, quick=False, count=64), cores=16)
    rates = {
        "auto": 99.0,
        "cores_8": 99.0,
        "cores_8_cpu": 60.0,
        "cores_8_gpu": 90.0,
        "cores_4": 80.0,
        "cores_4_cpu": 40.0,
    }

    def given(part, plans, say):
        return [
            Case(part=part, key=plan.key, title=plan.title, wanted=plan.wanted,
                 rate=replace(FED, samples_per_second=rates[plan.key]) if plan.key in rates else None)
            for plan in plans
        ]  # fmt: skip

    monkeypatch.setattr(made, "_against", given)
    cases = {case.key: case for case in made.measure_cores(quick=False, say=lambda _: None)}
    assert cases["auto"].wanted == (target("share", 0.97),)
    assert cases["cores_8"].of_alone == pytest.approx(1.1)
    assert cases["cores_8"].wanted[-1] == target("of_alone", 1.0)
    assert cases["cores_4"].of_alone is None, "one of the two was not measured"


# --- all of it ------------------------------------------------------------------------------------------------------

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: this would take minutes")


@no_gpu
def test_without_a_gpu_everything_runs_small_and_one_sentence_says_so(tmp_path):
    said = []
    found = run.measure(count=16, folder=tmp_path, quick=True, only=run.PARTS, say=said.append)
    assert not [case.problem for case in found.cases if case.problem]
    assert {case.part for case in found.cases} == set(run.PARTS)
    by_key = {case.key: case for case in found.cases}
    assert {"train_limit", "fast", "exact", "cache", "loader_plain", "unet_limit", "unet_fast"} <= set(by_key)
    assert all(case.rate.samples_per_second > 0 for case in found.cases)
    assert by_key["fast"].share == pytest.approx(
        by_key["fast"].rate.samples_per_second / by_key["fast"].limit_per_second
    )
    assert by_key["fast"].rate.bottleneck in ("step", "decoding", "reading", "feed")
    assert by_key["cache"].rate.note.startswith("16 photos")
    assert by_key["windows_feed_plain"].times_loader is not None
    assert not [case for case in found.cases if case.targets], "targets are a GPU's"
    assert lines(found)[-1] == run.NO_GPU
    assert not list(tmp_path.iterdir())


@no_gpu
def test_a_part_that_fails_leaves_the_others(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("photos could not be made")

    monkeypatch.setattr(run, "make_in_parallel", fail)
    found = run.measure(count=16, folder=tmp_path, quick=True, only=("ladder", "windows"), say=lambda _: None)
    assert found.cases[0].problem == "RuntimeError: photos could not be made"
    assert {case.part for case in found.cases if case.rate} == {"windows"}


@pytest.mark.parametrize("text", ["", "ladder,foo"])
def test_parts_that_do_not_exist_are_named(text):
    with pytest.raises(InputError, match="allowed: ladder, train, cores, unet, windows, grid"):
        parts_of(text, run.PARTS)
    assert parts_of("windows, ladder", run.PARTS) == ("ladder", "windows")


@no_gpu
def test_ctrl_c_leaves_no_file_and_no_process(tmp_path):
    # All parts: it must still be at work when this test, which may have to wait for a core, looks and ends it.
    command = [sys.executable, "-m", "fulltilt", "bench", "feed", "--count", "16"]
    with subprocess.Popen(
        [*command, "--folder", str(tmp_path)], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            while "feed alone" not in (line := process.stderr.readline()):
                assert line, "it ended before it measured anything"
            time.sleep(0.5)
            assert list(tmp_path.iterdir())
            decoders = psutil.Process(process.pid).children(recursive=True)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            process.wait(timeout=20)
        finally:
            process.kill()
    assert process.returncode != 0
    assert not list(tmp_path.iterdir())
    assert not psutil.wait_procs(decoders, timeout=5)[1]
