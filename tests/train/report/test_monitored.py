"""Which way a figure gets better."""

from __future__ import annotations

import pytest
import torchmetrics
from torchmetrics.classification import BinaryCalibrationError, MulticlassAccuracy, MulticlassConfusionMatrix

from fulltilt.train.report.monitored import Monitored

METRICS = {
    "mape": torchmetrics.MeanAbsolutePercentageError(),
    "r2": torchmetrics.R2Score(),
    "errors_found": MulticlassAccuracy(3),
    "calibration": BinaryCalibrationError(),
    "counts": MulticlassConfusionMatrix(3),
    "mse_of_counts": torchmetrics.MeanMetric(),
}


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("val_loss", "min"),
        ("train_loss", "min"),
        ("val_mape", "min"),
        ("val_r2", "max"),
        ("val_errors_found", "max"),
        ("val_errors_found_2", "max"),
        ("train_calibration", "min"),
        ("val_counts", "max"),
        ("val_mse_of_counts", "min"),
    ],
)
def test_metrics_say_themselves_which_way_they_get_better(name, mode):
    assert Monitored(name, None, metrics=METRICS, validates=True).mode == mode
    assert Monitored(name, "max", metrics=METRICS, validates=True).mode == "max"


def test_the_loss_in_training_stands_in_for_that_of_validation():
    assert Monitored("val_loss", None, metrics={}, validates=False).name == "train_loss"
