"""What is tried and what is kept, from figures: no model, no GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fulltilt.train.step.choose import (
    Facts,
    Measured,
    Settings,
    Wishes,
    first_settings,
    plan_untried,
    search,
    settings_of,
)
from fulltilt.train.step.precision import Formats

AMPERE = Formats(allowed=("bf16", "tf32"), reason="compute capability 9.0 has bf16 and TF32")
GPU = Facts(gpu=True, formats=AMPERE, convolutions=True, planar=True, layers=140)
CPU = replace(GPU, gpu=False, formats=Formats(allowed=("fp32",), reason="on cpu"), not_graphed="no GPU")


def drive(seconds_of, wishes=Wishes(), facts=GPU):  # noqa: B008  frozen
    """The plan, and what was tried on the way to it."""
    policy, tried = search(wishes, facts), []
    try:
        settings = next(policy)
        while True:
            tried.append(settings)
            found = seconds_of(settings)
            settings = policy.send(found if isinstance(found, Measured) else Measured(step_seconds=found))
    except StopIteration as done:
        return done.value, tried


def resnet(settings):
    """Milliseconds of a large model: everything pays, the graph hardly."""
    ms = 115.0 if settings.precision == "tf32" else 80.0
    ms *= 0.7 if settings.channels_last else 1.0
    ms -= 0.5 if settings.fused else 0.0
    ms *= 0.97 if settings.cudnn_benchmark else 1.0
    ms *= 0.7 if settings.compile else 1.0
    ms *= 0.99 if settings.cuda_graph else 1.0
    return Measured(step_seconds=ms / 1e3, setup_seconds=45.0 if settings.compile else 0.1)


def launches(settings):
    """A model that is nothing but launches until it is a graph; there, fewer bits pay."""
    if settings.cuda_graph:
        return (0.10 if settings.precision == "bf16" else 0.12) * (0.9 if settings.compile else 1.0) / 1e3
    return (1.4 if settings.precision == "bf16" else 1.0) * (0.8 if settings.compile else 1.0) / 1e3


def test_what_pays_is_kept_with_both_figures_in_the_reason():
    plan, tried = drive(resnet)
    assert settings_of(plan) == Settings(
        precision="bf16", channels_last=True, fused=True, cudnn_benchmark=True, compile=True, cuda_graph=True
    )
    assert plan["precision"].reason == "bf16 80 ms, tf32 115 ms a step; compute capability 9.0 has bf16 and TF32"
    assert plan["compile"].reason.endswith("compiling took 45 s")
    assert "with it" in plan["channels_last"].reason
    assert plan["channels_last"].evidence == {"off": 0.08, "on": pytest.approx(0.056)}
    assert len(tried) == 7, "each once: compiling twice would cost a minute"


def test_a_graph_turns_the_decisions_of_a_small_model_around():
    facts = replace(GPU, convolutions=False, planar=False)
    plan, _ = drive(launches, facts=facts)
    assert plan["cuda_graph"].value is True
    assert plan["precision"].value == "bf16"
    assert plan["precision"].reason.startswith("in a graph tf32 0.108 ms, bf16 0.09 ms")
    assert plan["compile"].value is True
    assert plan["channels_last"].reason == "the model has no convolutions in two dimensions"


@pytest.mark.parametrize(("gain", "kept"), [(0.3, True), (0.01, False)])
def test_what_compiling_saves_shows_in_the_graph(gain, kept):
    """Outside of it, compiled code has more to do for each launch than plain code."""

    def seconds(settings):
        if settings.cuda_graph:
            return 9e-5 * (1.0 - gain if settings.compile else 1.0)
        return 1.9e-3 if settings.compile else 1.4e-3

    plan, tried = drive(seconds)
    assert plan["compile"].value is kept
    assert plan["compile"].reason == (
        "in a graph 0.063 ms with it, 0.09 ms without"
        if kept
        else "1.9 ms a step with it, 1.4 ms without: it has to save 2 %; compiling took 0 s"
    )
    assert sum(settings.compile and not settings.cuda_graph for settings in tried) == 1


@pytest.mark.parametrize("graph_ms", [8.8, 9.4, 9.47])
def test_a_longer_step_that_a_slow_host_launches_is_compiled_in_the_graph(graph_ms):
    """9.47 ms plain and 10.5 compiled, as an H200's host launched a residual network: the kernels are over sooner."""

    def ms(settings):
        if settings.cuda_graph:
            return 6.0 if settings.compile else graph_ms
        return 10.5 if settings.compile else 9.47

    plan, tried = drive(lambda settings: ms(settings) / 1e3)
    assert plan["compile"].value is plan["cuda_graph"].value is plan["fused"].value is True
    assert "in a graph 6 ms" in plan["compile"].reason
    assert sum(settings.compile and not settings.cuda_graph for settings in tried) == 1
    plan, _ = drive(lambda settings: ms(settings) / 1e3 + (0.004 if settings.compile else 0.0))
    assert plan["compile"].value is False


@pytest.mark.parametrize(("tf32_ms", "again"), [(14.4, False), (10.0, True)])
def test_fewer_bits_that_have_won_clearly_are_not_compiled_anew_for_more(tf32_ms, again):
    def ms(settings):
        plain = tf32_ms if settings.precision == "tf32" else 9.5
        return plain * (0.7 if settings.compile else 1.0) * (0.9 if settings.cuda_graph else 1.0)

    plan, tried = drive(lambda settings: ms(settings) / 1e3)
    assert any(settings.precision == "tf32" and settings.cuda_graph for settings in tried) is again
    assert plan["precision"].value == "bf16"


def video(settings):
    """Milliseconds of a video model on an H200, where bf16's conversions cost more than its products save, until a
    compiler makes them one with what follows."""
    if settings.compile:
        ms = 173.0 if settings.precision == "bf16" else 235.0
    else:
        ms = 394.0 if settings.precision == "bf16" else 381.0
    return Measured(step_seconds=ms / 1e3, setup_seconds=32.0 if settings.compile else 0.1)


def test_fewer_bits_that_lost_are_looked_at_again_where_conversions_are_compiled():
    plan, tried = drive(video, facts=replace(GPU, expected_steps=480))
    assert plan["precision"].value == "bf16"
    assert plan["precision"].reason == "compiled tf32 235 ms, bf16 173 ms a step"
    assert sum(settings.compile for settings in tried) == 2


@pytest.mark.parametrize(
    ("wishes", "steps"), [(Wishes(compile=False), 480), (Wishes(), 150), (Wishes(compile=True), 300)]
)
def test_they_are_not_compiled_for_nothing(wishes, steps):
    plan, tried = drive(video, wishes, replace(GPU, layers=20, expected_steps=steps))
    assert plan["precision"].value == "tf32"
    assert sum(settings.compile for settings in tried) == (0 if wishes.compile is False else 1)


def test_in_a_graph_that_hardly_pays_they_are_looked_at_once():
    def ms(settings):
        found = {"bf16": 21.0, "tf32": 20.0}[settings.precision]
        found *= (0.5 if settings.precision == "bf16" else 0.7) if settings.compile else 1.0
        return found * (0.99 if settings.cuda_graph else 1.0)

    plan, tried = drive(lambda settings: ms(settings) / 1e3)
    assert plan["precision"].value == "bf16"
    assert plan["cuda_graph"].value is True
    assert sum(settings.compile and settings.precision == "bf16" for settings in tried) == 1


def test_what_could_not_be_compiled_is_not_tried_again_in_the_graph():
    def found(settings):
        return Measured(problem="it broke") if settings.compile else 9e-5 if settings.cuda_graph else 1.4e-3

    plan, tried = drive(found)
    assert plan["cuda_graph"].value is True
    assert sum(settings.compile for settings in tried) == 1


def test_without_a_graph_fewer_bits_that_do_not_pay_are_not_used():
    plan, _ = drive(launches, Wishes(cuda_graph=False), replace(GPU, convolutions=False, planar=False))
    assert plan["precision"].value == "tf32"
    assert plan["cuda_graph"].value is False


@pytest.mark.parametrize(("gain", "kept"), [(0.019, False), (0.021, True)])
def test_what_changes_numbers_has_to_pay_two_percent(gain, kept):
    plan, _ = drive(lambda s: 0.05 * (1 - gain if s.compile else 1.0), facts=replace(GPU, not_graphed="hooks"))
    assert plan["compile"].value is kept
    assert ("it has to save 2 %" in plan["compile"].reason) is not kept
    plan, _ = drive(lambda s: 0.05 * (1 - gain if s.precision == "bf16" else 1.0))
    assert (plan["precision"].value == "bf16") is kept


def test_what_fails_is_not_used_and_says_why():
    def fails(settings):
        if settings.compile or settings.cuda_graph:
            return Measured(problem="InductorError: no C++ compiler")
        return 0.01

    plan, _ = drive(fails)
    assert plan["compile"].value is plan["cuda_graph"].value is False
    assert plan["compile"].reason == "could not be used: InductorError: no C++ compiler"
    plan, _ = drive(fails, Wishes(compile=True))
    assert plan["compile"].value is False
    assert plan["compile"].reason == "asked for, but it failed: InductorError: no C++ compiler"


def test_a_step_that_can_not_be_timed_leaves_everything_as_it_is():
    plan, tried = drive(lambda _: Measured(problem="OutOfMemoryError"))
    assert len(tried) == 1
    assert settings_of(plan) == first_settings(Wishes(), GPU)
    assert "OutOfMemoryError" in plan["compile"].reason


@pytest.mark.parametrize(("steps", "compiles"), [(1000, False), (10_000, True), (None, True)])
def test_compiling_is_weighed_against_the_runs_length(steps, compiles):
    plan, tried = drive(resnet, facts=replace(GPU, expected_steps=steps))
    assert any(settings.compile for settings in tried) is compiles
    if not compiles:
        assert plan["compile"].reason.startswith("the run takes about 54 s; compiling (about 40 s) could not be won")


def test_a_short_run_is_not_spent_on_trials():
    facts = replace(GPU, expected_steps=60)
    plan = plan_untried(Wishes(), facts)
    assert plan is not None
    assert settings_of(plan) == Settings(precision="bf16")
    assert plan["channels_last"].reason == "a run of 60 steps is over before trials pay"


def test_on_the_cpu_nothing_is_tried_and_nothing_changes():
    plan = plan_untried(Wishes(), CPU)
    assert plan is not None
    assert settings_of(plan) == Settings()
    asked = plan_untried(Wishes(channels_last=True, fused=True), CPU)
    assert asked is not None
    assert settings_of(asked) == Settings(channels_last=True, fused=True)
    assert asked["fused"].reason == "asked for"


def test_what_is_asked_for_is_done_where_it_can_be():
    plan, tried = drive(resnet, Wishes(channels_last=False, fused=False, compile=False, cuda_graph=False))
    assert settings_of(plan) == Settings(precision="bf16", cudnn_benchmark=True)
    assert len(tried) == 3
    slower = Wishes(compile=True, cuda_graph=True)
    plan, _ = drive(lambda s: 0.01 * (1.5 if s.compile else 1.0) * (1.5 if s.cuda_graph else 1.0), slower)
    assert plan["compile"].value is plan["cuda_graph"].value is True
    plan, _ = drive(resnet, Wishes(cuda_graph=True), replace(GPU, not_graphed="the model has hooks"))
    assert plan["cuda_graph"].value is False
    assert plan["cuda_graph"].reason == "the model has hooks"


def test_fp16_begins_with_a_fused_optimizer_so_that_overflow_is_not_asked_for():
    turing = replace(GPU, formats=Formats(allowed=("fp16", "fp32"), reason="compute capability 7.5"))
    assert first_settings(Wishes(), turing).fused is True
    assert first_settings(Wishes(), replace(turing, not_fused="Lion has no fused form")).fused is False


def test_a_long_step_is_not_captured():
    plan, tried = drive(lambda s: 0.2)
    assert not any(settings.cuda_graph for settings in tried)
    assert plan["cuda_graph"].reason == "a step of 200 ms hides its launches"


def test_a_graph_brings_a_fused_optimizer_where_there_is_one():
    plan, tried = drive(lambda s: 0.0002 if s.cuda_graph else 0.001)
    assert all(settings.fused for settings in tried if settings.cuda_graph)
    assert plan["fused"].value is True
    assert plan["fused"].reason.startswith("the CUDA graph needs it")
    for wishes, facts in ((Wishes(fused=False), GPU), (Wishes(), replace(GPU, not_fused="Lion has no fused form"))):
        plan, tried = drive(lambda s: 0.0002 if s.cuda_graph else 0.001, wishes, facts)
        assert not any(settings.fused for settings in tried)
        assert plan["cuda_graph"].value is True, "its update stays outside"
        assert plan["fused"].value is False


def test_convolution_algorithms_are_tried_again_in_a_graph():
    """In one dimension too: outside the graph the difference is hidden behind launches."""

    def seconds(settings):
        if not settings.cuda_graph:
            return 0.001
        return 0.0001 if settings.cudnn_benchmark else 0.00011

    plan, tried = drive(seconds, Wishes(compile=False), replace(GPU, planar=False))
    assert plan["cudnn_benchmark"].value is True
    assert plan["cudnn_benchmark"].reason.startswith("in a graph: 0.1 ms a step with it")
    assert plan["channels_last"].reason == "the model has no convolutions in two dimensions"
    assert not any(settings.channels_last for settings in tried)


@pytest.mark.parametrize(
    ("outside", "inside", "kept"),
    [
        ((4.18, 4.44), (1.6, 1.3), True),  # off, on: what launches made of it, and what the kernels are
        ((5.39, 5.00), (1.3, 1.5), False),
        ((5.39, 5.00), (1.3, 1.28), True),  # still a little faster with it
        ((4.18, 4.44), (1.6, 1.59), False),
    ],
)
def test_the_memory_format_is_looked_at_again_in_a_graph(outside, inside, kept):
    """The same model on two machines of one kind was laid out once so, once the other way."""
    plan, tried = drive(
        lambda s: (inside if s.cuda_graph else outside)[s.channels_last] / 1e3, Wishes(fused=True, compile=False)
    )
    assert plan["channels_last"].value is kept
    assert len({settings.channels_last for settings in tried if settings.cuda_graph}) == 2
    if kept is not (outside[1] < outside[0]):
        assert plan["channels_last"].reason.startswith("in a graph ")


@pytest.mark.parametrize(
    ("wishes", "facts"), [(Wishes(channels_last=False), GPU), (Wishes(), replace(GPU, planar=False))]
)
def test_a_memory_format_that_is_settled_is_not_tried_again(wishes, facts):
    _, tried = drive(lambda s: 0.001 if s.cuda_graph else 0.004, wishes, facts)
    assert not any(settings.channels_last for settings in tried)


@pytest.mark.parametrize(("outside", "steps"), [((5.6, 5.0), 10**6), ((5.0, 5.6), 10**6), ((5.2, 5.0), 10_000)])
def test_a_memory_format_is_not_compiled_anew_for_nothing(outside, steps):
    """It has won or lost clearly, or the run is too short to win that back."""

    def seconds(settings):
        ms = (1.0 if settings.cuda_graph else outside[settings.channels_last]) * (0.6 if settings.compile else 1.0)
        return Measured(step_seconds=ms / 1e3, setup_seconds=30.0 if settings.compile else 0.1)

    _, tried = drive(seconds, facts=replace(GPU, layers=10, expected_steps=steps))
    assert any(settings.compile and settings.cuda_graph for settings in tried)
    assert len({settings.channels_last for settings in tried if settings.cuda_graph}) == 1


def test_tuned_convolutions_stay_tuned():
    facts = replace(GPU, cudnn_benchmark=True)
    plan, tried = drive(resnet, facts=facts)
    assert all(settings.cudnn_benchmark for settings in tried)
    assert plan["cudnn_benchmark"].reason == "switched on already"
    assert first_settings(Wishes(), replace(facts, expected_steps=10)).cudnn_benchmark is True


def test_what_is_made_for_one_shape_is_not_tried_where_shapes_differ():
    plan, tried = drive(resnet, facts=replace(GPU, varying=True))
    assert not any(s.compile or s.cuda_graph or s.cudnn_benchmark for s in tried)
    for name in ("compile", "cuda_graph", "cudnn_benchmark"):
        assert plan[name].reason == "batches differ in shape from step to step"
    assert plan["channels_last"].value is True
