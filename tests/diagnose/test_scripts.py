"""Real scripts with one planted cause each, watched for a few seconds: the planted cause is the first finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from fulltilt.diagnose import diagnose
from fulltilt.launch.command import Command
from fulltilt.launch.observe import observe, observe_all

SCRIPTS = Path(__file__).parent / "scripts"

FED = {
    "single_process": "single-process",
    "slow_transform": "slow-transform",
    "slow_disk": "slow-disk",
    "slow_collate": "slow-collate",
    "in_memory": "in-memory",
}
"""Causes that need the step's limit too."""
WITH_WORKERS = {"slow_disk"}
"""Those whose loader has to be measured alone; without workers its work is the wait itself."""
SEEN = {
    "restarted_workers": "restarted-workers",
    "evaluation": "evaluation",
    "checkpoints": "checkpoints",
    "unfused_optimizer": "unfused-optimizer",
    "too_many_threads": "too-many-threads",
    "memory_growth": "memory-growth",
}


STEPS = {"memory_growth": 60, "slow_disk": 80}
"""Memory is read five times a second, and eight readings are the least that tell of growth; the eight workers that
slow_disk is to have give 16 batches that lay ready, and then bursts of eight."""


def watch(name, mode="as is", settings=None):
    command = Command(target=str(SCRIPTS / f"{name}.py"))
    steps = STEPS.get(name, 30)
    return observe(command, mode=mode, settings=settings, max_steps=steps, max_seconds=4.0, deadline_seconds=60.0)


def told(found):
    return [(finding.cause, finding.gain, finding.evidence) for finding in found.findings]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", FED)
def test_a_planted_fault_of_feeding_is_the_first_finding(name):
    alone = watch(name, "loader") if name in WITH_WORKERS else None
    found = diagnose(watch(name), replay=watch(name, "replay"), loader=alone)
    assert found.headroom is not None
    assert found.headroom > 0.1, told(found)
    assert found.findings, found.verdict
    first = found.findings[0]
    assert first.cause == FED[name], told(found)
    if name == "slow_disk":  # samples are waited for, not worked at: a busy machine changes little
        after = watch(name, settings=first.settings)
        gained = after.samples_per_second / found.observation.samples_per_second - 1
        assert gained == pytest.approx(first.gain, rel=0.3)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", SEEN)
def test_a_planted_fault_is_the_first_finding(name):
    found = diagnose(watch(name))
    assert found.findings, found.verdict
    assert found.findings[0].cause == SEEN[name], told(found)


@pytest.mark.timeout(120)
def test_a_script_with_no_fault_has_no_headroom_and_no_finding():
    found = diagnose(watch("no_fault"), replay=watch("no_fault", "replay"))
    said = "Whether feeding it faster" if found.unsettled else "No headroom"  # others may use the machine just then
    assert found.verdict.startswith(said), (found.verdict, found.limits, told(found))
    assert found.findings == (), told(found)


@pytest.mark.timeout(120)
def test_a_slow_rank_is_the_first_finding():
    command = Command(target=str(SCRIPTS / "slow_rank.py"), processes=2)
    ranks = observe_all(command, max_steps=30, max_seconds=4.0, deadline_seconds=60.0)
    assert [one.rank for one in ranks] == [0, 1]
    found = diagnose(ranks[0], ranks=ranks)
    assert found.findings[0].cause == "slow-rank", told(found)
    assert "Rank 1" in found.findings[0].title
    assert "data wait" in found.findings[0].evidence[1]
