"""What to try, in which order, and what to keep: pure policy. trials.py runs what this asks for.

    search ──► Settings ──► trials.py ──► Measured ──► search ──► … ──► a plan: each setting a decision

Precision first, because it moves everything else; then memory format, optimizer and convolution algorithms, which are
quick to try; then torch.compile, which is not; and the CUDA graph over what has won so far. What compiling or a graph
may have turned round is looked at once more at the end.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, Literal

from fulltilt.machine.decision import Decision
from fulltilt.train.step.precision import Formats, Precision
from fulltilt.words import milliseconds

Auto = Literal["auto"]
Plan = dict[str, Decision[Any]]

LEAST_GAIN = 0.02
"""What changes numbers or costs time to set up has to pay this much."""
FINE_GAIN = 0.005
"""What changes neither has only to stand out from the noise."""
CLEAR_GAIN = 0.1
"""What was won by so much is not looked at again: it would be compiled anew for that."""
LEAST_STEPS = 100
"""A run shorter than this is over before trials pay."""
COMPILE_SECONDS, COMPILE_SECONDS_PER_LAYER = 5.0, 0.25
"""What compiling a model takes, more or less; only a run that could win that back is worth trying it."""
COMPILE_GAIN = 0.35
"""What compiling saves of a step at best, more or less."""
GRAPH_STEP_SECONDS = 0.06
"""Above this a step's launches are hidden behind its kernels; a graph would only hold memory."""
VARYING = "batches differ in shape from step to step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One way to run a step."""

    precision: Precision = "fp32"
    channels_last: bool = False
    fused: bool = False
    cudnn_benchmark: bool = False
    compile: bool = False
    cuda_graph: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the user said; "auto" leaves it to the trials."""

    channels_last: bool | Auto = "auto"
    fused: bool | Auto = "auto"
    compile: bool | Auto = "auto"
    cuda_graph: bool | Auto = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known before anything is tried."""

    gpu: bool
    formats: Formats
    convolutions: bool
    """Whether the model has any: only there is a choice of algorithms."""
    planar: bool
    """Whether some are in two dimensions: only there does the memory format matter."""
    layers: int
    cudnn_benchmark: bool = False
    """Whether convolution algorithms are tuned already: then they stay so."""
    not_fused: str | None = None
    """Why the optimizers can't be fused."""
    fused_already: bool = False
    not_graphed: str | None = None
    """Why a CUDA graph can't hold the step."""
    expected_steps: int | None = None
    varying: bool = False
    """Whether each batch has another shape: what is made for one shape only is not worth its while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What came of a trial."""

    step_seconds: float | None = None
    setup_seconds: float = 0.0
    problem: str | None = None
    """Why there is no figure."""


Search = Generator[Settings, Measured, Plan]


def first_settings(wishes: Wishes, facts: Facts) -> Settings:
    """How to run before anything was tried: what is asked for, else the plain way."""
    fused = facts.fused_already or (wishes.fused is True and facts.not_fused is None)
    return Settings(
        precision=facts.formats.allowed[0],
        channels_last=wishes.channels_last is True,
        cudnn_benchmark=facts.cudnn_benchmark,
        # fp16 skips steps that overflow; only fused optimizers can do so without asking the device.
        fused=fused or (facts.formats.allowed[0] == "fp16" and wishes.fused == "auto" and facts.not_fused is None),
    )


def settings_of(plan: Plan) -> Settings:
    return Settings(**{name: decision.value for name, decision in plan.items()})


def plan_untried(wishes: Wishes, facts: Facts) -> Plan | None:
    """The plan, where nothing has to be tried for it."""
    try:
        next(search(wishes, facts))
    except StopIteration as done:
        plan: Plan = done.value
        return plan
    return None


def search(wishes: Wishes, facts: Facts) -> Search:
    """Yields what to measure, is sent what came out, returns the plan."""
    state = _State(first_settings(wishes, facts))
    state.settle("precision", facts.formats.reason)
    _say_wishes(state, wishes, facts)
    skip = _why_no_trials(facts)
    asked = wishes.compile is True or wishes.cuda_graph is True
    if skip is not None and not asked:
        return state.close(skip)
    first = yield state.best
    if first.step_seconds is None:
        return state.close(f"not tried: the step as it stands could not be timed ({first.problem})")
    state.seconds = first.step_seconds
    if skip is None:
        yield from _precision(state, facts)
        yield from _flag(state, "channels_last", LEAST_GAIN)
        yield from _flag(state, "fused", FINE_GAIN)
        yield from _flag(state, "cudnn_benchmark", FINE_GAIN)
    yield from _compile(state, wishes, facts, skip)
    yield from _graph(state, wishes, facts, skip)
    if skip is None:
        yield from _fewer_bits_compiled(state, facts)
    return state.close(skip or "not tried")


class _State:
    """The best so far and what has been decided."""

    def __init__(self, start: Settings) -> None:
        self.best = start
        self.seconds = 0.0
        self.plan: Plan = {}
        self.compile_seconds = 0.0
        self.again: list[Precision] = []
        """Were looked at once more."""

    def settle(self, name: str, reason: str, **evidence: Any) -> None:
        self.plan[name] = Decision(value=getattr(self.best, name), reason=reason, evidence=evidence)

    def close(self, reason: str) -> Plan:
        for name in Settings.__dataclass_fields__:
            if name not in self.plan:
                self.settle(name, reason)
        return self.plan

    def consider(self, found: Measured, least_gain: float, **change: Any) -> bool:
        """Take the change over if it pays."""
        pays = found.step_seconds is not None and found.step_seconds <= self.seconds * (1.0 - least_gain)
        if pays and found.step_seconds is not None:
            self.best, self.seconds = replace(self.best, **change), found.step_seconds
        return pays


def _say_wishes(state: _State, wishes: Wishes, facts: Facts) -> None:
    if wishes.channels_last != "auto":
        state.settle("channels_last", "asked for")
    elif not facts.planar:
        state.settle("channels_last", "the model has no convolutions in two dimensions")
    if facts.fused_already:
        state.settle("fused", "the optimizer was made fused")
    elif facts.not_fused is not None:
        state.settle("fused", facts.not_fused)
    elif wishes.fused != "auto":
        state.settle("fused", "asked for")
    elif state.best.fused:
        state.settle("fused", "fp16's overflow check stays on the device with it")
    if facts.cudnn_benchmark:
        state.settle("cudnn_benchmark", "switched on already")
    elif facts.varying:
        state.settle("cudnn_benchmark", VARYING)
    elif not facts.convolutions:
        state.settle("cudnn_benchmark", "the model has no convolutions")


def _why_no_trials(facts: Facts) -> str | None:
    if not facts.gpu:
        return "on the CPU: the plain loop's maths, bit for bit"
    if facts.expected_steps is not None and facts.expected_steps < LEAST_STEPS:
        return f"a run of {facts.expected_steps} steps is over before trials pay"
    return None


def _precision(state: _State, facts: Facts) -> Search:
    """Fewer bits have to pay for themselves."""
    start, seconds = state.best.precision, state.seconds
    evidence = {start: seconds}
    for other in facts.formats.allowed[1:]:
        found = yield replace(state.best, precision=other)
        if found.step_seconds is None:
            continue
        evidence[other] = found.step_seconds
        if state.seconds > found.step_seconds * (1.0 - LEAST_GAIN):
            state.best, state.seconds = replace(state.best, precision=other), found.step_seconds
    if len(evidence) > 1:
        figures = ", ".join(f"{name} {milliseconds(value)}" for name, value in evidence.items())
        state.settle("precision", f"{figures} a step; {facts.formats.reason}", **evidence)
    return state.plan


def _flag(state: _State, name: str, least_gain: float) -> Search:
    if name in state.plan:
        return state.plan
    before = state.seconds
    change: dict[str, Any] = {name: True}
    found = yield replace(state.best, **change)
    state.consider(found, least_gain, **change)
    state.settle(name, _compared(found, before, least_gain), off=before, on=found.step_seconds)
    return state.plan


def _compile(state: _State, wishes: Wishes, facts: Facts, skip: str | None) -> Search:
    if wishes.compile is False:
        state.settle("compile", "asked for")
        return state.plan
    if wishes.compile == "auto":
        why = skip or (VARYING if facts.varying else _too_short(state.seconds, facts))
        if why is not None:
            state.settle("compile", why)
            return state.plan
    before = state.seconds
    found = yield replace(state.best, compile=True)
    state.compile_seconds = found.setup_seconds
    if wishes.compile is True:
        if found.step_seconds is not None:
            state.best, state.seconds = replace(state.best, compile=True), found.step_seconds
        reason = "asked for" if found.problem is None else f"asked for, but it failed: {found.problem}"
    else:
        state.consider(found, LEAST_GAIN, compile=True)
        reason = _compared(found, before, LEAST_GAIN)
        if found.problem is None:
            reason += f"; compiling took {found.setup_seconds:.0f} s"
    state.settle("compile", reason, off=before, on=found.step_seconds, setup_seconds=found.setup_seconds)
    return state.plan


def _graph(state: _State, wishes: Wishes, facts: Facts, skip: str | None) -> Search:
    asked = wishes.cuda_graph is True
    why = "asked for" if wishes.cuda_graph is False else facts.not_graphed or (VARYING if facts.varying else None)
    if why is None and not asked:
        why = skip
        if why is None and state.seconds > GRAPH_STEP_SECONDS:
            why = f"a step of {milliseconds(state.seconds)} hides its launches"
    if why is not None:
        state.settle("cuda_graph", why)
        return state.plan
    before, was_fused = state.seconds, state.best.fused
    change: dict[str, Any] = {"cuda_graph": True}
    if wishes.fused == "auto" and facts.not_fused is None:
        change["fused"] = True  # else the update stays outside of the graph
    found = yield replace(state.best, **change)
    if asked and found.step_seconds is not None:
        state.best, state.seconds = replace(state.best, **change), found.step_seconds
        reason = "asked for"
    else:
        state.consider(found, FINE_GAIN, **change)
        reason = _compared(found, before, FINE_GAIN)
    state.settle("cuda_graph", reason, off=before, on=found.step_seconds)
    if skip is None and found.step_seconds is not None:
        if state.best.cuda_graph and state.seconds <= before * (1.0 - LEAST_GAIN):
            yield from _again_in_a_graph(state, wishes, facts)
        elif wishes.compile == "auto" and not state.best.compile and _was_compiled(state):
            yield from _flag_again(state, "compile") if state.best.cuda_graph else _both(state, change)
    if state.best.fused and not was_fused:
        state.settle("fused", "the CUDA graph needs it: learning rates are read on the device")
    return state.plan


def _was_compiled(state: _State) -> bool:
    return state.plan["compile"].evidence.get("on") is not None


def _again_in_a_graph(state: _State, wishes: Wishes, facts: Facts) -> Search:
    """Where launching took part of a step's time, what was decided outside of a graph is looked at again inside."""
    if wishes.compile == "auto" and _was_compiled(state):
        yield from _flag_again(state, "compile")
    if facts.planar and wishes.channels_last == "auto":
        yield from _memory_format_again(state, facts)
    if facts.convolutions and not state.best.cudnn_benchmark:
        before = state.seconds
        found = yield replace(state.best, cudnn_benchmark=True)
        if state.consider(found, FINE_GAIN, cudnn_benchmark=True):
            state.settle("cudnn_benchmark", f"in a graph: {_compared(found, before, FINE_GAIN)}")
    for other in facts.formats.allowed:
        if other not in (state.best.precision, "fp16") and not _won_clearly(state, other):
            yield from _precision_again(state, other, "in a graph")
    return state.plan


def _fewer_bits_compiled(state: _State, facts: Facts) -> Search:
    """A compiler makes one kernel of a conversion and what follows it: fewer bits may lose without it and win with."""
    fewer = facts.formats.allowed[0]
    if not state.best.compile or fewer in (state.best.precision, *state.again):
        return state.plan
    if (fewer != "fp16" or not state.best.cuda_graph) and _won_back(state.seconds, facts, state.compile_seconds):
        yield from _precision_again(state, fewer, "compiled")
    return state.plan


def _precision_again(state: _State, other: Precision, where: str) -> Search:
    was, before = state.best.precision, state.seconds
    state.again.append(other)
    found = yield replace(state.best, precision=other)
    least = before / (1.0 - LEAST_GAIN) if other in ("tf32", "fp32") else before * (1.0 - LEAST_GAIN)
    if found.step_seconds is not None and found.step_seconds <= least:
        state.best, state.seconds = replace(state.best, precision=other), found.step_seconds
        figures = {was: before, other: found.step_seconds}
        shown = ", ".join(f"{name} {milliseconds(value)}" for name, value in figures.items())
        state.settle("precision", f"{where} {shown} a step", **figures)
    return state.plan


def _won_clearly(state: _State, other: str) -> bool:
    """Launching hides what fewer bits save, and never adds to it: what they won outside they win inside as well."""
    figures = state.plan["precision"].evidence
    won, lost = figures.get(state.best.precision), figures.get(other)
    return other != "bf16" and won is not None and lost is not None and won <= (1.0 - CLEAR_GAIN) * lost


def _memory_format_again(state: _State, facts: Facts) -> Search:
    """Outside, a difference of a few percent may have been one between launches: it is taken for none."""
    figures = state.plan["channels_last"].evidence
    on, off = figures.get("on"), figures.get("off")
    if on is None or off is None or max(on, off) >= min(on, off) / (1.0 - CLEAR_GAIN):
        return state.plan
    if state.best.compile and not _won_back(state.seconds, facts, state.compile_seconds):
        return state.plan
    return (yield from _flag_again(state, "channels_last"))


def _flag_again(state: _State, name: str) -> Search:
    """In a graph, either way: what is not faster by a setting is better left as it was written."""
    before, wanted = state.seconds, not getattr(state.best, name)
    change: dict[str, Any] = {name: wanted}
    found = yield replace(state.best, **change)
    most = before * (1.0 - LEAST_GAIN) if wanted else before / (1.0 - FINE_GAIN)
    if found.step_seconds is not None and found.step_seconds <= most:
        state.best, state.seconds = replace(state.best, **change), found.step_seconds
        on, off = (found.step_seconds, before) if wanted else (before, found.step_seconds)
        state.settle(name, f"in a graph {milliseconds(on)} with it, {milliseconds(off)} without", off=off, on=on)
    return state.plan


def _both(state: _State, change: dict[str, Any]) -> Search:
    """Fewer, larger kernels can be over before a slow host has launched the next: only a graph shows what they save."""
    before = state.seconds
    found = yield replace(state.best, compile=True, **change)
    if state.consider(found, LEAST_GAIN, compile=True, **change):
        reason = f"compiled and in a graph {milliseconds(state.seconds)} a step, {milliseconds(before)} with neither"
        for name in ("compile", "cuda_graph"):
            state.settle(name, reason, off=before, on=state.seconds)
    return state.plan


def _too_short(step_seconds: float, facts: Facts) -> str | None:
    if facts.expected_steps is None:
        return None
    cost = COMPILE_SECONDS + COMPILE_SECONDS_PER_LAYER * facts.layers
    if _won_back(step_seconds, facts, cost):
        return None
    run = step_seconds * facts.expected_steps
    return f"the run takes about {run:.0f} s; compiling (about {cost:.0f} s) could not be won back"


def _won_back(step_seconds: float, facts: Facts, cost_seconds: float) -> bool:
    """What compiling costs; a run whose length is not known is a long one."""
    return facts.expected_steps is None or step_seconds * facts.expected_steps * COMPILE_GAIN >= cost_seconds


def _compared(found: Measured, before: float, least_gain: float) -> str:
    if found.step_seconds is None:
        return f"could not be used: {found.problem}"
    gain = 1.0 - found.step_seconds / before
    text = f"{milliseconds(found.step_seconds)} a step with it, {milliseconds(before)} without"
    return text if gain >= least_gain else f"{text}: it has to save {100 * least_gain:g} %"
