"""The one sentence above the bars: it agrees with them, and names only what keeps the script from its limit."""

from __future__ import annotations

from rich.console import Console

from fulltilt.cli.diagnose_view import view
from fulltilt.diagnose.serial import from_json, to_json
from fulltilt.report import diagnosis_page

STARVED = {"data wait": 40}
ON_CPU = {
    "training": {"device": "cpu", "threads": 1},
    "surroundings": {"gpu": None, "gpu_share": None},
}


def test_no_headroom_is_told_beside_a_limit_that_lies_further_off(planted):
    """Nothing waits, and the limit's bar is a little longer."""
    found = planted(phases={"data wait": 0, "copy": 0}, limit=28, **ON_CPU).diagnose()
    assert found.headroom < 0.05
    assert not found.unsettled
    assert found.verdict == (
        "No headroom: feeding it faster gains nothing. Its limit lies 11 % further off: the machine was less busy when "
        "it was measured."
    )
    near = planted(phases={"data wait": 0, "copy": 0}, limit=31, **ON_CPU).diagnose()
    assert near.verdict == (
        "No headroom: the script trains at 98 % of its step's limit, and feeding it faster gains nothing."
    )


def test_where_the_machine_was_far_busier_than_at_the_limit_nothing_is_told(planted):
    """Nothing waits, yet the limit's bar is 1.7 times as long: 104 and 177 samples/s."""
    plant = planted(phases={"data wait": 0, "copy": 0}, limit=18.6, **ON_CPU)
    found = plant.diagnose()
    assert (found.headroom, found.unsettled) == (None, True)
    assert found.verdict == (
        "Whether feeding it faster gains anything can't be told: the machine was busier while the script was watched "
        "than while its limit was measured (41 % of the time has no other explanation). Measure again when it is quiet."
    )
    console = Console(width=100, force_terminal=True)
    with console.capture() as shown:
        console.print(view(found, width=100))
    assert "\x1b[1;32m" not in shown.get(), "no green verdict"
    page = diagnosis_page(found)
    assert "headroom not known" in page
    assert "no headroom" not in page
    assert from_json(to_json(found)) == found
    older = {key: value for key, value in to_json(found).items() if key != "unsettled"}
    assert not from_json(older).unsettled, "as was written before this was told"


def test_headroom_that_was_seen_is_told_whatever_lies_beyond(planted):
    found = planted(phases=STARVED, limit=10, loader={"num_workers": 0}, **ON_CPU).diagnose()
    assert found.unsettled
    assert found.headroom > 0.5
    assert "headroom. The training process loads its own data" in found.verdict


def test_headroom_is_not_a_finding_about_the_step(planted):
    """Half of the step is waited for data that no worker would bring faster, and the optimizer is slow, too."""
    found = planted(
        phases={"data wait": 30, "optimizer": 9}, limit=35, loader_rate=1000, stages={"item": 0.9},
        loader={"num_workers": 0, "batch_bytes": 10**9}, training={"fused": False, "foreach": True},
    ).diagnose()  # fmt: skip
    assert [finding.cause for finding in found.findings] == ["unfused-optimizer"]
    assert found.verdict == (
        "50 % headroom. 43 % of the time is batches that are made between the steps, 6.5 % of the time is a step "
        "slowed down by the work of feeding it; nothing is known that would make it less. Besides: AdamW updates the "
        "weights with many small operations."
    )


def test_the_first_finding_that_explains_it_is_named_not_the_first_of_all(planted):
    plant = {"phases": {"data wait": 3}, "loader": {"num_workers": 2}, "loader_rate": 800, "stages": {"item": 2.5}}
    found = planted(**plant, outside={"eval": 0.6 * 60 * 0.0318}).diagnose()
    assert [finding.cause for finding in found.findings] == ["evaluation", "too-few-workers"]
    assert found.verdict == "9.2 % headroom. 2 workers cannot load as fast as the step trains."


def test_what_wins_little_explains_a_part(planted):
    """Batches so large that handing them over takes workers twice as long as making them."""
    plant = {"phases": STARVED, "loader_rate": 800, "stages": {"item": 1.25}}
    for size, told in ((19, ""), (180, " That explains a part of it: +10 % is predicted.")):
        found = planted(**plant, loader={"num_workers": 0, "batch_bytes": size * 10**6}).diagnose()
        assert found.verdict == (
            "56 % headroom. The training process loads its own data: while it loads it does not train." + told
        )


def test_own_code_that_takes_more_than_the_first_finding_is_what_is_told(planted):
    """An optimizer of 2 ms that could be fused, and 25 ms in which the loop does something else."""
    slow = {"training": {**ON_CPU["training"], "fused": False, "foreach": True}, "surroundings": ON_CPU["surroundings"]}
    phases = {"data wait": 0, "copy": 0, "forward": 2, "backward": 3}
    for own, told in ((25, "of each step is the script's own code between the phases"), (1, "many small operations")):
        found = planted(
            phases={**phases, "optimizer": 2, "other": own}, limit=7 + own, loader_rate=10**6, **slow
        ).diagnose()
        assert found.findings[0].cause == "unfused-optimizer"
        assert found.verdict.startswith("No headroom")
        assert found.verdict.endswith(f"{told}.")


def test_a_loader_that_another_thread_asks_is_told(planted):
    """Its waits are in no phase: what is not seen is not said to be none."""
    beside = {"role": "unknown", "elsewhere": True}
    found = planted(phases={"other": 40}, limit=None, loader=beside).diagnose()
    assert found.verdict.startswith(
        "The step's limit could not be measured. 56 % of each step is waiting for the thread"
    )
    (first, *_) = found.findings
    assert first.cause == "own-code"
    assert "another thread asks the DataLoader for batches" in first.evidence[0]
    assert "in the loop itself" in first.fix
    assert first.place is not None
    (told,) = (note for note in found.notes if "limit was not measured" in note)
    assert "another thread than the one that trains" in told


def test_own_code_is_told_without_a_limit_too(planted):
    slow = {"training": {**ON_CPU["training"], "fused": False, "foreach": True}, "surroundings": ON_CPU["surroundings"]}
    phases = {"data wait": 0, "copy": 0, "forward": 2, "backward": 3, "optimizer": 2}
    for own, told in ((25, "the script's own code between the phases."), (1, "many small operations.")):
        found = planted(phases={**phases, "other": own}, limit=None, has_loader=False, **slow).diagnose()
        assert found.findings[0].cause == "unfused-optimizer"
        assert found.verdict.startswith("The step's limit could not be measured.")
        assert found.verdict.endswith(told)
