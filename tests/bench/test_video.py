"""The benchmark of videos: its logic from canned figures, and for real what runs without a GPU."""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from fulltilt.bench.results import parts_of
from fulltilt.bench.video import clips, contest, run, training
from fulltilt.bench.video.clips import LENGTH, PerItem
from fulltilt.bench.video.figures import PARTS, Case, VideoBench
from fulltilt.bench.video.material import GOP, Material, make_videos
from fulltilt.bench.video.opencv import Captures
from fulltilt.bench.video.rates import Apart, Counted, Crew, apart, beside
from fulltilt.bench.video.run import setting
from fulltilt.bench.video.table import lines
from fulltilt.cli.bench import bench
from fulltilt.decode.video import open_video
from fulltilt.errors import InputError, UnavailableError, WorkerError

SMALL = Material(width=96, height=64, frames=64, files=2)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return make_videos(tmp_path_factory.mktemp("videos"), SMALL)


@pytest.fixture(autouse=True)
def without_opencv(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)


def canned(cpu=3100.0, nvdec=2600.0, times=3.5):
    return VideoBench(
        machine={"gpus": ["NVIDIA H200"], "driver": None},
        date="2026-11-15T12:00:00+00:00",
        video="H.264",
        cases=(
            Case(part="cpu", key="cpu", title="CPU", per_second=cpu, at_least=3000.0),
            Case(part="nvdec", key="nvdec", title="NVDEC", per_second=nvdec, at_least=2500.0, problem=None),
            Case(part="clips", key="feed", title="feed", per_second=9.0, unit="clips", times=times, at_least=3.0),
        ),
        seconds=50.0,
    )


def met(case):
    """Of its target, where it has one."""
    return case.targets[0].met if case.targets else None


@pytest.mark.parametrize(
    ("figures", "met"),
    [
        ({}, [True, True, True]),
        ({"cpu": 2999.0}, [False, True, True]),
        ({"nvdec": None}, [True, None, True]),
        ({"times": 2.9}, [True, True, False]),
    ],
)
def test_targets(figures, met):
    found = canned(**figures)
    assert [target.met for _, target in found.targets] == met
    answers = {True: "met", False: "missed", None: "not measured"}
    for text, answer in zip(lines(found)[:-1], met, strict=True):
        assert text.startswith(answers[answer] + ": ")


def test_as_data():
    cases = canned().to_json()["cases"]
    assert cases[0]["frames_per_second"] == 3100
    assert cases[2]["clips_per_second"] == 9
    assert "problem" not in cases[1]


def test_parts():
    assert parts_of("clips, cpu", PARTS) == ("cpu", "clips")
    with pytest.raises(InputError, match="found gpu; allowed: cpu, light, nvdec, both, clips, train, long"):
        parts_of("gpu", PARTS)


def test_targets_only_where_they_were_set_for():
    there, here = setting(gpu=True, cores=16, quick=False, engines=7), setting(gpu=False, cores=2, quick=True)
    assert there.has_targets
    assert (there.material.width, there.material.height, there.decoders, there.engines) == (1280, 720, 16, 7)
    assert not here.has_targets


def test_the_material(paths):
    for path in paths:
        with open_video(path) as video:
            assert (len(video), video.width, video.height) == (64, 96, 64)
            assert video.key_frames == (0, GOP)
            frames = video.frames(range(64)).astype(int)
            assert (np.abs(np.diff(frames, axis=0)).mean((1, 2, 3)) > 1).all(), "no frame is as the one before"


def test_decoders_are_counted(paths):
    crew = Crew([*paths, paths[0]], device=None)
    found, fewer = crew.count(0.2), crew.count(0.2, decoders=1)
    crew.close()
    assert found.frames >= 16
    assert found.frames % 16 == fewer.frames % 16 == 0
    assert fewer.seconds == 0.2
    assert found.cores > 0


def test_what_comes_before_the_time_is_not_counted(paths):
    """It is at work until something is given, and then counted for a moment only."""
    crew = Crew(paths[:1], device=None)
    given = []
    ask = crew._asker

    def asker(video):
        frames = ask(video)
        return lambda wanted: given.append(frames(wanted))

    def begin():
        while len(given) < 20:
            time.sleep(0.001)
        return time.perf_counter()

    crew._asker = asker
    found = crew.count(1e-4, begin=begin)
    crew.close()
    assert found.frames <= 16


def test_decoders_end_where_nobody_says_when_to_begin(paths):
    crew = Crew(paths, device=None)

    def begin():
        raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        crew.count(0.1, begin=begin)
    crew.close()


def test_where_there_are_no_engines(paths):
    with pytest.raises(UnavailableError, match="cpu has no video engines"):
        Crew(paths, device="cpu")


def test_two_crews_at_once(paths):
    crew = Crew(paths, device=None)
    # The others give way: on a busy machine little is left to them.
    there, here = beside(paths, crew, 1.0, threads=1, processes=1)
    crew.close()
    assert there.frames > 0
    assert here.frames > 0


def test_decoders_in_processes_are_counted_together(paths):
    found = apart([*paths, *paths][:4], 0.5, processes=2)
    assert found.frames >= 2 * 16
    assert found.frames % 16 == 0
    assert found.seconds == 0.5
    assert found.cores > 0


def test_a_process_of_decoders_that_dies_is_named(paths):
    crew = Apart(paths, 30.0, processes=2)

    def counted():
        with crew:
            crew.begin()
            crew._processes[0].kill()
            crew.counted()

    with pytest.raises(WorkerError, match="has died"):
        counted()
    assert not any(process.is_alive() for process in crew._processes)


@pytest.mark.parametrize(("jumps", "scaled"), [(False, False), (True, False), (True, True)])
def test_the_peer_gives_the_frames_that_it_should(paths, jumps, scaled):
    """A peer that did less would be no peer."""
    with open_video(paths[0]) as video:
        for number in range(0, 10, 2):
            peer = PerItem(paths, count=10, frames=64, size=(32, 48), jumps=jumps, scaled=scaled)
            clip = peer[number].numpy()
            start = int(np.random.default_rng(number).integers(0, 64 - LENGTH + 1))
            ours = video.frames(range(start, start + LENGTH), size=(32, 48))
            assert np.abs(clip.astype(int) - ours).mean() < 4
            other = video.frames(range(start + 2, start + 2 + LENGTH)[: 64 - start - 2], size=(32, 48))
            assert np.abs(clip[: len(other)].astype(int) - other).mean() > 4, "and not those beside them"


@pytest.fixture
def canned_rates(monkeypatch):
    """The feed's options, in the order in which it was asked; nothing is decoded."""
    asked = []

    def feed_rate(paths, *, quality="exact", gpu_share=0.0, together=1, cache=None, **_):
        asked.append({"quality": quality, "gpu_share": gpu_share, "together": together})
        if together > 1:
            raise RuntimeError("out of luck")
        return 90.0, {"gpu_share": 0.375 if gpu_share == "auto" else gpu_share}

    def loader_rate(*_, scaled, alone, **__):
        return (45.0 if alone else 30.0 if scaled else 10.0), 2.0

    monkeypatch.setattr(contest, "feed_rate", feed_rate)
    monkeypatch.setattr(contest, "loader_rate", loader_rate)
    monkeypatch.setattr(contest, "build_videos", lambda *_, **__: None)
    return asked


def test_clips_in_every_way(paths, canned_rates):
    """A share is looked for once; a way that fails is its own line."""
    chosen = run.Setting(
        material=SMALL, device="cuda:0", decoders=2, engines=1, size=32, batch=4, seconds=0.1, has_targets=True
    )
    cases = {}
    for part in (run._clips, run._long):
        for case in part(chosen, paths, lambda _: None):
            cases[case.key] = case
            chosen = run._wiser(chosen, case)
    assert met(cases["feed_shared"]), "three times the best of the DataLoaders that are written as usual"
    assert cases["feed_shared"].notes["times_loader_jumps"] == 9
    assert cases["feed_shared"].notes["times_loader_alone"] == 2
    shares = [one["gpu_share"] for one in canned_rates if one["gpu_share"]]
    assert shares == ["auto", 0.375]
    assert cases["feed_together_long"].problem == "RuntimeError: out of luck"
    assert list(cases)[-1] == "feed_together_long"
    assert {case.part for case in cases.values()} == {"clips", "long"}


@pytest.mark.parametrize(
    ("workers", "seconds", "batches"),
    [(4, 0.0, 8), (4, 0.55, 12), (1, 0.55, 9), (0, 0.55, 9)],
    ids=["a round before and one that counts", "whole rounds", "single ones", "no workers"],
)
def test_rates_are_of_whole_rounds(monkeypatch, workers, seconds, batches):
    """A batch of four comes every tenth of a second."""
    now, taken = [0.0], []
    monkeypatch.setattr(clips.time, "perf_counter", lambda: now[0])

    def coming():
        while True:
            now[0] += 0.1
            taken.append(now[0])
            yield range(4)

    assert clips.rate_of(coming(), "cpu", seconds, workers=workers) == pytest.approx(40.0)
    assert len(taken) == batches


class CannedCrew:
    """So many frames a second by how many decoders there are."""

    rates = {7: 2000.0, 14: 2700.0, 28: 2600.0}  # noqa: RUF012  # of a class that nobody changes

    def __init__(self, paths, *, device, quality="exact"):
        self.decoders = len(paths)

    def count(self, seconds, *, decoders=None):
        return Counted(frames=int(self.rates[decoders or self.decoders] * seconds), seconds=seconds, cores=1.5)

    def close(self):
        pass


def test_the_best_number_of_sessions_is_the_one_for_both(paths, monkeypatch):
    asked = []

    def beside(cpu, crew, seconds, *, threads, processes):
        asked.append((len(cpu), threads, processes, crew.decoders))
        return Counted(frames=len(cpu) * 200, seconds=1.0, cores=9.0), crew.count(1.0)

    monkeypatch.setattr(run, "Crew", CannedCrew)
    monkeypatch.setattr(run, "beside", beside)
    monkeypatch.setattr(run, "wait_asleep", lambda _, *, asleep=True: None)
    chosen = run.Setting(
        material=SMALL, device="cuda:0", decoders=16, engines=7, size=32, batch=4, seconds=1.0, has_targets=True
    )
    *earlier, nvdec = run._nvdec(chosen, paths, lambda _: None)
    assert len(earlier) == 2, "each trial is told at once"
    assert met(nvdec)
    assert (nvdec.per_second, nvdec.notes["decoders"]) == (2700.0, 14)
    assert nvdec.notes["tried"]["7, waiting asleep"] == {"frames_per_second": 2000, "cores": 1.5}
    assert nvdec.notes["tried"].keys() == {"7, waiting as CUDA does", "7, waiting asleep", "14, waiting asleep"}
    *_, both = run._both(run._wiser(chosen, nvdec), paths, lambda _: None)
    assert asked == [(14, 1, 1, 14), (14, 1, 14, 14), (16, 1, 16, 14)]
    assert both.per_second == 16 * 200 + 2700
    assert (both.notes["cpu_decoders"], both.notes["cpu_processes"]) == (16, 16)
    assert both.notes["cpu_frames_per_second"] == 3200


@pytest.mark.parametrize(("apart", "best"), [(2900.0, (3100.0, 8, 2, 0)), (3200.0, (3200.0, 16, 1, 16))])
def test_the_best_split_of_the_cores_counts(paths, monkeypatch, apart, best):
    rates = {1: 2300.0, 2: 3100.0, 4: 2900.0}

    class Split(CannedCrew):
        def __init__(self, paths, *, device, quality, threads):
            assert len(paths) * threads == 16
            self.threads = threads

        def count(self, seconds):
            return Counted(frames=int(rates[self.threads] * seconds), seconds=seconds, cores=15.2)

    def in_processes(paths, seconds, *, quality, processes):
        assert len(paths) == processes == 16
        return Counted(frames=int(apart * seconds), seconds=seconds, cores=15.9)

    monkeypatch.setattr(run, "Crew", Split)
    monkeypatch.setattr(run, "apart", in_processes)
    chosen = setting(gpu=True, cores=16, quick=True)
    exact, fast = run._cpu(chosen, paths, lambda _: None)
    assert met(exact)
    notes = exact.notes
    assert (exact.per_second, notes["decoders"], notes["threads"], notes["processes"]) == best
    assert notes["tried"] == {"16×1": 2300, "8×2": 3100, "16×1 in processes": apart}
    assert fast.at_least is None
    assert run._wiser(run._wiser(chosen, exact), fast).threads == best[2]


def test_what_was_measured_is_kept_at_once(monkeypatch):
    monkeypatch.setattr(run, "setting", lambda **_: setting(gpu=False, cores=1, quick=True))
    kept = []
    run.measure(quick=True, only=("cpu", "nvdec"), say=lambda _: None, keep=kept.append)
    assert [[case.key for case in found.cases] for found in kept] == [
        ["cpu"], ["cpu", "cpu_fast"], ["cpu", "cpu_fast", "nvdec"],
    ]  # fmt: skip


class CannedOpenCV:
    """cv2, as much of it as is used: a reader that knows where it is."""

    CAP_FFMPEG, CAP_PROP_N_THREADS, CAP_PROP_POS_FRAMES, CAP_PROP_FRAME_COUNT = 1900, 70, 1, 7
    __version__ = "4.12"
    error = type("error", (Exception,), {})

    def __init__(self, frames=40, damaged=None):
        self.frames, self.damaged, self.captures = frames, damaged, []

    def VideoCapture(self, path, api, settings):  # noqa: N802  # as it is called there
        found = SimpleNamespace(at=0, read_frames=[], threads=set(), settings=settings, is_open=True, images=set())

        def read(image):
            found.threads.add(threading.get_ident())
            found.read_frames.append(found.at)
            there = found.at < self.frames and found.at != self.damaged
            found.at += 1
            image = np.zeros((2, 2, 3), np.uint8) if image is None else image
            found.images.add(id(image))
            return there, image

        found.read, found.isOpened = read, lambda: path.endswith(".mp4")
        found.get = {self.CAP_PROP_FRAME_COUNT: float(self.frames)}.__getitem__
        found.set = lambda what, value: setattr(found, {self.CAP_PROP_POS_FRAMES: "at"}[what], value)
        found.release = lambda: setattr(found, "is_open", False)
        self.captures.append(found)
        return found


def test_opencv_reads_the_same_frames_in_order(paths):
    cv2 = CannedOpenCV()
    crew = Captures(cv2, paths, alone=True)
    found = crew.count(0.01)
    crew.close()
    assert found.seconds == 0.01
    for capture in cv2.captures:
        assert capture.settings == [cv2.CAP_PROP_N_THREADS, 1]
        chunks = capture.read_frames
        assert chunks[:16] == list(range(16)), "a first time to be ready"
        turns = itertools.cycle(range(40))
        assert chunks[16:] == list(itertools.islice(turns, len(chunks) - 16))
        assert len(capture.threads) == len(capture.images) == 1
        assert not capture.is_open
    assert cv2.captures[0].threads != cv2.captures[1].threads


def test_opencv_is_a_line_without_a_target(paths, monkeypatch):
    chosen = setting(gpu=False, cores=2, quick=True, seconds=0.01)
    cv2 = CannedOpenCV(frames=64)
    monkeypatch.setitem(sys.modules, "cv2", cv2)
    cases = {case.key: case for case in run._cpu(chosen, paths, lambda _: None)}
    assert list(cases) == ["cpu", "cpu_fast", "opencv", "opencv_alone"]
    assert cases["opencv"].title == "OpenCV, 2 decoders"
    assert cases["opencv"].notes["opencv"] == "4.12"
    assert cases["opencv_alone"].per_second is not None
    assert cases["opencv_alone"].at_least is None
    assert [capture.settings for capture in cv2.captures] == [[], [], [70, 1], [70, 1]]
    monkeypatch.setitem(sys.modules, "cv2", CannedOpenCV(damaged=3))
    *_, damaged = run._cpu(chosen, paths, lambda _: None)
    assert "OpenCV gives no frame 3 of 40" in damaged.problem


def test_training_is_held_against_the_better_limit(tmp_path, monkeypatch):
    limits = iter([8.0, 10.0])

    def fed(step, source, *_):
        if source.quality == "fast":
            raise RuntimeError("out of luck")
        return 9.0, {}

    monkeypatch.setattr(training, "_rate", lambda *_: next(limits))
    monkeypatch.setattr(training, "_fed", fed)
    course = training.Course.small()
    told = list(
        training.training(tmp_path, course, "cpu", 0.1, settle_seconds=0.0, has_targets=True, say=lambda _: None)
    )
    assert [(case.key, case.per_second, case.times) for case in told] == [
        ("limit", 8.0, None), ("cached", 9.0, 9 / 8), ("files", None, None),
        ("limit", 10.0, None), ("cached", 9.0, 0.9), ("files", None, None),
    ]  # fmt: skip
    assert told[-1].problem == "RuntimeError: out of luck"
    assert met(told[-2]) is False


def test_training_from_files_without_and_with_the_gpu(tmp_path, monkeypatch):
    """The share is looked for last, and for longer: trials take long."""
    asked = []

    def fed(step, source, course, device, seconds, way, settle_seconds):
        asked.append((way.key, way.share, way.patience * settle_seconds))
        return {"cached": 9.8, "files": 5.0, "files_shared": 6.0}[way.key], {}

    monkeypatch.setattr(training, "_rate", lambda *_: 10.0)
    monkeypatch.setattr(training, "_fed", fed)
    monkeypatch.setattr(training, "_Step", lambda *_: None)
    monkeypatch.setattr(training, "_resident", lambda *_: None)
    course = training.Course.small()
    told = training.training(tmp_path, course, "cuda:0", 0.1, settle_seconds=20.0, has_targets=True, say=lambda _: None)
    cases = {case.key: case for case in told}
    assert asked == [("cached", 0.0, 20.0), ("files", 0.0, 20.0), ("files_shared", "auto", 100.0)]
    assert {key: case.times for key, case in cases.items()} == {
        "limit": None, "cached": pytest.approx(0.98), "files": 0.5, "files_shared": 0.6,
    }  # fmt: skip
    assert [met(case) for case in cases.values()] == [None, True, None, None]


class FeedThatLooks:
    """For its workers' number, for ever."""

    decision = None
    hosting = SimpleNamespace(value=SimpleNamespace(workers=3))

    def __init__(self):
        self.resized = []

    def resize(self, workers):
        self.resized.append(workers)


def test_a_search_that_takes_too_long_is_ended():
    batches, taken = FeedThatLooks(), []
    giving = (taken.append(number) for number in itertools.count())
    assert not clips.settle(batches, giving, 0.01)
    assert batches.resized == [3]
    before = len(taken)
    batches.decision = 5
    assert clips.settle(batches, giving, 0.01)
    assert len(taken) == before


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "fulltilt.bench.video.run.setting",
        lambda **_: setting(gpu=False, cores=1, quick=True),
    )
    file = tmp_path / "video.json"
    result = CliRunner().invoke(bench, ["video", "--quick", "--json", str(file)])
    assert result.exit_code == 0, result.output
    cases = {case["key"]: case for case in json.loads(file.read_text())["cases"]}
    peers = ["loader", "loader_jumps", "loader_scaled", "loader_alone", "loader_scaled_long"]
    ways = ["feed", "feed_fast", "feed_cached", "feed_long", "feed_fast_long", "feed_together_long"]
    rates = {"cpu", "cpu_fast", "cpu_light", "cpu_fast_light", "nvdec", "both"}
    assert set(cases) == {*rates, *peers, *ways, "limit", "cached", "files"}
    assert cases["cpu_light"]["title"].endswith("Mbit/s")
    assert all(cases[key]["clips_per_second"] > 0 for key in (*peers, *ways, "limit", "cached", "files"))
    assert cases["loader"]["decoded_per_frame"] > cases["loader_scaled"]["decoded_per_frame"] > 1
    assert cases["feed_long"]["decoded_per_frame"] < cases["loader_scaled_long"]["decoded_per_frame"]
    assert cases["feed_together_long"]["decoded_per_frame"] < cases["feed_long"]["decoded_per_frame"]
    assert "decoded_per_frame" not in cases["feed_cached"]
    assert cases["files"]["decoded_per_frame"] >= 1
    assert cases["cached"]["times"] == pytest.approx(
        cases["cached"]["clips_per_second"] / cases["limit"]["clips_per_second"], rel=0.01
    )
    assert cases["cpu"]["frames_per_second"] > 0
    assert "no video engines" in cases["nvdec"]["problem"]
    again = CliRunner().invoke(bench, ["video", "--quick", "--only", "cpu", "--json", str(file)])
    assert again.exit_code == 0, again.output
    assert len(json.loads(file.read_text())["cases"]) == len(cases)
