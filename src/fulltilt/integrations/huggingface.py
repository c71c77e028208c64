"""A callback for Hugging Face's Trainer: `Trainer(…, callbacks=[HuggingFaceCallback()])`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fulltilt.errors import InputError, UnavailableError
from fulltilt.integrations.loop import Watching
from fulltilt.integrations.summary import LoopSummary

if TYPE_CHECKING:
    from fulltilt.assist.beside import Metrics

try:
    from transformers import TrainerCallback
except ImportError as missing:
    raise UnavailableError(
        "HuggingFaceCallback needs transformers, which is not installed here: pip install transformers accelerate"
    ) from missing

Pair = Callable[[Any, Any], tuple[Any, Any]]


def logits_and_labels(output: Any, inputs: Any) -> tuple[Any, Any]:
    """What models of transformers return, and what the Trainer's batches call their targets."""
    labels = inputs.get("labels")
    logits = output.get("logits") if hasattr(output, "get") else None
    if labels is None or logits is None:
        found = ", ".join(output) if hasattr(output, "keys") else type(output).__name__
        raise InputError(
            f"metrics need the model's logits and its batch's labels; found {found} and {', '.join(inputs)};"
            " pair=lambda output, inputs: (…, …) says what to count instead"
        )
    return logits, labels


class HuggingFaceCallback(TrainerCallback):
    """Watches `train`: `summary` and a line at its end; metrics of each epoch are in the Trainer's `log_history`."""

    def __init__(
        self,
        *,
        metrics: Metrics | None = None,
        pair: Pair = logits_and_labels,
        interval: float = 1.0,
        show: Callable[[str], Any] | None = print,
    ) -> None:
        """
        Args:
            metrics: torchmetrics, counted beside the step.
            pair: from the model's output and its keyword arguments to (outputs, targets): what the metrics count.
            interval: seconds between two readings of the machine.
            show: is given the summary's line at the end, on the first rank; None keeps it to `summary`.
        """
        self._watching = Watching(metrics=metrics, interval=interval, show=show)
        self._metrics, self._pair = metrics, pair
        self._hook: Any = None

    @property
    def summary(self) -> LoopSummary | None:
        """There when `train` is over."""
        return self._watching.summary

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:  # noqa: ARG002
        self._end(failed=True)  # a `train` that failed has not said so
        self._watching.start()
        if self._metrics is not None and model is not None:
            self._hook = model.register_forward_hook(self._forwarded, with_kwargs=True)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        values = self._watching.compute()
        if values:
            state.log_history.append({**values, "epoch": state.epoch, "step": state.global_step})

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self._end()

    def _end(self, *, failed: bool = False) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self._watching.stop(failed=failed)

    def _forwarded(self, model: Any, args: Any, kwargs: Any, output: Any) -> None:  # noqa: ARG002
        if model.training:
            self._watching.add(*self._pair(output, kwargs))
