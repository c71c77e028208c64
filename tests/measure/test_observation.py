from __future__ import annotations

import pytest

from fulltilt.measure.observation import Observation, Step


def seen(*steps: tuple[float, float | None]) -> Observation:
    """Of steps with the host's and the GPU's seconds."""
    return Observation(
        command=("train.py",),
        ended="steps",
        seconds=100.0,
        steps=tuple(
            Step(number=number, started=0.0, seconds=host, phases={"forward": host}, gpu_seconds=gpu)
            for number, (host, gpu) in enumerate(steps)
        ),
    )


@pytest.mark.parametrize(("steps", "seconds"), [
    ([(1.0, None), (3.0, None)], 4.0),
    ([(1.0, 0.9), (1.0, 0.8)], 2.0),  # the GPU waited for its host
    ([(1.0, 3.0), (1.0, 2.0)], 5.0),  # the host ran ahead
    ([(1.0, 3.0), (1.0, 3.0), (1.0, 3.0), (2.0, None)], 5.0 + 6.0 * 4 / 3),  # as far behind in all
    ([(1.0, 3.0), (1.0, None), (1.0, 3.0), (1.0, 3.0)], 4.0),  # an evaluation stood there
    ([(1.0, 3.0), (1.0, None), (1.0, None)], 3.0),  # of too few steps
    ([], 0.0),
])  # fmt: skip
def test_a_host_that_runs_ahead_has_not_done_what_it_launched(
    steps: list[tuple[float, float | None]], seconds: float
) -> None:
    assert seen(*steps).step_seconds == pytest.approx(seconds)
