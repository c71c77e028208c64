"""One training step: fast where that pays, safe everywhere, and never waiting for the device.

    batch ─► roles: inputs, target ─► device ─┬─► a CUDA graph of the step
                                              └─► micro-batches: forward, loss, backward ─► clip, step, average

The first step is run plainly: whatever is wrong with model, batch or loss shows there. Before the second, settings are
tried on the real model with a real batch, and what pays is kept: each decision, with its reason, is in `plan` and the
log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fulltilt.errors import InputError
from fulltilt.machine.decision import Decision
from fulltilt.train.step.choose import Auto, Facts, Plan, Wishes, first_settings, plan_untried, settings_of
from fulltilt.train.step.clock import PerformanceStats, StepClock
from fulltilt.train.step.device import as_optimizers, check_optimizers, device_for, move
from fulltilt.train.step.ema import Ema
from fulltilt.train.step.engine import Engine, Signature, signature
from fulltilt.train.step.graphed import GraphedStep, why_not_graphed, why_update_outside
from fulltilt.train.step.micro import MicroBatches
from fulltilt.train.step.optim import check_saved, why_not_fused
from fulltilt.train.step.precision import check_precision, formats_for, widen
from fulltilt.train.step.preparing import Prepared
from fulltilt.train.step.roles import Loss, Objective, split, target_place
from fulltilt.train.step.trials import Trials

log = logging.getLogger("fulltilt.train")

_VARYING_STEPS = 20
"""Steps after which no two batches of one shape in a row are waited for any more."""
_OUTSIDE = "; without the update: "
_STEADY_STEPS = 1000
"""A graph that has served so many is captured again for options that have changed; before that, they are moving."""
_CHANGED_STEPS = 20
"""So many on end of a model whose weights were frozen or thawed since its graph was captured: that is how it stays."""
_CONVOLUTIONS = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
)  # fmt: skip


class StepResult(NamedTuple):
    """What a step gives back, on the device; reading a value waits for it."""

    loss: Tensor
    """Mean over the batch, 0-d, detached."""
    outputs: Any
    """What the model returned, detached."""


class HybridPrecisionTrainer:
    """A training step that chooses its own precision, memory format, optimizer kernels, compilation and CUDA graph.

    Args:
        optimizer: one, or several that step together. They stay the caller's: schedulers act on them as ever.
        loss: called as `loss(outputs, target)`; if None, cross entropy for class numbers, BCE with logits for masks.
        precision: "fp32", "tf32", "bf16", "fp16" (with gradient scaling) or "auto". fp16 never waits for the device
            with optimizers that have a fused form; others have to ask whether a step overflowed.
        compile, channels_last, cuda_graph, fused: True, False, or "auto": kept where trials show that it pays.
        accumulate: batches per optimizer step; the loss is their mean.
        clip_norm: largest norm of all gradients together.
        ema_decay: keep averaged weights in `ema`.
        target: which of the batch's values is the target; "auto" is the last, and of (images, masks, features) the
            second.
        expected_steps: length of the run, against which the cost of trials and compiling is weighed; None is long.
        keep_fp32: names of submodules that compute in fp32 whatever the rest does: not in bf16, fp16 or TF32, which is
            off for the whole process then.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        device: str | torch.device = "auto",
        *,
        loss: Loss | None = None,
        precision: str = "auto",
        compile: bool | Auto = "auto",
        channels_last: bool | Auto = "auto",
        cuda_graph: bool | Auto = "auto",
        fused: bool | Auto = "auto",
        accumulate: int = 1,
        clip_norm: float | None = None,
        ema_decay: float | None = None,
        target: int | Auto = "auto",
        expected_steps: int | None = None,
        keep_fp32: Sequence[str] = (),
    ) -> None:
        check_precision(precision)
        _check(compile=compile, channels_last=channels_last, cuda_graph=cuda_graph, fused=fused)
        if not isinstance(accumulate, int) or accumulate < 1:
            raise InputError(f"accumulate={accumulate!r} must be at least 1, a whole number")
        if clip_norm is not None and not clip_norm > 0:
            raise InputError(f"clip_norm={clip_norm} must be above 0, or None for no clipping")
        self.model = model
        self.optimizers = as_optimizers(optimizer)
        objective = Objective(loss)
        self.device = device_for(model, device)
        check_optimizers(self.optimizers, model, loss)
        dtypes, keeps = (p.dtype for p in model.parameters()), bool(keep_fp32)
        self._formats = formats_for(precision, self.device, dtypes, keeps_fp32=keeps)
        move(model, self.optimizers, loss, self.device)
        widen(model, keep_fp32, self.device)
        self.ema = None if ema_decay is None else Ema(model, ema_decay)
        self._engine = Engine(
            model, self.optimizers, objective, self.device, clip_norm=clip_norm, ema=self.ema, keeps_fp32=keeps
        )
        self._engine.layout_asked_for = channels_last is True
        self._clock = StepClock(self.device)
        self._micro = MicroBatches(self._engine, accumulate=accumulate, copied=self._note_copied)
        self._wishes = Wishes(channels_last=channels_last, fused=fused, compile=compile, cuda_graph=cuda_graph)
        self.target, self._expected_steps = target, expected_steps
        self._tuned = self.device.type == "cuda" and torch.backends.cudnn.benchmark
        self._graph: GraphedStep | None = None
        self._uncaptured = False
        """The plan has a graph, and there is none yet."""
        self._changed = 0
        """Steps on end that the graph was not for, because the model has changed."""
        self._moving_options = False
        """Options of the optimizers have been seen to change, such as a momentum that is scheduled."""
        self._gpu, self._from_host = self.device.type == "cuda", False
        self._first = True
        self._unsettled = 0
        """Steps that were taken without a plan."""
        self._shapes: Signature | None = None
        self._background_seconds: float | None = None
        self.plan: Plan = {}
        self.stepped = False
        self._engine.use(first_settings(self._wishes, self._facts()))

    @property
    def forward_model(self) -> Callable[..., Any]:
        """What is called: the model, or a wrapper set here before the first step, such as DistributedDataParallel."""
        return self._engine.forward_model

    @forward_model.setter
    def forward_model(self, wrapper: Callable[..., Any]) -> None:
        if not self._first:
            raise InputError("forward_model can be set before the first step only")
        self._engine.forward_model = wrapper

    def train_step(self, *batch: Any) -> StepResult:
        """Forward, loss, backward; the optimizers step every `accumulate` calls. Waits for nothing."""
        if not self.plan or self._uncaptured:
            self._settle(batch)
        self._clock.begin()
        graph = self._graph
        if graph is not None and graph.fits(batch):
            if not batch[graph.target_place].is_cuda:
                self._engine.objective.check_host_labels(batch[graph.target_place])
            result = StepResult(*graph(batch))
            self.stepped, self._changed = True, 0
            self._clock.end(batch[0].shape[0])
            return result
        if graph is not None and self._is_past(graph):  # captured anew at the next step
            self._graph, self._uncaptured = None, True
        del graph  # the memory of one that was given up is this step's
        inputs, target = self._parted(batch)
        loss, outputs, self.stepped = self._micro.run(inputs, target)
        self._clock.end(target.shape[0] if isinstance(target, Tensor) and target.dim() else 1)
        self._first = False
        return StepResult(loss, self._engine.handed_out(outputs))

    @torch.no_grad()
    def eval_step(self, *batch: Any) -> StepResult:
        """Loss and outputs without gradients; whether the model is in eval mode is the caller's choice."""
        self._clock.pause()
        inputs, target = self._engine.placed(*self._parted(batch))
        # Not through DDP, which would send buffers: ranks may have other numbers of batches to evaluate.
        loss, outputs = self._engine.forward(inputs, target, alone=self._engine.wrapped)
        return StepResult(loss, self._engine.handed_out(outputs))

    @property
    def objective(self) -> Objective:
        """The loss, as it was given or chosen, and what is known of its labels."""
        return self._engine.objective

    def prepared(
        self, batches: Iterable[Any], prepare: Callable[[Any], Any] | None = None, *, num_workers: int | Auto = "auto"
    ) -> Iterator[Any]:
        """Batches, on the device in time: threads call `prepare` with the next ones while it works on this one.

        for images, masks, sim_feats in trainer.prepared(loader, prepare):
            loss, outputs = trainer.train_step(images, masks, sim_feats)
        """
        return Prepared(batches, prepare, device=self.device, num_workers=num_workers, note=self._note_prepared)

    def _note_prepared(self, waited: float, seconds: float) -> None:
        self._clock.waited(waited)
        self._background_seconds = seconds

    def note_wait(self, seconds: float) -> None:
        """The loop had to wait so long for this batch."""
        self._clock.waited(seconds)

    def get_performance_stats(self) -> PerformanceStats:
        """Figures of the latest steps; one that could not be taken is absent, and nan if it is asked for.

        gpu_utilization (percent of the time in which the device had a step to work on), avg_gpu_time, avg_cpu_time (in
        train_step), cpu_ratio (of the two), data_wait_seconds, copy_seconds, step_p50, step_p99 (from one step to the
        next), samples_per_second, gpu_memory_bytes (peak, not counting what was tried),
        background_seconds (of threads, for a batch of `prepared`).
        """
        figures = PerformanceStats(self._clock.figures())
        if self._background_seconds is not None:
            figures["background_seconds"] = self._background_seconds
        return figures

    def state_dict(self) -> dict[str, Any]:
        """Everything but the model's weights, as plain tensors and numbers. Several processes call it together."""
        micro = self._micro
        shared = not micro.phase or micro.share_gradients()
        state: dict[str, Any] = {
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "micro_size": micro.micro.size,
            "phase": micro.phase if shared else 0,
        }
        if micro.phase and shared:  # in the middle of accumulating: what has been added up so far
            state["grads"] = {n: p.grad for n, p in self.model.named_parameters() if p.grad is not None}
        if self._engine.scaler is not None:
            state["scaler"] = self._engine.scaler.state_dict()
        if self.ema is not None:
            state["ema"] = self.ema.state_dict()
        return state

    def check_state_dict(self, state: Mapping[str, Any]) -> None:
        """Whether a saved state is this trainer's; changes nothing."""
        if len(state["optimizers"]) != len(self.optimizers):
            raise InputError(
                f"the saved state has {len(state['optimizers'])} optimizers, this trainer {len(self.optimizers)}"
            )
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            check_saved(optimizer, saved)
        if self.ema is not None and "ema" in state:
            self.ema.check(state["ema"])
        unknown = set(state.get("grads", {})) - {name for name, _ in self.model.named_parameters()}
        if unknown:
            raise InputError(f"the saved gradients are another model's: it has no {', '.join(sorted(unknown)[:8])}")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.check_state_dict(state)
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self._engine.fit_optimizers()
        parameters: dict[str, Tensor] = dict(self.model.named_parameters())
        grads = {parameters[name]: grad for name, grad in state.get("grads", {}).items()}
        self._micro.resume(size=state["micro_size"], phase=state["phase"], grads=grads)
        if self._engine.scaler is not None and "scaler" in state:
            self._engine.scaler.load_state_dict(state["scaler"])
        if self.ema is not None and "ema" in state:
            self.ema.load_state_dict(state["ema"])
        elif self.ema is not None:
            log.info("averaged weights begin here: the saved state has none")
            self.ema.begin()
        if self._graph is not None:  # it holds the addresses of state that is gone
            self._graph, self._uncaptured = None, True

    def _parted(self, batch: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
        """Inputs and target, where they are; labels that are still on the host are looked at."""
        inputs, target = split(batch, self.target)
        if self._gpu:
            self._from_host = any(isinstance(part, Tensor) and not part.is_cuda for part in batch)
            if self._from_host and isinstance(target, Tensor):
                self._engine.objective.check_host_labels(target)
        return inputs, target

    def _is_past(self, graph: GraphedStep) -> bool:
        """Whether a graph that is not for this step will not be for later ones, either."""
        if graph.state_replaced:
            self._engine.fit_optimizers()
            return True
        if graph.options_moved:
            self._moving_options = graph.replays < _STEADY_STEPS and why_update_outside(self._engine) is None
            return True
        self._changed = self._changed + 1 if graph.model_changed else 0
        return self._changed >= _CHANGED_STEPS

    def _note_copied(self) -> None:
        if self._from_host:
            self._clock.copied()

    def _settle(self, batch: tuple[Any, ...]) -> None:
        """Before the second step, and again for a graph that was lost: try, decide, log."""
        if self._first:
            plan = plan_untried(self._wishes, self._facts(batch))
            if plan is not None:
                self._take(plan)
                self._engine.use(settings_of(plan))
                return
        # The first step is plain. Gradients that wait for more can't be tried upon, and a batch of another shape than
        # the one before it, such as an epoch's last, is not what the run is made of; unless they all differ.
        shapes, self._shapes = self._shapes, signature(batch)
        self._unsettled += 1
        alike = self._shapes == shapes
        if self._first or self._micro.phase:
            return
        if self._uncaptured and self._micro.why_not_whole() is not None:
            return  # cut to fit the memory, for now: a graph would hold some of that for no batch at all
        alike = self._micro.ranks.all_agree(alike)  # all ranks try together, or none
        varying = not self.plan and not alike and self._unsettled > _VARYING_STEPS
        if not (alike or varying):
            if self._uncaptured:
                self._shapes = shapes  # what the lost graph was for
            return
        place = target_place(batch, self.target)
        self._engine.objective.check_labels(batch[place])
        trials = Trials(self._engine, self._micro.first_piece(batch), place)
        if not self.plan:
            began = time.perf_counter()
            self._take(trials.run(self._wishes, self._facts(batch, varying=varying)))
            log.info("settings tried in %.1f s", time.perf_counter() - began)
            self._micro.forget_start()
        self._uncaptured = False
        if self.plan["cuda_graph"].value:
            self._graph, problem = trials.capture(moving_options=self._moving_options)
            if self._graph is None:
                why_not = Decision(value=False, reason=f"could not be captured: {problem}")
                self._take(self.plan | {"cuda_graph": why_not})
            else:
                decided, outside = self.plan["cuda_graph"], self._graph.outside
                reason = decided.reason.partition(_OUTSIDE)[0] + (f"{_OUTSIDE}{outside}" if outside else "")
                if reason != decided.reason:
                    self._take(self.plan | {"cuda_graph": replace(decided, reason=reason)})
        self._clock.restart()

    def _facts(self, batch: tuple[Any, ...] = (), *, varying: bool = False) -> Facts:
        engine = self._engine
        layers = [module for module in self.model.modules() if not next(module.children(), None)]
        not_graphed = self._micro.why_not_whole() or why_not_graphed(engine)
        if not all(isinstance(part, Tensor) for part in batch):
            not_graphed = "the batch has parts that are not tensors"
        return Facts(
            gpu=self.device.type == "cuda",
            formats=self._formats,
            convolutions=any(isinstance(layer, _CONVOLUTIONS) for layer in layers),
            planar=any(isinstance(layer, nn.Conv2d | nn.ConvTranspose2d) for layer in layers),
            layers=len(layers),
            cudnn_benchmark=self._tuned,
            not_fused=next(filter(None, map(why_not_fused, self.optimizers)), None),
            fused_already=engine.fused_already,
            not_graphed=not_graphed,
            expected_steps=self._expected_steps,
            varying=varying,
        )

    def _take(self, plan: Plan) -> None:
        told: dict[str, list[str]] = {}  # by reason: one that many have is said once
        for name, decision in plan.items():
            if decision is not self.plan.get(name):
                told.setdefault(decision.reason, []).append(f"{name}: {decision.value}")
        for reason, settled in told.items():
            log.info("%s (%s)", ", ".join(settled), reason)
        self.plan = plan


def _check(**given: Any) -> None:
    for name, value in given.items():
        if value is not True and value is not False and value != "auto":
            raise InputError(f"{name}={value!r} must be True, False or 'auto'")
