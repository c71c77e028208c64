"""Runs that are compared: which of them, one after the other or side by side, and how they end."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from fulltilt.launch.search.judge import Judge, has_room
from fulltilt.measure.observation import Observation, Surroundings, Training

SCRIPTS = Path(__file__).parents[1] / "scripts"
NUMERIC = {"channels_last": True}
UNTIED = {"tf32": True, "graphs": True, "fused": True}
EXACT = {"loader.num_workers": 2}


def seen(settings: dict[str, Any]) -> Observation:
    """Losses that settings change a little, and a nudge as much."""
    off = 1e-4 * len(settings)
    losses = tuple(2.0 * 0.98**at * (1 + off) for at in range(20))
    return Observation(command=("train.py",), ended="steps", seconds=1.0, first_losses=losses)


def test_side_by_side_the_same_is_found_as_one_after_the_other() -> None:
    asked: list[dict[str, Any]] = []

    def run(*, settings: dict[str, Any], **_: Any) -> Observation:
        asked.append(settings)
        return seen(settings)

    meeting = threading.Barrier(3)

    def run_beside(*, settings: dict[str, Any], on_progress: Any, **_: Any) -> Observation:
        on_progress(0.1, 0)
        meeting.wait(20)  # broken where the others have not begun
        return seen(settings)

    one, all_ = Judge(run, steps=20, side_by_side=False), Judge(run_beside, steps=20, side_by_side=True)
    assert one(NUMERIC) == all_(NUMERIC)
    assert one(NUMERIC).holds
    assert len(asked) == 3, "as it is, with the settings, nudged; then they are known"
    assert one.runs(exact=False) > one.runs(exact=True) > all_.runs(exact=False)


@pytest.mark.parametrize(("strays", "holds"), [(0.03, True), (0.001, False)])
def test_weights_are_off_the_other_way_before_settings_are_turned_down(strays: float, holds: bool) -> None:
    """How far one run strays is chance; two must have stayed closer than the settings have."""
    asked: list[float] = []

    def run(*, settings: dict[str, Any], **_: Any) -> Observation:
        nudge = settings.get("verify.nudge", 0.0)
        asked.append(nudge)
        off = 0.1 if "channels_last" in settings else 0.001 if nudge > 0 else strays if nudge < 0 else 0.0
        losses = tuple(2.0 * 0.98**at + off * (at > 2) for at in range(20))
        return Observation(command=("train.py",), ended="steps", seconds=1.0, first_losses=losses)

    found = Judge(run, steps=20, side_by_side=False)(NUMERIC)
    assert found.holds == holds
    assert sorted(asked) == [-(2.0**-12), 0.0, 0.0, 2.0**-12]


@pytest.mark.parametrize(
    ("settings", "tied"),
    [
        (NUMERIC, True),
        ({"compile": True, **EXACT}, True),
        ({"autocast": "bfloat16"}, True),
        (UNTIED, False),
        (EXACT, False),
        ({"loader.batch_size": 64, **NUMERIC}, False),
    ],
)
def test_dropout_is_tied_where_torchs_own_would_drop_others(settings: dict[str, Any], tied: bool) -> None:
    """To the last bit is said of torch's own, and another training is compared with other seeds anyway."""
    asked: list[bool] = []

    def run(*, settings: dict[str, Any], tie_draws: bool, tie_dropout: bool, **_: Any) -> Observation:
        assert tie_draws
        asked.append(tie_dropout)
        return seen(settings)

    judge = Judge(run, steps=20, side_by_side=False)
    judge(settings)
    assert set(asked) == {tied}
    asked.clear()
    judge(EXACT if tied else NUMERIC)
    assert len(asked) >= 2, "what was seen with the one does not count for the other"


@pytest.mark.parametrize("settings", [NUMERIC, EXACT])
def test_losses_that_are_the_same_until_it_fails_prove_nothing(settings: dict[str, Any]) -> None:
    def run(*, settings: dict[str, Any], **_: Any) -> Observation:
        whole = seen({})
        given = "loader.num_workers" in settings or "channels_last" in settings
        return replace(whole, ended="failed", first_losses=whole.first_losses[:8]) if given else whole

    found = Judge(run, steps=20, side_by_side=False)(settings)
    assert not found.holds
    assert "failed after 8 losses" in found.reason
    as_is = Judge(lambda **_: replace(seen({}), ended="failed"), steps=20, side_by_side=False)
    assert as_is(settings).holds, "it does so by itself"


OUT = "its output ended with: torch.OutOfMemoryError: CUDA out of memory."


@pytest.mark.parametrize("side_by_side", [False, True])
@pytest.mark.parametrize("failing", [{}, NUMERIC, {"verify.nudge": 2.0**-12}])
def test_where_a_run_fails_because_dropout_is_tied_torchs_own_is_compared(
    failing: dict[str, Any], side_by_side: bool
) -> None:
    asked: list[tuple[dict[str, Any], bool]] = []

    def run(*, settings: dict[str, Any], tie_dropout: bool, **_: Any) -> Observation:
        asked.append((settings, tie_dropout))
        if settings == failing and tie_dropout:
            return replace(seen({}), ended="failed", first_losses=(), notes=("a note", OUT))
        return replace(seen(settings), draws=tie_dropout)

    judge = Judge(run, steps=20, side_by_side=side_by_side)
    found = judge(NUMERIC)
    assert found.holds
    assert found.reason.startswith("20 losses within the band")
    assert found.reason.endswith(
        "; dropout was torch's own: with it tied to the seed the script failed (torch.OutOfMemoryError: CUDA out of "
        "memory.)"
    )
    assert not found.draws
    assert [one for one, tied in asked if not tied].count({}) == 1
    asked.clear()
    assert judge(NUMERIC) == found
    assert not asked, "all of it is known"


@pytest.mark.parametrize("slow", [{}, NUMERIC])
def test_where_a_run_is_too_slow_because_dropout_is_tied_torchs_own_is_compared(slow: dict[str, Any]) -> None:
    def run(*, settings: dict[str, Any], tie_dropout: bool, **_: Any) -> Observation:
        whole = seen(settings)
        late = replace(whole, ended="time", first_losses=whole.first_losses[:4])
        return late if settings == slow and tie_dropout else whole

    found = Judge(run, steps=20, side_by_side=False)(NUMERIC)
    assert found.holds
    assert found.reason.endswith("; dropout was torch's own: with it tied to the seed the script was too slow")


def test_a_run_that_fails_beside_others_is_made_once_more_by_itself() -> None:
    """Each of them takes the memory of its attention's scores."""
    asked: list[bool] = []
    at_work = threading.Semaphore(2)

    def run(*, settings: dict[str, Any], tie_dropout: bool, **_: Any) -> Observation:
        asked.append(tie_dropout)
        if not at_work.acquire(blocking=False):
            return replace(seen({}), ended="failed", first_losses=(), notes=(OUT,))
        time.sleep(0.5)
        at_work.release()
        return replace(seen(settings), draws=tie_dropout)

    judge = Judge(run, steps=20, side_by_side=True)
    found = judge(NUMERIC)
    assert found.holds
    assert found.draws
    assert "torch's own" not in found.reason
    assert asked == [True] * 4
    assert judge(NUMERIC) == found
    assert len(asked) == 4, "all of it is known"


def test_a_script_that_fails_with_torchs_dropout_too_is_compared_with_it_tied() -> None:
    asked: list[bool] = []

    def run(*, tie_dropout: bool, **_: Any) -> Observation:
        asked.append(tie_dropout)
        return replace(seen({}), ended="failed", first_losses=(), notes=(OUT,))

    found = Judge(run, steps=20, side_by_side=False)(NUMERIC)
    assert not found.holds
    assert found.reason == (
        "the losses could not be compared: 0 were seen, 5 are needed; as it is the script failed "
        "(torch.OutOfMemoryError: CUDA out of memory.)"
    )
    assert asked.count(False) == 1


def test_the_last_line_of_what_failed_with_the_settings_is_told() -> None:
    def run(*, settings: dict[str, Any], **_: Any) -> Observation:
        failed = replace(seen({}), ended="failed", first_losses=seen({}).first_losses[:8], notes=(OUT,))
        return failed if "loader.num_workers" in settings else seen(settings)

    found = Judge(run, steps=20, side_by_side=False)(EXACT)
    assert found.reason == (
        "with the settings the script failed after 8 losses (torch.OutOfMemoryError: CUDA out of memory.), as it is it "
        "does not"
    )


def test_where_nothing_was_printed_the_exit_status_is_told() -> None:
    def run(*, settings: dict[str, Any], **_: Any) -> Observation:
        return seen(settings) if not settings else replace(seen({}), ended="failed", exit_status=3)

    found = Judge(run, steps=20, side_by_side=False)(EXACT)
    assert found.reason == "with the settings the script failed after 20 losses (exit status 3), as it is it does not"


def test_whether_the_model_draws_is_known_of_runs_in_which_that_is_tied() -> None:
    def run(*, settings: dict[str, Any], tie_dropout: bool, **_: Any) -> Observation:
        return replace(seen(settings), draws=tie_dropout)

    judge = Judge(run, steps=20, side_by_side=False)
    assert judge(NUMERIC).draws
    assert not judge(EXACT).draws
    assert not Judge(lambda settings, **_: seen(settings), steps=20, side_by_side=False)(NUMERIC).draws


def test_where_one_fails_the_others_are_broken_off() -> None:
    ended: list[str] = []

    def run(*, settings: dict[str, Any], on_progress: Any, **_: Any) -> Observation:
        if settings == NUMERIC:
            time.sleep(0.1)
            raise OSError("no room on the device")
        try:
            until = time.monotonic() + 20
            while time.monotonic() < until:
                on_progress(0.1, 0)
                time.sleep(0.01)
        finally:
            ended.append("left")
        return seen(settings)

    began = time.monotonic()
    with pytest.raises(OSError, match="no room"):
        Judge(run, steps=20, side_by_side=True)(NUMERIC)
    assert ended == ["left", "left"]
    assert time.monotonic() - began < 15


COMPARING = """
import functools, sys
from fulltilt.launch.command import parse
from fulltilt.launch.search.judge import Judge
from fulltilt.launch.observe import observe
run = functools.partial(observe, parse(sys.argv[1:]), full=True)
Judge(run, steps=20, side_by_side=True)({"tf32": True})
"""


def test_sigterm_ends_all_of_them(tmp_path: Path) -> None:
    script = [str(SCRIPTS / "plain.py"), "--workers", "0", "--epochs", "1000000"]
    children: list[psutil.Process] = []
    command = [sys.executable, "-c", COMPARING, *script]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=tmp_path) as judge:
        try:
            until = time.monotonic() + 60
            while len(children) < 3 and time.monotonic() < until:
                time.sleep(0.1)
                children = psutil.Process(judge.pid).children()
            assert len(children) == 3
            time.sleep(0.5)
            judge.send_signal(signal.SIGTERM)
            assert judge.wait(30) == 128 + signal.SIGTERM
            _, alive = psutil.wait_procs(children, timeout=5)
            assert not alive
        finally:
            judge.kill()
            for child in children:  # each a session of its own, which would go on for days
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()


@pytest.mark.parametrize(
    ("device", "used", "total", "cores", "room"),
    [
        ("cuda:0", 10, 100, 16, True),
        ("cuda:0", 30, 100, 16, False),
        ("cuda:0", 10, 100, 4, False),
        ("cuda:0", None, None, 16, False),
        ("cpu", 10, 100, 16, False),
    ],
)
def test_room_for_several(device: str, used: int | None, total: int | None, cores: int, room: bool) -> None:
    training = Training(
        model="Net", parameters=1, dtype="float32", device=device, images=False, channels_last=False, compiled=False,
        autocast=None, tf32=False, cudnn_benchmark=False, optimizer="Adam", fused=False, foreach=False,
    )  # fmt: skip
    around = Surroundings(cores=cores, gpu_memory_bytes=used, gpu_memory_total_bytes=total)
    found = Observation(command=("train.py",), ended="steps", seconds=1.0, training=training, surroundings=around)
    assert has_room(found, cores) is room
