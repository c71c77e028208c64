"""What an observation says of the model and of torch's own settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fulltilt.launch.job import Job
from fulltilt.launch.seen import training
from fulltilt.launch.watch import Watch


@pytest.fixture
def matmul() -> Iterator[object]:
    found = torch.backends.cuda.matmul
    before = found.fp32_precision
    yield found
    found.fp32_precision = before


@pytest.mark.parametrize(("name", "value"), [("allow_tf32", True), ("fp32_precision", "tf32")])
def test_tf32_is_seen_by_whichever_name_it_was_set(matmul: object, name: str, value: object, tmp_path: Path) -> None:
    watch = Watch(Job(out=str(tmp_path)))
    watch.model = torch.nn.Linear(2, 2)
    watch.optimizer = torch.optim.SGD(watch.model.parameters(), lr=0.1)
    matmul.fp32_precision = "ieee"  # type: ignore[attr-defined]
    found = training(watch)
    assert found is not None
    assert not found.tf32
    setattr(matmul, name, value)
    found = training(watch)
    assert found is not None
    assert found.tf32
