from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fulltilt.launch.command import Command, parse
from fulltilt.launch.observe import observe_all
from fulltilt.launch.run import execute

SCRIPT = str(Path(__file__).parent / "scripts" / "ranks.py")


def test_every_rank_is_seen_and_all_stop_at_the_same_step() -> None:
    ranks = observe_all(parse([SCRIPT, "0.005"], processes=2), max_steps=40)
    assert [(one.rank, one.world) for one in ranks] == [(0, 2), (1, 2)]
    assert ranks[0].exit_status == 0
    assert {one.ended for one in ranks} == {"steps"}
    last = {one.steps[-1].number for one in ranks}
    assert last == {47}  # rank 0 decides at 40, all of them stop eight steps later
    slow = ranks[1].steps
    assert sum(step.phases["other"] for step in slow) > 0.004 * len(slow)  # it sleeps
    fast = ranks[0].steps
    assert sum(step.phases["backward"] for step in fast) > 0.003 * len(fast)  # it waits for the other


@pytest.mark.parametrize("full", [False, True])
def test_ranks_are_known_after_their_group_is_gone(full: bool, tmp_path: Path) -> None:
    script = Path(SCRIPT).with_name("spawned.py")
    ranks = observe_all(parse([str(script), str(tmp_path / "meeting")]), full=full)
    assert [(one.rank, one.world, one.ended) for one in ranks] == [(0, 2, "script"), (1, 2, "script")]
    assert all(one.steps[-1].number == 29 for one in ranks)


@pytest.mark.parametrize("trial", [True, False])
def test_a_torchrun_of_ours_leaves_no_folder_behind(
    trial: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("PET_LOG_DIR", raising=False)
    command = parse([SCRIPT, "0"], processes=2)
    if trial:
        assert observe_all(command, max_steps=10)[0].exit_status == 0
    else:
        assert execute(command, {}) == (0, None)
    assert not list(tmp_path.glob("torchelastic_*"))


WATCHERS = """
import os, sys
from fulltilt.launch.command import Command, parse
from fulltilt.launch.observe import observe_all
for mode in ("as is", "replay"):
    (seen,) = observe_all(parse(sys.argv[1:]), mode=mode, max_steps=20)
    told = (mode, seen.rank, seen.world, seen.exit_status, seen.ended, seen.steps[-1].number)
    sys.stdout.write(" ".join(map(str, told)) + "\\n")  # at once: two processes' lines must not mingle
"""


def test_under_torchrun_each_rank_watches_its_own_and_all_stop_together(tmp_path: Path) -> None:
    watcher = tmp_path / "watch.py"
    watcher.write_text(WATCHERS)
    started = Command(target=str(watcher), arguments=(SCRIPT, "0"), processes=2)
    done = subprocess.run(started.argv(), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "as is 0 2 0 steps 27",
        "as is 1 2 0 steps 27",
        "replay 0 2 0 steps 27",
        "replay 1 2 0 steps 27",
    ]
