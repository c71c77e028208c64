from __future__ import annotations

import pytest

from fulltilt.bench.observe import ObserveBench, cost, show


def test_added_time_is_of_neighbouring_blocks() -> None:
    # the machine gets slower on the way: neighbours still differ by 20 µs
    plain = [0.001, 0.0012, 0.0014, 0.0016]
    watched = [seconds + 20e-6 for seconds in plain]
    found = cost(1.0, steps=[100] * 4, first=[True, False, False, False], plain=plain, watched=watched)
    assert found.added_ms == pytest.approx(0.02)
    assert found.noise_ms == pytest.approx(0.0, abs=1e-9)
    assert found.target.met


@pytest.mark.parametrize(("asked", "plain", "watched", "met"), [
    (1.0, 0.001, 0.00104, True),
    (1.0, 0.001, 0.00106, False),
    (10.0, 0.01, 0.01009, True),
    (10.0, 0.01, 0.01011, False),
])  # fmt: skip
def test_targets(asked: float, plain: float, watched: float, met: bool) -> None:
    assert cost(asked, steps=[9, 9], first=[True, False], plain=[plain] * 2, watched=[watched] * 2).target.met is met


def test_first_steps_count_as_many_as_they_are() -> None:
    # 64 that cost 200 µs each, and 936 at 10 µs; one of their blocks was disturbed
    steps, plain = [64, *[117] * 8], [0.001] * 9
    watched = [0.0012, *[0.00101] * 7, 0.003]
    found = cost(1.0, steps=steps, first=[True, *[False] * 8], plain=plain, watched=watched)
    assert found.first_ms == pytest.approx(0.2)
    assert found.added_ms == pytest.approx((64 * 0.2 + 936 * 0.01) / 1000)


def test_json_and_table(capsys: pytest.CaptureFixture[str]) -> None:
    found = ObserveBench(
        machine={"cores": 2},
        date="2026-11-15",
        device="cpu",
        costs=(cost(1.0, steps=[9, 9], first=[True, False], plain=[0.001] * 2, watched=[0.00106] * 2),),
    )
    (one,) = found.to_json()["costs"]
    (target,) = one["targets"]
    assert (target["words"], target["met"]) == ("≤ 0.05 ms", False)
    assert one["added_ms"] == pytest.approx(0.06)
    assert one["pairs_ms"] == [[1.0, 1.06], [1.0, 1.06]]
    show(found)
    assert "missed" in capsys.readouterr().out
