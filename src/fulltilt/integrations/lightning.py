"""A callback for Lightning: `Trainer(callbacks=[LightningCallback()])`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fulltilt.errors import InputError, UnavailableError
from fulltilt.integrations.loop import Watching
from fulltilt.integrations.summary import LoopSummary

if TYPE_CHECKING:
    from fulltilt.assist.beside import Metrics

try:
    from lightning.pytorch import Callback
except ImportError as missing_lightning:
    try:
        from pytorch_lightning import Callback
    except ImportError:
        raise UnavailableError(
            "LightningCallback needs Lightning, which is not installed here: pip install lightning"
        ) from missing_lightning

Pair = Callable[[Any, Any], tuple[Any, Any]]


class LightningCallback(Callback):
    """Watches `fit`: `summary` and a line at its end; metrics of each epoch are logged as Lightning's own are."""

    def __init__(
        self,
        *,
        metrics: Metrics | None = None,
        pair: Pair | None = None,
        interval: float = 1.0,
        show: Callable[[str], Any] | None = print,
    ) -> None:
        """
        Args:
            metrics: torchmetrics, counted beside the step.
            pair: from what `training_step` returned and its batch to (outputs, targets): what the metrics count.
            interval: seconds between two readings of the machine.
            show: is given the summary's line at the end, on the first rank; None keeps it to `summary`.
        """
        if (metrics is None) != (pair is None):
            raise InputError(
                "metrics and pair go together: pair says what of a step they count, "
                'as in pair=lambda output, batch: (output["logits"], batch[1])'
            )
        self._watching = Watching(metrics=metrics, interval=interval, show=show)
        self._pair = pair

    @property
    def summary(self) -> LoopSummary | None:
        """There when `fit` is over."""
        return self._watching.summary

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._watching.start()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        if self._pair is not None:
            self._watching.add(*self._pair(outputs, batch))

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        values = self._watching.compute()
        if values:
            pl_module.log_dict(values)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._watching.stop()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        self._watching.stop(failed=True)
