from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from fulltilt.launch.watch.alone import samples_per_second


class Once:
    """A loader over a generator that can be gone through once."""

    num_workers, prefetch_factor = 0, None

    def __init__(self, batches: int, batch: Any = None, batch_size: int | None = None) -> None:
        self._left = (torch.zeros(4, 2) if batch is None else batch for _ in range(batches))
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[Any]:
        return iter(self._left)


def test_a_loader_that_can_be_gone_through_once_is_measured_to_its_end() -> None:
    loader = Once(50)
    rate = samples_per_second(loader, iter(loader))
    assert rate is not None
    assert rate > 0


def test_one_that_gives_nothing_more_has_no_rate() -> None:
    loader = Once(0)
    assert samples_per_second(loader, iter(loader)) is None
    assert samples_per_second(loader, None) is None  # the script has let go of its iterator


def test_batches_that_hide_their_tensors_have_as_many_samples_as_the_loader_says() -> None:
    rates = [samples_per_second(Once(50, batch=object(), batch_size=size), None) for size in (4, None)]
    assert rates[0] is not None
    assert rates[0] > 0
    assert rates[1] is None, "what can't be counted is not 0"
