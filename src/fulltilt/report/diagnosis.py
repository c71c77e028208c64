"""The page of `fulltilt diagnose --html` and `fulltilt run --html`: how fast, how fast it could be, and why."""

from __future__ import annotations

from collections.abc import Sequence

from fulltilt import __version__, words
from fulltilt.diagnose.figures import Figures
from fulltilt.diagnose.finding import Diagnosis, LossCurves, Outcome, Trial
from fulltilt.diagnose.thresholds import THRESHOLDS
from fulltilt.machine.sample import Sample
from fulltilt.measure.observation import Loader

from .diagnosis_style import diagnosis_css
from .findings import findings_card, trials_card
from .losses import loss_chart
from .machine import machine_card, recording_cards
from .markup import Markup, bound, tag
from .page import card, document
from .phases import average_bar, key, timeline
from .steps_script import STEPS_SCRIPT


def diagnosis_page(
    diagnosis: Diagnosis,
    *,
    trials: Sequence[Trial] = (),
    after: Outcome | None = None,
    losses: LossCurves | None = None,
    recording: Sequence[Sample] | None = None,
    untuned: str | None = None,
    written_by: str = "fulltilt diagnose",
) -> str:
    """One HTML document that needs nothing beside itself.

    Args:
        untuned: why a script that was to be made faster is run as it is.
    """
    figures = Figures(observation=diagnosis.observation, limits=diagnosis.limits)
    command = " ".join(diagnosis.observation.command)
    loader = figures.train_loader
    return document(
        f"{command} · fulltilt",
        _heading(diagnosis, command, written_by),
        _rates_card(diagnosis, figures, after, untuned),
        _time_card(figures, after) if figures.steps else None,
        *(findings_card(title, findings) for title, findings in diagnosis.sections()),
        trials_card(trials, unit=figures.unit) if trials else None,
        card(tag("h2", "The first losses, before and after"), _verified(after), loss_chart(losses))
        if losses is not None
        else None,
        _loader_card(loader) if loader is not None and loader.stages else None,
        machine_card(diagnosis.observation),
        *(recording_cards(recording) if recording else ()),
        _notes(diagnosis),
        tag("footer", f"Written by fulltilt {__version__}. This file loads nothing from anywhere."),
        style=diagnosis_css(),
        script=STEPS_SCRIPT,
    )


def _heading(diagnosis: Diagnosis, command: str, written_by: str) -> Markup:
    seen = diagnosis.observation
    facts = [f"{len(seen.steps)} steps watched"]
    if seen.training is not None:
        facts.append(f"{seen.training.model}, {words.parameters(seen.training.parameters)}")
        facts.append(seen.surroundings.gpu if seen.surroundings and seen.surroundings.gpu else seen.training.device)
    if seen.world > 1:
        facts.append(f"{seen.world} ranks")
    return tag(
        "header",
        tag("p", written_by, class_="eyebrow"),
        tag("h1", command),
        tag("p", *(tag("span", fact) for fact in facts), class_="meta"),
    )


def _rates_card(diagnosis: Diagnosis, figures: Figures, after: Outcome | None, untuned: str | None) -> Markup:
    room = diagnosis.headroom
    if room is None:
        word, tone = "headroom not known" if diagnosis.unsettled else "limit not measured", "quiet"
    elif room < THRESHOLDS.no_headroom:
        word, tone = "no headroom", "good"
    else:
        word, tone = f"{words.percent(room)} headroom", "warn" if room < 0.3 else "bad"
    before = figures.rate if after is None or after.before is None else after.before
    ranks = " per rank" if diagnosis.observation.world > 1 else ""
    rates: list[tuple[str, float | None, str]] = [("as it is", before, "as-it-is")]
    if after is not None:
        rates.append(("with the plan", after.samples_per_second, "planned"))
    rates.append(("limit of its step", diagnosis.limits.step, "ceiling"))
    if after is not None and after.limit is not None:
        rates.append(("limit with the plan", after.limit, "ceiling"))
    if figures.unit == "samples" and diagnosis.limits.loader is not None:
        rates.append(("its loader alone", diagnosis.limits.loader, "alone"))
    # A loader many times as fast as everything else must not make the rest invisible: its bar ends at twice the most.
    most = max([rate for name, rate, _ in rates if rate and "loader" not in name], default=0.0)
    top = min(max([rate for _, rate, _ in rates if rate], default=1.0), 2 * most) or 1.0
    rows = [
        tag(
            "div",
            tag("span", name, class_="what"),
            tag("div", tag("div", class_=f"bar {kind}", style=f"width:{100 * min(rate / top, 1):.2f}%"), class_="lane")
            if rate
            else tag("div", class_="lane"),
            tag("b", bound(words.rate(rate, figures.unit) + ranks)),
            class_="row",
        )
        for name, rate, kind in rates
    ]
    mean = after.samples_per_second / before if after and after.samples_per_second and before else None
    beside = (
        tag("div", tag("b", f"{mean:.2f}×"), tag("small", "with the plan"), class_="mean")
        if mean is not None
        else tag("div", tag("b", bound(words.rate(figures.rate, figures.unit) + ranks)), class_="mean")
    )
    heading = tag(
        "div",
        tag("div", tag("span", word, class_=f"word {tone}")),
        beside,
        tag("p", bound(diagnosis.verdict.removeprefix(f"{word}. ")), class_="why"),
        class_="verdict",
    )
    left = None if untuned is None else f"Run as it is: {untuned}."
    if after is not None and after.remaining is not None:
        left = f"With the plan it is {after.remaining}."
    note = tag("p", bound(left), class_="note") if left is not None else None
    return card(heading, tag("div", *rows, class_="rates"), note, label="How fast")


def _time_card(figures: Figures, after: Outcome | None) -> Markup:
    bars = [("as it is", figures)]
    if after is not None and after.observation is not None and after.observation.steps:
        bars.append(("after", Figures(observation=after.observation, limits=figures.limits)))
    longest = max(one.whole for _, one in bars)
    attributed = figures.observation.attributed
    said = "" if attributed is None else f"{words.percent(attributed)} of the time watched lies in a known phase"
    rest = "." if attributed is None or attributed > 0.995 else "; the rest is the script's own."
    return card(
        tag("h2", "Where the time of a step goes"),
        tag("div", *(average_bar(name, one, longest=longest) for name, one in bars)),
        key(figures, *(one for _, one in bars[1:])),
        tag("p", bound(said + rest), class_="note") if said else None,
        timeline(figures.observation.steps),
        label="Where the time goes",
    )


def _verified(after: Outcome | None) -> Markup | None:
    return tag("p", bound(after.verified)) if after is not None and after.verified else None


def _loader_card(loader: Loader) -> Markup:
    ranked = sorted(loader.stages, key=lambda stage: -stage.seconds)
    longest = ranked[0].seconds or 1.0
    rows = []
    waits = False
    for stage in ranked:
        waited = (
            0.0 if stage.cpu_seconds is None else max(1 - stage.cpu_seconds / stage.seconds, 0) if stage.seconds else 0
        )
        waits = waits or waited > 0.02
        inner = tag("i", class_="waited", style=f"width:{100 * waited:.1f}%") if waited > 0.02 else None
        rows += [
            tag("span", stage.name),
            tag("div", tag("div", inner, class_="bar", style=f"width:{100 * stage.seconds / longest:.2f}%")),
            tag("b", words.seconds(stage.seconds)),
        ]
    how = words.many(loader.num_workers, "worker") if loader.num_workers else "no workers"
    said = f"{loader.dataset}: time of one core for a sample, {how}." + (
        " The part in orange was waited, for a disk or for a core." if waits else ""
    )
    return card(
        tag("h2", "Inside the loader"),
        tag("div", *rows, class_="stages"),
        tag("p", said, class_="note"),
        label="Inside the loader",
    )


def _notes(diagnosis: Diagnosis) -> Markup | None:
    notes = (*diagnosis.notes, *diagnosis.observation.notes)
    if not notes:
        return None
    return card(tag("h2", "Notes"), tag("ul", *(tag("li", note) for note in notes), class_="notes"), label="Notes")
