"""One planted cause each: it must be the first finding, with a gain that follows from the model by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fulltilt.diagnose import Limits, diagnose
from fulltilt.diagnose.figures import Figures
from fulltilt.diagnose.thresholds import CAUSES
from fulltilt.measure.observation import Copy, Place, Sync

STARVED = {"data wait": 40}
MIB = 2**20

# name: (what is planted, the first cause, its gain, its settings)
CASES = {
    "no workers": (
        {"phases": STARVED, "loader": {"num_workers": 0}, "loader_rate": 800, "stages": {"item": 1.25}},
        ("single-process", 71.8 / 31.8 - 1, {"loader.num_workers": 2, "loader.persistent_workers": True}),
    ),
    "too few workers": (
        # 32 samples in 71.8 ms; two workers give 446 a second; 6 would do, with some in reserve
        {"phases": STARVED, "loader": {"num_workers": 2}, "loader_rate": 446, "stages": {"decode": 2, "Crop": 2.48}},
        ("too-few-workers", 71.8 / 31.8 - 1, {"loader.num_workers": 6, "loader.persistent_workers": True}),
    ),
    "one slow transform": (
        {"phases": STARVED, "loader": {"num_workers": 15}, "loader_rate": 446, "stages": {"decode": 2, "Warp": 30}},
        ("slow-transform", 71.8 / 31.8 - 1, {}),
    ),
    "decoding": (
        {"phases": STARVED, "loader": {"num_workers": 15}, "loader_rate": 446, "stages": {"decode": 24, "Flip": 2}},
        ("slow-decode", 71.8 / (32 / 446 * 1e3 * (1 - 24 / 26 / 2)) - 1, {"decode": True}),
    ),
    "data better cached": (
        {
            "phases": {"data wait": 100}, "loader": {"num_workers": 4}, "loader_rate": 243,
            "stages": {"decode": 16.4}, "surroundings": {"cores": 4},
        },
        ("cacheable", None, {}),
    ),
    "disk": (
        {"phases": STARVED, "loader": {"num_workers": 4}, "loader_rate": 446, "stages": {"read": (7, 0.4), "Flip": 2}},
        ("slow-disk", 71.8 / 31.8 - 1, {"loader.num_workers": 11, "loader.persistent_workers": True}),
    ),
    "collate": (
        {"phases": STARVED, "loader": {"num_workers": 15}, "loader_rate": 446, "stages": {"collate": 20, "item": 9}},
        ("slow-collate", 71.8 / 31.8 - 1, {}),
    ),
    "small /dev/shm": (
        {
            "phases": STARVED, "loader": {"num_workers": 1}, "loader_rate": 446, "stages": {"item": 2.24},
            "surroundings": {"shm_bytes": 64 * MIB},
        },
        ("small-shm", 71.8 / 31.8 - 1, {}),
    ),
    "samples in memory": (
        {"phases": STARVED, "loader": {"in_memory": True, "num_workers": 2}, "loader_rate": 446},
        ("in-memory", 71.8 / 31.95 - 1, {"loader.resident": True}),
    ),
    "augmentation on the CPU": (
        {
            "phases": {"data wait": 100}, "loader": {"num_workers": 4}, "loader_rate": 243,
            "stages": {"decode": 6, "RandomResizedCrop": 5.4, "ColorJitter": 5}, "surroundings": {"cores": 4},
        },
        ("gpu-augmentation", None, {}),
    ),
    "workers restarted": (
        {
            "phases": {"epoch start": 25}, "stages": {"item": 1},
            "loader": {"persistent_workers": False, "samples": 3200, "starts": 2, "start_seconds": 2.5},
        },
        ("restarted-workers", 56.8 / (56.8 - (2500 - 32) / 100) - 1, {"loader.persistent_workers": True}),
    ),
    "workers restarted between the steps": (
        {
            "outside": {"epoch start": 1.5}, "stages": {"item": 1},
            "loader": {"persistent_workers": False, "samples": 3200, "starts": 2, "start_seconds": 2.5},
        },
        ("restarted-workers", 56.8 / (56.8 - (2500 - 32) / 100) - 1, {"loader.persistent_workers": True}),
    ),
    "blocking copies": (
        {
            "phases": {"copy": 20}, "loader": {"pin_memory": False},
            "copies": (
                Copy(place=Place(file="train.py", line=7), count=60, seconds=1.2, bytes=60 * 19 * MIB, pinned=False,
                     non_blocking=False),
            ),
        },
        (
            "blocking-copies", 51.6 / 33.6 - 1,
            {"loader.pin_memory": True, "copy.non_blocking": True, "loader.ahead": True},
        ),
    ),
    "hidden syncs": (
        {
            "phases": {"sync": 20}, "limit": 51.5, "surroundings": {"gpu_share": 0.6},
            "syncs": (Sync(place=Place(file="train.py", line=8), kind="item", count=240, seconds=1.2),),
        },
        ("hidden-sync", 51.8 / 31.8 - 1, {}),
    ),
    "a mask that waits": (
        # heard in two steps, its time lies in the forward
        {
            "phases": {"forward": 30}, "limit": 51.5, "surroundings": {"gpu_share": 0.6},
            "syncs": (
                Sync(place=None, kind="a mask as index", count=60, seconds=1.2, implicit=True),
            ),
        },
        ("hidden-sync", None, {}),
    ),
    "evaluation": (
        # 1.272 s for 60 steps is two fifths of them; every 8th evaluation is below a twentieth
        {"outside": {"eval": 0.6 * 60 * 0.0318}},
        ("evaluation", 1.6 / (1 + 0.6 / 12) - 1, {}),
    ),
    "checkpoints": ({"outside": {"checkpoint": 0.3 * 60 * 0.0318}}, ("checkpoints", 1.3 / (1 + 0.3 / 6) - 1, {})),
    "logging": ({"phases": {"logging": 10}, "limit": 41.5}, ("logging", 41.8 / 32.8 - 1, {})),
    "launch-bound": (
        {"training": {"launches": 3500, "compiled": False}, "surroundings": {"gpu_share": 0.3}},
        # 12.7 ms would do, but the loader gives 2,000 samples a second
        ("small-batch", 31.8 / 16 - 1, {"graphs": True}),
    ),
    "TF32": (
        {"training": {"autocast": None, "tf32": False, "images": False}},
        ("tf32", None, {"tf32": True}),
    ),
    "precision": ({"training": {"autocast": None}}, ("precision", None, {"autocast": "bfloat16"})),
    "channels_last": ({"training": {"channels_last": False}}, ("channels-last", None, {"channels_last": True})),
    "compile": ({"training": {"compiled": False}}, ("compile", None, {"compile": True})),
    "unfused optimizer": (
        {"phases": {"optimizer": 9}, "limit": 39.5, "training": {"fused": False, "foreach": True}},
        ("unfused-optimizer", 39.8 / 33.8 - 1, {"fused": True}),
    ),
    "too many workers": (
        {"phases": {"forward": 30}, "loader": {"num_workers": 64}, "stages": {"item": 3}},
        ("too-many-workers", 51.8 / 31.5 - 1, {"loader.num_workers": 4}),
    ),
    "too many threads": (
        {"training": {"device": "cpu", "threads": 64}, "surroundings": {"gpu": None, "gpu_share": None}},
        ("too-many-threads", None, {"threads": 16}),
    ),
    "too many threads beside workers": (
        {"training": {"device": "cpu", "threads": 16}, "surroundings": {"gpu": None, "gpu_share": None}, "limit": 8,
         "loader": {"num_workers": 8}},
        # 8 threads would take 16 ms at the most, and so does the loader for its 32 samples
        ("too-many-threads", 31.8 / 16 - 1, {"threads": 8}),
    ),
    "memory grows": (
        {"surroundings": {"memory_bytes": tuple(range(1000 * MIB, 2000 * MIB, 40 * MIB))}},
        ("memory-growth", None, {}),
    ),
    "shared GPU": ({"surroundings": {"other_processes": 1}}, ("shared-gpu", None, {})),
    "thermal throttling": ({"surroundings": {"throttled": "thermal"}}, ("throttled", None, {})),
    "the script's own code": (
        {"phases": {"other": 40}, "limit": 71, "has_loader": False},
        ("own-code", None, {}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_planted_cause_is_the_first_finding(planted, name):
    plant, (cause, gain, settings) = CASES[name]
    found = planted(**plant).diagnose()
    assert [finding.cause for finding in found.findings][:1] == [cause]
    first = found.findings[0]
    assert first.settings == settings
    if gain is not None:
        assert first.gain == pytest.approx(gain, rel=0.02)
    assert first.title
    assert first.evidence
    assert first.fix


def test_every_cause_of_the_table_has_a_case():
    assert {cause for _, (cause, _, _) in CASES.values()} == set(CAUSES) - {"slow-rank"}


def test_no_fault_is_no_headroom_and_no_finding(planted):
    found = planted().diagnose()
    assert found.findings == ()
    assert found.verdict.startswith("No headroom: the script trains at 99 % of its step's limit")
    assert found.headroom == pytest.approx(1 - 31.5 / 31.8)


def test_no_headroom_names_what_makes_the_step_faster(planted):
    found = planted(training={"autocast": None, "channels_last": False, "compiled": False}).diagnose()
    assert found.headroom < 0.05
    assert {finding.cause for finding in found.findings} == {"precision", "compile", "channels-last"}
    assert {finding.about for finding in found.findings} == {"step"}
    assert found.verdict.startswith("No headroom")


def test_a_starved_script_gains_nothing_now_by_precision_but_its_limit_does(planted):
    plant = {"phases": STARVED, "loader": {"num_workers": 2}, "loader_rate": 446, "stages": {"decode": 2, "Crop": 2.48}}
    found = planted(**plant, training={"autocast": None}).diagnose()
    assert [finding.cause for finding in found.findings] == ["too-few-workers", "precision"]
    assert found.findings[1].gain == pytest.approx(0, abs=0.01)
    assert found.findings[1].limit_gain > 0.5


def test_threads_that_fewer_would_not_better_are_left_alone(planted):
    cpu = {"training": {"device": "cpu", "threads": 16}, "surroundings": {"gpu": None, "gpu_share": None}}
    for rest in ({"limit": 15}, {"limit": 8, "loader": {"num_workers": 0}}):
        found = planted(**cpu, **{"loader": {"num_workers": 8}, **rest}).diagnose()
        assert "too-many-threads" not in [finding.cause for finding in found.findings]


def test_a_data_set_of_whole_batches_has_epochs_as_long_as_seen(planted):
    # 30 batches of 32 samples each: as samples they would be an epoch of one step
    loader = {"batch_size": None, "samples": 30, "num_workers": 0, "start_seconds": 0.01}
    seen = planted(loader=loader, outside={"epoch start": 0.02}).observation()
    figures = Figures(observation=seen, limits=Limits(step=None, loader=None))
    assert figures.epoch_steps == pytest.approx(30)
    assert figures.outside["epoch start"] == pytest.approx(0.02 / 60)


def test_waiting_for_a_core_is_no_slow_disk(planted):
    stages = {"decode": (24, 10), "Flip": (2, 1)}
    plant = {"phases": STARVED, "loader": {"num_workers": 15}, "loader_rate": 446, "stages": stages}
    assert planted(**plant, surroundings={"cpu_share": 1.0}).diagnose().findings[0].cause == "slow-decode"
    assert planted(**plant, surroundings={"cpu_share": 0.4}).diagnose().findings[0].cause == "slow-disk"
    # 15 workers alone give a sample each 11 ms: they wait for nothing then.
    alone = {**plant, "loader_rate": 15 / 0.011}
    causes = [one.cause for one in planted(**alone, surroundings={"cpu_share": 0.4}).diagnose().findings]
    assert "slow-disk" not in causes


def test_on_a_cpu_a_replay_on_a_busier_machine_is_not_believed(planted):
    on_cpu = {"training": {"device": "cpu", "threads": 1}, "surroundings": {"gpu": None, "gpu_share": None}}
    plant = {"phases": {**STARVED, "copy": 0}, "loader": {"num_workers": 0}, "stages": {"item": 1.25}}
    found = planted(**plant, **on_cpu, limit=90).diagnose()
    assert found.limits.step == pytest.approx(32 / 0.0316, rel=0.01)
    assert found.headroom == pytest.approx(40 / 71.6, rel=0.01)
    assert found.findings[0].cause == "single-process"
    # One on a machine less busy shows more than waits explain: what they do explain counts, and a note says so.
    found = planted(**plant, **on_cpu, limit=10).diagnose()
    assert found.headroom == pytest.approx(40 / 71.6, rel=0.01)
    assert "less busy" in found.notes[0]


def test_one_slow_rank(planted):
    usual = planted().observation(rank=0, world=2)
    late = planted(phases={"data wait": 12, "backward": 8.1}).observation(rank=1, world=2)
    waits = planted(phases={"backward": 20}).observation(rank=2, world=2)
    found = diagnose(usual, ranks=(usual, late, waits))
    assert found.findings[0].cause == "slow-rank"
    assert "Rank 1" in found.findings[0].title
    assert "data wait: 12 ms against 100 µs" in found.findings[0].evidence[1]
    assert found.findings[0].gain == pytest.approx(31.8 / (31.8 - 11.9) - 1, rel=0.01)


def test_the_diff_is_made_from_the_users_own_line(planted):
    found = planted(**CASES["too few workers"][0]).diagnose()
    assert found.findings[0].diff.splitlines()[3:] == [
        " ",
        "-loader = DataLoader(data, batch_size=32, num_workers=2)",
        "+loader = DataLoader(data, batch_size=32, num_workers=6, persistent_workers=True)",
        " optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)",
    ]


@pytest.mark.parametrize("case", ["too few workers", "disk"])
def test_more_workers_for_an_iterable_data_set_are_the_scripts_own_to_share_out(planted, case):
    plant = CASES[case][0]
    findings = planted(**{**plant, "loader": {**plant["loader"], "iterable": True}}).diagnose().findings
    (found,) = (one for one in findings if "num_workers=" in one.fix)
    assert "persistent_workers" not in found.fix
    assert "get_worker_info" in found.fix
    assert found.diff is None
    assert not found.settings


def test_workers_of_an_iterable_data_set_may_live_on_where_it_begins_anew(planted):
    """A stream that is its own iterator would go on where it was: nobody can tell from outside."""
    plant = CASES["workers restarted"][0]
    loader = {**plant["loader"], "iterable": True, "num_workers": 1}
    findings = planted(**{**plant, "loader": loader}).diagnose().findings
    (found,) = (one for one in findings if one.cause == "restarted-workers")
    assert found.fix == "DataLoader(…, persistent_workers=True), if its data set's __iter__ begins anew each time"
    assert "1 worker was started" in found.evidence[1]
    assert found.diff is None
    assert not found.settings


def test_more_workers_for_a_file_that_is_open_want_one_each(planted):
    plant = CASES["no workers"][0]
    found = planted(**{**plant, "loader": {**plant["loader"], "opened": "Records.file"}}).diagnose().findings[0]
    assert "with Records.file opened anew in each worker" in found.fix
    assert found.diff is None
    assert not found.settings


def test_more_workers_for_a_generator_of_the_data_sets_own_want_one_each(planted):
    plant = CASES["no workers"][0]
    found = planted(**{**plant, "loader": {**plant["loader"], "generator": "Photos.rng"}}).diagnose().findings[0]
    assert "with Photos.rng seeded anew in each worker" in found.fix
    assert found.diff is None
    assert not found.settings


def test_of_a_data_set_that_keeps_its_samples_no_gain_is_foretold_from_its_first_epoch(planted):
    plant = CASES["no workers"][0]

    def told(plant, **changes):
        return planted(**{**plant, "loader": {**plant["loader"], "remembers": "Photos.cache", **changes}}).diagnose()

    found = told(plant)
    feeding = [one for one in found.findings if one.about == "feeding"]
    assert feeding
    assert {one.gain for one in feeding} == {None}
    (workers,) = (one for one in feeding if "num_workers=" in one.fix)
    assert "with Photos.cache filled before they start" in workers.fix
    assert not workers.settings
    assert any("Photos.cache grows" in note for note in found.notes)
    later = told(plant, samples=32)  # each step is an epoch: what is full is among what was watched
    assert all(one.gain for one in later.findings if one.about == "feeding")
    assert not any("Photos.cache" in note for note in later.notes)
    few = told(CASES["too few workers"][0])  # each has one as it is, and drops it with the epoch
    (more,) = (one for one in few.findings if "num_workers=" in one.fix)
    assert more.gain
    assert "persistent_workers" not in more.fix


def test_workers_do_not_live_on_where_the_script_changes_its_data_set(planted):
    plant = CASES["too few workers"][0]
    found = planted(**{**plant, "loader": {**plant["loader"], "changes": True}}).diagnose().findings[0]
    assert found.fix == "DataLoader(…, num_workers=6)"
    assert found.settings == {"loader.num_workers": 6}
    assert "persistent_workers" not in found.diff
    plant = CASES["disk"][0]
    findings = planted(**{**plant, "loader": {**plant["loader"], "changes": True}}).diagnose().findings
    assert len([one for one in findings if "num_workers=" in one.fix]) == 1
    plant = CASES["workers restarted"][0]
    findings = planted(**{**plant, "loader": {**plant["loader"], "changes": True}}).diagnose().findings
    assert "restarted-workers" not in {finding.cause for finding in findings}


def test_what_may_run_full_explains_no_headroom(planted):
    """/dev/shm has no room for all batches, and the copies are what the step waits for."""
    found = planted(phases={"copy": 9}, loader={"num_workers": 8}, surroundings={"shm_bytes": 64 * MIB}).diagnose()
    assert [one.cause for one in found.findings] == ["small-shm"]
    assert "copies to the device" in found.verdict


def test_how_often_is_said_as_people_say_it(planted):
    found = planted(outside={"checkpoint": 0.15 * 60 * 0.0318}).diagnose().findings[0]
    assert found.fix.startswith("Save every 3rd time")


def test_only_a_loader_that_evaluates_is_told_to_have_workers(planted):
    plant = planted(outside={"eval": 0.6 * 60 * 0.0318})
    (trains,) = plant.observation().loaders
    for workers, told in ((None, False), (0, True), (2, False)):
        evaluates = () if workers is None else (replace(trains, role="eval", num_workers=workers),)
        (found,) = diagnose(plant.observation(loaders=(trains, *evaluates))).findings
        assert found.fix.startswith("Evaluate every 12th time, or on a part of the data")
        assert ("loader" in found.fix) is told


def test_an_epochs_first_batch_is_one_batch(planted):
    """Of a step that takes four, 128 ms of work: a quarter of it is waited for where workers live on."""
    loader = {"persistent_workers": False, "samples": 3200, "starts": 2, "start_seconds": 0.2, "batch_size": 8}
    found = planted(phases={"epoch start": 2}, stages={"item": 4}, loader=loader).diagnose()
    restarted = next(one for one in found.findings if one.cause == "restarted-workers")
    assert restarted.seconds == pytest.approx((0.2 - 0.032) / 100)


def test_no_steps_is_said(planted):
    found = diagnose(planted().observation(steps=()))
    assert found.findings == ()
    assert found.verdict == "Nothing can be said: no training step could be watched."


def test_an_unmeasured_limit_is_said(planted):
    found = planted(limit=None, phases=STARVED, loader={"num_workers": 0}, stages={"item": 1.25}).diagnose()
    assert found.headroom is None
    assert found.verdict.startswith("The step's limit could not be measured. The training process loads its own data")


def test_where_others_keep_the_cores_busy_that_is_said(planted):
    for others, said in ((None, False), (0.4, False), (1.8, True)):
        found = planted(surroundings={"cores": 2, "others_cores": others}).diagnose()
        assert any("others kept 1.8 of 2 cores" in note for note in found.notes) is said


def test_a_gpus_work_is_its_kernels_where_they_were_counted(planted):
    """Whatever the driver's average over other moments, and over other processes, says."""
    seen = planted(training={"kernel_seconds": 0.012}, surroundings={"gpu_share": 0.1}).observation()
    figures = Figures(observation=seen, limits=Limits(step=None, loader=None))
    assert figures.gpu_busy == 0.012
    seen = planted(training={"kernel_seconds": 5.0}).observation()
    assert Figures(observation=seen, limits=Limits(step=None, loader=None)).gpu_busy == pytest.approx(figures.step)


def test_what_launching_costs_is_seen_where_the_gpu_waits(planted):
    """A slow host: 520 kernels in 19 ms, which the GPU does in 12; and the loader is slower than both."""
    slow = {"autocast": None, "channels_last": False, "compiled": False, "launches": 520, "kernel_seconds": 0.012}
    phases = {"data wait": 25, "forward": 8, "backward": 9, "optimizer": 2, "other": 0}
    found = planted(phases=phases, training=slow, limit=20.0, loader_rate=700.0).diagnose()
    by_cause = {finding.cause: finding for finding in found.findings}
    assert "precision" not in by_cause, "half precision would not launch faster"
    assert by_cause["small-batch"].limit_gain > 0.5
    assert by_cause["small-batch"].settings == {"graphs": True}
    # The same host time, but the GPU is busy all the while: the queue is full, and launching may be cheap.
    phases = {"data wait": 0, "forward": 8, "backward": 9, "optimizer": 2, "other": 0}
    busy = planted(phases=phases, training={**slow, "kernel_seconds": 0.0185}, limit=18.9).diagnose()
    causes = {finding.cause for finding in busy.findings}
    assert "precision" in causes
    assert "small-batch" not in causes
    # A GPU that is as slow as its host now, and would be faster in half precision: then launching binds.
    phases = {"data wait": 25, "forward": 8, "backward": 9, "optimizer": 2, "other": 0}
    then = planted(phases=phases, training={**slow, "kernel_seconds": 0.0195}, limit=20.0, loader_rate=700.0).diagnose()
    later = next(finding for finding in then.findings if finding.cause == "small-batch")
    assert later.settings == {"graphs": True}
    assert later.gain == 0.0
    assert later.limit_gain > 0.8
    assert then.findings[0].cause != "small-batch"


def test_a_host_that_runs_ahead_of_its_gpu_makes_no_step_shorter(planted):
    """The last steps are launched long before the GPU has come to them."""
    seen = planted(phases={"forward": 2}).observation()
    ahead = [replace(step, gpu_seconds=0.05) for step in seen.steps]
    seen = replace(seen, steps=tuple(ahead))
    assert seen.samples_per_second == pytest.approx(32 / 0.05)
    assert seen.steps_per_second == pytest.approx(1 / 0.05)
    assert Figures(observation=seen, limits=Limits(step=None, loader=None)).step == pytest.approx(0.05)
    unsure = replace(seen, steps=(replace(ahead[0], gpu_seconds=None), *ahead[1:]))
    assert unsure.steps_per_second == pytest.approx(1 / ahead[0].seconds)


# Phases in milliseconds, and what was counted, as on an H200 in tests/diagnose/scripts/gpu. Its host takes up to 30 µs
# for a kernel.
EAGER = {"images": False, "autocast": None, "dtype": "torch.bfloat16", "compiled": False, "tf32": False}
MASK = Sync(place=None, kind="a mask as index", count=60, seconds=60 * 2.2e-3, implicit=True)
ON_AN_H200 = {
    "small_batch": (
        {"forward": 12.2275, "backward": 24.5277, "optimizer": 4.6028, "other": 0.1552},
        {"launches": 1380, "kernel_seconds": 3.1479e-3, "fusable_seconds": 1e-3, "weights": 600},
        ("small-batch", 2.32),
    ),
    "unfused_optimizer": (
        {"forward": 4.8356, "backward": 11.0126, "optimizer": 18.0516, "other": 0.1396},
        {"launches": 2207, "kernel_seconds": 4.1642e-3, "fusable_seconds": 1e-3, "weights": 200, "fused": False},
        ("unfused-optimizer", None),
    ),
    "compile": (
        {"forward": 8.3234, "backward": 14.9292, "optimizer": 0.4391, "other": 0.1184},
        {"launches": 263, "kernel_seconds": 23.8844e-3, "fusable_seconds": 23.5e-3, "weights": 12},
        ("compile", 2.575),
    ),
    "mask_sync": (
        {"forward": 8.4561, "backward": 1.7406, "optimizer": 0.4663, "other": 0.103},
        {"launches": 60, "kernel_seconds": 3.4122e-3, "fusable_seconds": 0.5e-3, "weights": 12},
        ("hidden-sync", None),
    ),
}


@pytest.mark.parametrize("name", ON_AN_H200)
def test_what_an_h200_has_shown(planted, name):
    phases, training, (cause, measured) = ON_AN_H200[name]
    found = planted(
        phases={"data wait": 0, "copy": 0, **phases},
        training={**EAGER, **training},
        has_loader=False,
        limit=None,
        loader_rate=None,
        syncs=(MASK,) if cause == "hidden-sync" else (),
    ).diagnose()
    first = found.findings[0]
    assert first.cause == cause, [(finding.cause, finding.gain) for finding in found.findings]
    if measured is not None:
        assert abs(1 / (1 + first.gain) - 1 / (1 + measured)) < 0.1


def test_a_compiler_gains_nothing_from_matrix_products(planted):
    training = {**EAGER, "launches": 60, "kernel_seconds": 30e-3, "fusable_seconds": 1e-3}
    found = planted(training=training, has_loader=False, limit=None, loader_rate=None).diagnose()
    assert "compile" not in {finding.cause for finding in found.findings}
