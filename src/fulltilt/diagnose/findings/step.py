"""What would make the step itself faster, and so raise its limit: launches, precision, layout, compile, optimizer.

The GPU's work becomes `factor` times faster; the step follows as far as the host, which launches it, keeps up.
"""

from __future__ import annotations

import math

from fulltilt import words
from fulltilt.measure.observation import Training

from .. import edits
from ..figures import Figures
from ..finding import Finding
from ..thresholds import THRESHOLDS

_FUSED = frozenset({"Adam", "AdamW", "SGD", "Adagrad"})
"""Optimizers of torch with a fused kernel."""
_FACTORS = {
    "tf32": THRESHOLDS.tf32_factor,
    "precision": THRESHOLDS.precision_factor,
    "channels-last": THRESHOLDS.channels_last_factor,
}
_AT_ONCE = (
    "A larger batch (with a learning rate to match), or the model's forward and backward as CUDA graphs, launched at "
    'once: torch.cuda.make_graphed_callables(model, (images,)), or model.compile(mode="reduce-overhead")'
)
_HALF = ("bfloat16", "float16", "half")


def step(figures: Figures) -> list[Finding]:
    training = figures.observation.training
    if training is None or not figures.own:
        return []
    bound = launch_bound(figures)
    found = _unfused(figures, training)
    if bound:
        return [*found, _small_batch(figures, training)]
    if figures.on_gpu:
        faster = [*_tf32(figures, training), *_precision(figures, training), *_layout(figures, training)]
        found += [*faster, *_compile(figures, training), *_then_launches(figures, training, faster)]
    return found


def launch_bound(figures: Figures) -> bool:
    """The host spends the step launching; the GPU has little to do."""
    training, busy, launching = figures.observation.training, figures.gpu_busy, figures.launching
    if training is not None and training.launches is not None:
        if training.launches * THRESHOLDS.launch_seconds >= THRESHOLDS.launch_bound * figures.own:
            return True
        # That is the price on a fast host; how slow this one is was seen if its GPU had nothing to do.
        return launching is not None and launching >= max(THRESHOLDS.launch_bound * figures.own, busy or 0.0)
    if not figures.on_gpu or busy is None:
        return False
    return busy < THRESHOLDS.idle_gpu * figures.own and figures.host >= THRESHOLDS.launch_bound * figures.own


def _launching(figures: Figures) -> float:
    """Seconds below which the host can't launch a step."""
    training = figures.observation.training
    if training is not None and training.launches is not None:
        return min(max(training.launches * THRESHOLDS.launch_seconds, figures.launching or 0.0), figures.own)
    busy = figures.gpu_busy
    # A host that runs ahead is held up by the full queue: its time then says nothing about launching.
    return figures.own if busy is not None and busy < THRESHOLDS.idle_gpu * figures.own else 0.3 * figures.own


def _faster(figures: Figures, factor: float, launch_factor: float) -> tuple[float, float]:
    """Gains when the GPU's work becomes `factor` times faster, and its launching `launch_factor` times: as the script
    is fed now, and of the step's limit."""
    busy = min(figures.own if figures.gpu_busy is None else figures.gpu_busy, figures.own)
    own = min(max(figures.own - busy * (1 - 1 / factor), _launching(figures) / launch_factor), figures.own)
    raised = figures.own / own - 1 if own > 0 else 0.0
    return figures.gain(step=min(figures.stepping(own), figures.step)), raised


def _finding(
    figures: Figures,
    cause: str,
    title: str,
    evidence: tuple[str, ...],
    fix: str,
    factor: float,
    launch_factor: float = 1.0,
    **rest: object,
) -> list[Finding]:
    gain, raised = _faster(figures, factor, launch_factor)
    if raised < THRESHOLDS.least_gain:
        return []
    return [
        Finding(
            cause=cause,
            title=title,
            evidence=evidence,
            gain=gain,
            limit_gain=raised,
            fix=fix,
            level="numeric",
            about="step",
            **rest,  # type: ignore[arg-type]
        )
    ]


def _small_batch(figures: Figures, training: Training) -> Finding:
    busy = figures.gpu_busy
    least = _graphed(figures, training, figures.own, busy)
    own = min(max(busy or 0.0, least), figures.own)
    evidence = _launches(figures, training)
    if busy is not None:
        evidence.append(f"the GPU is busy in {words.percent(busy / figures.step)} of the time")
    if figures.per_step is not None and figures.unit == "samples":
        evidence.append(f"a step has {figures.per_step:.0f} samples")
    return Finding(
        cause="small-batch",
        title="The batch is so small that the host cannot launch the kernels fast enough",
        evidence=tuple(evidence),
        gain=figures.gain(step=min(figures.stepping(own), figures.step)),
        limit_gain=figures.own / own - 1,
        fix=_AT_ONCE,
        level="numeric",
        settings={"graphs": True} if figures.observation.world == 1 else {"compile": True},  # ranks share gradients
        about="step",
        seconds=figures.own - own,
    )


def _then_launches(figures: Figures, training: Training, faster: list[Finding]) -> list[Finding]:
    """The GPU would be done before the host has launched its work, if it were as fast as it can be: in half precision,
    in the layout it wants. Neither that alone nor quicker launching alone may gain a thing: both together do."""
    busy, launching = figures.gpu_busy, _launching(figures)
    if busy is None or training.compiled or training.launches is None or figures.observation.world > 1:
        return []
    without = busy / math.prod(_FACTORS[finding.cause] for finding in faster)
    if not _half(training):
        busy /= THRESHOLDS.precision_factor
    if training.images and not training.channels_last:
        busy /= THRESHOLDS.channels_last_factor
    before, after = max(without, launching), max(busy, _graphed(figures, training, launching, busy))
    if launching <= busy or before / after - 1 < THRESHOLDS.least_gain:
        return []
    return [
        Finding(
            cause="small-batch",
            title="Once its kernels are faster, the host cannot launch them fast enough",
            evidence=(
                *_launches(figures, training),
                f"in half precision and the like the GPU would be done with them in about {words.seconds(busy)}",
            ),
            gain=0.0,
            limit_gain=before / after - 1,
            fix=_AT_ONCE,
            level="numeric",
            settings={"graphs": True},
            about="step",
        )
    ]


def _graphed(figures: Figures, training: Training, launching: float, busy: float | None) -> float:
    """Seconds of a step whose launching takes that long and whose kernels `busy`, where the model's part is launched at
    once: its kernels, one close behind the other, while the host hands over gradients and launches the optimizer's."""
    optimizer = min(figures.phases.get("optimizer", 0.0), launching)
    if busy is None or training.launches is None:
        return optimizer + (launching - optimizer) / THRESHOLDS.graphed_factor
    host = optimizer + training.weights * THRESHOLDS.graphed_weight_seconds
    return max(host, busy + training.launches * THRESHOLDS.graphed_gap_seconds)


def _launches(figures: Figures, training: Training) -> list[str]:
    if training.launches is None:
        return []
    return [
        f"a step launches {training.launches:,} kernels, about {words.seconds(_launching(figures))} of the host's "
        f"time, and takes {words.seconds(figures.own)}"
    ]


def _half(training: Training) -> bool:
    return training.autocast is not None or any(name in training.dtype for name in _HALF)


def _tf32(figures: Figures, training: Training) -> list[Finding]:
    if training.tf32 or _half(training) or training.images:  # convolutions use TF32 without being told
        return []
    script = edits.script_of(figures.observation.command)
    flag = 'torch.set_float32_matmul_precision("high")'
    return _finding(
        figures,
        "tf32",
        "float32 matrix products do not use the tensor cores",
        ("TF32 is off, and the model computes in float32",),
        flag,
        THRESHOLDS.tf32_factor,
        settings={"tf32": True},
        diff=edits.edited(figures.read_source, script, edits.after_imports(flag)),
    )


def _precision(figures: Figures, training: Training) -> list[Finding]:
    if _half(training):
        return []
    factor = THRESHOLDS.precision_factor
    if not training.images and not training.tf32:  # what TF32 wins is told by its own finding
        factor = THRESHOLDS.precision_from_fp32_factor / THRESHOLDS.tf32_factor
    return _finding(
        figures,
        "precision",
        "The model computes in float32 where bfloat16 would do",
        (f"parameters are {training.dtype.removeprefix('torch.')}, and no autocast was on in the forward",),
        'with torch.autocast("cuda", torch.bfloat16): output = model(input); loss = …',
        factor,
        settings={"autocast": "bfloat16"},
    )


def _layout(figures: Figures, training: Training) -> list[Finding]:
    if not training.images or training.channels_last:
        return []
    factor = THRESHOLDS.channels_last_factor if _half(training) else THRESHOLDS.channels_last_fp32_factor
    return _finding(
        figures,
        "channels-last",
        "Convolutions run in a memory layout that the tensor cores must turn around each time",
        ("the input and the weights are contiguous, not channels_last",),
        "model.to(memory_format=torch.channels_last), and the images likewise",
        factor,
        settings={"channels_last": True},
    )


def _compile(figures: Figures, training: Training) -> list[Finding]:
    if training.compiled:
        return []
    factor, evidence = THRESHOLDS.compile_factor, [f"{training.model} runs eagerly"]
    busy, fusable = training.kernel_seconds, training.fusable_seconds
    if busy and fusable is not None:
        factor = busy / (busy - fusable * (1 - 1 / THRESHOLDS.fused_kernels_factor))
        evidence.append(f"{words.percent(fusable / busy)} of the GPU's work is element by element, sums and norms")
    return _finding(
        figures,
        "compile",
        "The model is not compiled: each operation reads and writes the GPU's memory by itself",
        tuple(evidence),
        "model.compile()  (the first steps take a minute longer)",
        factor,
        THRESHOLDS.compiled_launch_factor,
        settings={"compile": True},
    )


def _unfused(figures: Figures, training: Training) -> list[Finding]:
    seconds = figures.phases.get("optimizer", 0.0)
    if training.fused or training.optimizer not in _FUSED or seconds < THRESHOLDS.optimizer * figures.own:
        return []
    if training.optimizer == "SGD" and not figures.on_gpu:
        return []
    factor = THRESHOLDS.fused_factor if training.foreach else THRESHOLDS.fused_from_loop_factor
    if training.optimizer == "SGD":
        factor = THRESHOLDS.fused_sgd_factor
    own = figures.own - seconds * (1 - 1 / factor)
    script = edits.script_of(figures.observation.command)
    edit = edits.everywhere(training.optimizer, {"fused": True})
    return [
        Finding(
            cause="unfused-optimizer",
            title=f"{training.optimizer} updates the weights with many small operations",
            evidence=(
                f"its step takes {words.percent(seconds / figures.own)} of the step's own work "
                f"({words.seconds(seconds)}) for {training.parameters:,} parameters",
            ),
            gain=figures.gain(step=min(figures.stepping(own), figures.step)),
            limit_gain=figures.own / own - 1,
            fix=f"{training.optimizer}(…, fused=True)",
            diff=edits.edited(figures.read_source, script, edit),
            level="numeric",
            settings={"fused": True},
            about="step",
            seconds=seconds,
        )
    ]
