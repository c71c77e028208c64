"""What `fulltilt run` says of a plan: what it holds, what it gave, what an earlier search measured."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from fulltilt.cli.saying import say

if TYPE_CHECKING:
    from fulltilt.launch.command import Command
    from fulltilt.launch.search.plan import Plan
    from fulltilt.launch.search.tune import NotTuned, Tuned
    from fulltilt.measure.observation import Observation


def earlier(plan: Plan) -> str:
    """Of a plan without settings, why the script is run as it is: what was measured then is no figure of this run."""
    from fulltilt.words import amount

    measured = "" if plan.before is None else f"measured {amount(plan.before)} {plan.unit} and "
    return f"an earlier search {measured}found nothing that pays; --tune searches again"


def show_plan(command: Command, plan: Plan | None, found: Tuned | NotTuned | None) -> None:
    from fulltilt.launch.search.edits import by_hand, only_by_hand
    from fulltilt.launch.search.plan import to_toml
    from fulltilt.launch.search.tune import Tuned

    if plan is None or (isinstance(found, Tuned) and not found.settled):
        print("no plan: the script would be run as it is")
        return
    print(to_toml(plan))
    diagnosis = None if found is None else found.diagnosis
    loader = None if diagnosis is None else diagnosis.observation.train_loader
    training = None if diagnosis is None else diagnosis.observation.training
    lines = by_hand(
        plan.settings,
        () if diagnosis is None else diagnosis.findings,
        command=shlex.join(command.argv("python")),
        optimizer=None if training is None else training.optimizer,
        augmentation=None if loader is None else loader.augmentation,
    )
    more = () if diagnosis is None else only_by_hand(diagnosis.findings)
    said = ["The same by hand:", *lines] if lines else []
    said += ["By hand only, with the predicted gain:", *(f"  {line}" for line in more)] if more else []
    nothing = "Nothing to set: the script is best left as it is. fulltilt diagnose says what an edit would give."
    print("\n".join(said) if said else nothing)


def remaining_of(plan: Plan | None, seen: Observation | None) -> str | None:
    """What keeps the script with its plan below its limit, in the run that has just ended."""
    from fulltilt.diagnose.remaining import remaining
    from fulltilt.machine.cores import read_cores

    if plan is None or not plan.settings or seen is None:
        return None
    return remaining(seen, plan.limit, cores=read_cores().usable)


def summarise(plan: Plan | None, found: Tuned | NotTuned | None, seen: Observation | None, left: str | None) -> None:
    """Before, after, limit, in one line on stderr, and what is left; why nothing was tried, where that was looked at;
    nothing where nothing was measured. What the search measured, and when, is told from what this run gave."""
    from fulltilt.launch.search.tune import NotTuned

    if isinstance(found, NotTuned) and found.diagnosis is not None:  # said before the script's own output, too
        say(f"run as it is: {found.reason}")
    if plan is None or plan.before is None or not (found or plan.settings):
        return
    line = _outcome(plan, seen, searched=found is not None)
    if line is None:
        return
    say(line)
    if left is not None:
        say(left)


def _outcome(plan: Plan, seen: Observation | None, *, searched: bool) -> str | None:
    from fulltilt.launch.search.candidates import describe
    from fulltilt.launch.search.rate import rate_of
    from fulltilt.words import amount

    assert plan.before is not None
    before = f"{amount(plan.before)} {plan.unit}"
    limit = "" if plan.limit is None else f", its step's limit {amount(plan.limit)}"
    if not plan.settings:
        return f"run as it is: the search measured {before}{limit}"
    rate = None if seen is None else rate_of(seen)
    after = plan.after if rate is None else rate.value
    if after is None:
        return None
    times = f"{after / plan.before:.2g}×" if after / plan.before < 10 else f"{after / plan.before:.0f}×"
    if searched:
        when = "" if rate is not None else " in its trials"
        return f"before {before}, after {amount(after)}{when} ({times}){limit}: {describe(plan.settings)}"
    now = f"this run {amount(after)}" if rate is not None else f"with its plan {amount(after)}"
    return f"an earlier search measured {before} before{limit}; {now} ({times}): {describe(plan.settings)}"
