"""Scripts with one planted cause each that train on a GPU: the planted cause is the first finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from fulltilt.diagnose import diagnose
from fulltilt.launch.command import Command
from fulltilt.launch.observe import observe

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

SCRIPTS = Path(__file__).parents[1] / "diagnose" / "scripts" / "gpu"
PLANTED = {
    "hidden_sync": "hidden-sync",
    "mask_sync": "hidden-sync",
    "blocking_copies": "blocking-copies",
    "too_few_workers": "too-few-workers",
    "small_batch": "small-batch",
    "tf32": "tf32",
    "precision": "precision",
    "channels_last": "channels-last",
    "compile": "compile",
    "unfused_optimizer": "unfused-optimizer",
    "in_memory": "in-memory",
}


def diagnosed(name):
    command = Command(target=str(SCRIPTS / f"{name}.py"))
    options = {"max_steps": 100, "max_seconds": 6.0, "deadline_seconds": 120.0}
    seen = observe(command, **options)
    if not seen.loaders:
        return diagnose(seen)
    replay, loader = (observe(command, mode=mode, **options) for mode in ("replay", "loader"))
    return diagnose(seen, replay=replay, loader=loader)


def told(found):
    causes = [(finding.cause, finding.gain, finding.limit_gain) for finding in found.findings]
    return found.verdict, found.limits, causes, found.observation.training, found.observation.surroundings


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", PLANTED)
def test_the_planted_cause_is_the_first_finding(name):
    found = diagnosed(name)
    assert found.findings, told(found)
    assert found.findings[0].cause == PLANTED[name], told(found)


@pytest.mark.timeout(400)
def test_a_script_with_no_fault_has_no_headroom_and_no_finding():
    found = diagnosed("no_fault")
    assert found.verdict.startswith("No headroom"), told(found)
    assert found.findings == (), told(found)
