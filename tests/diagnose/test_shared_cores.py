"""A step on a CPU, whose workers, threads and other ranks want the same cores. Figures in part from real scripts."""

from __future__ import annotations

import pytest

from fulltilt.diagnose import diagnose
from fulltilt.diagnose.figures import Figures

TWO_CORES = {"cores": 2, "gpu": None, "gpu_share": None}
TWO_THREADS = {"device": "cpu", "threads": 2}
ON_CPU = {"training": TWO_THREADS, "surroundings": TWO_CORES}

# A vision transformer beside one worker, while another process kept a core busy: milliseconds per step and sample.
BUSY = {
    "phases": {"data wait": 3.2, "copy": 0, "forward": 200, "backward": 370, "optimizer": 4, "other": 0.6},
    "limit": 223,
    "loader": {"num_workers": 1},
    "loader_rate": 446,
    "stages": {"decode": (0.9, 0.57), "RandomResizedCrop": (0.4, 0.26), "Jitter": (0.37, 0.32), "item": (1.66, 0.07)},
    "training": TWO_THREADS,
    "surroundings": {**TWO_CORES, "cpu_share": 0.98, "others_cores": 0.9},
}
# A small GAN beside two workers.
CROWDED = {
    "phases": {"data wait": 3.1, "copy": 0, "forward": 14, "backward": 22, "optimizer": 1.5, "other": 0.3},
    "outside": {"epoch start": 60 * 4.8e-3},
    "limit": 11.5,
    "loader": {
        "num_workers": 2, "persistent_workers": False, "samples": 16 * 32, "starts": 8, "start_seconds": 0.0774,
    },
    "loader_rate": 1920,
    "stages": {"read": (0.14, 0.066), "decode": (1.24, 0.63), "Resize": (0.33, 0.3), "ToTensor": (0.15, 0.13),
               "item": (0.3, 0.05)},
    **ON_CPU,
}  # fmt: skip


def figures(plant):
    made = plant.diagnose()
    return Figures(observation=made.observation, limits=made.limits)


def test_workers_take_no_more_from_a_step_than_they_work(planted):
    """575 ms beside the worker and 223 alone; but its work is 39 ms of a core for each step: others did the rest."""
    plant = planted(**BUSY)
    found, core_work = plant.diagnose(), 32 * (0.57 + 0.26 + 0.32 + 0.07)
    assert figures(plant).crowding == pytest.approx(core_work / 1e3)
    assert found.headroom == pytest.approx((3.2 + core_work) / 577.8)
    assert not found.findings, "a thread less would not make good what others take"
    assert found.verdict.startswith("7.3 % headroom. 6.8 % of the time is a step slowed down by 1 worker beside it")
    assert "less busy when it was measured" in found.verdict
    assert any("54 % of the time further off" in note for note in found.notes)


def test_the_cost_of_loading_is_told_where_no_stage_stands_out(planted):
    found = planted(
        phases={"copy": 0, "forward": 15, "backward": 28}, limit=31.5, loader={"num_workers": 1}, loader_rate=4000.0,
        stages={"decode": 0.24, "RandomResizedCrop": 0.16}, **ON_CPU,
    ).diagnose()  # fmt: skip
    assert not found.findings
    assert found.verdict == (
        "29 % headroom. 29 % of the time is a step slowed down by 1 worker beside it on 2 cores "
        "(decode 60 %, RandomResizedCrop 40 % of their work); nothing is known that would make it less."
    )


def test_cheaper_loading_is_predicted_to_a_step_without_a_core_to_spare(planted):
    """12.8 ms of a core for each step, three quarters of it decoding; the step takes 44.5 beside it and 33 alone."""
    found = planted(
        phases={"copy": 0, "forward": 15, "backward": 28, "data wait": 0, "optimizer": 1}, limit=33,
        loader={"num_workers": 1}, loader_rate=4000.0, stages={"decode": 0.3, "RandomResizedCrop": 0.1}, **ON_CPU,
    ).diagnose()  # fmt: skip
    assert [one.cause for one in found.findings] == ["cacheable", "slow-decode"]
    decode = found.findings[1]
    assert decode.title == "Decoding images takes 9.6 ms of a core from each step, which has none to spare"
    assert decode.gain == pytest.approx(44.5 / (44.5 - 11.5 * 0.75 / 2) - 1)
    assert decode.evidence[1] == (
        "loading takes 12.8 ms of a core from each step, whose own work takes 44.5 ms beside it and 33 ms alone"
    )
    assert decode.settings == {"decode": True}
    assert found.findings[0].title.endswith("on cores that the step needs")


def test_what_a_worker_waits_for_a_core_is_not_its_work(planted):
    """2.16 ms per sample by the clock, 1.18 of them on a core; alone, each of two workers takes 1.04."""
    found = figures(planted(**CROWDED))
    assert found.core_work == pytest.approx(32 * 1.176e-3)
    assert found.work == found.core_work
    # Where it takes 1.67 alone, that much of its waits is its own: a disk's, say.
    slow = figures(planted(**{**CROWDED, "loader_rate": 1200}))
    assert slow.work == pytest.approx(32 * 2 / 1200)
    assert slow.core_work == found.core_work


def test_workers_that_start_anew_are_found_beside_a_crowded_step(planted):
    found = {one.cause: one for one in planted(**CROWDED).diagnose().findings}
    assert found["restarted-workers"].seconds == pytest.approx((77.4e-3 - 32 * 1.176e-3) / 16)
    assert found["too-many-threads"].gain == pytest.approx(45.7 / (32 * 1.176 / 2 + 11.5 + 4.8) - 1, rel=0.01)


@pytest.mark.parametrize(("ranks", "threads", "wanted"), [(2, 2, 1), (2, 1, None), (3, 1, None), (1, 2, None)])
def test_threads_of_all_ranks_share_the_cores(planted, ranks, threads, wanted):
    seen = [
        planted(training={"device": "cpu", "threads": threads}, surroundings=TWO_CORES).observation(
            rank=rank, world=ranks
        )
        for rank in range(ranks)
    ]
    found = [one for one in diagnose(seen[0], ranks=seen).findings if one.cause == "too-many-threads"]
    assert len(found) == (wanted is not None)
    for one in found:
        assert one.title == "2 ranks compute with 2 threads each, on 2 cores"
        assert one.fix == "torch.set_num_threads(1), or OMP_NUM_THREADS=1 in the environment"
        assert one.settings == {"threads": wanted}
        # Of a rank on another machine nothing is known.
        assert not diagnose(seen[0]).findings
