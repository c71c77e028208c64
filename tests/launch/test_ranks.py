from __future__ import annotations

from pathlib import Path

from fulltilt.launch.command import parse
from fulltilt.launch.observe import observe_all

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
