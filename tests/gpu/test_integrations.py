"""A loop on a GPU that is watched from inside: the GPU's own clock, its utilisation, metrics beside the step."""

from __future__ import annotations

import pytest
from tests.integrations.test_loops import run

pytestmark = [pytest.mark.gpu, pytest.mark.alone]


def test_a_starved_gpu_is_seen_from_inside(tmp_path):
    found = run("on_gpu.py", tmp_path)
    summary = found["summary"]
    assert summary["steps"] == 96
    assert summary["starved"] > 0.5  # 16 ms of loading to well below a millisecond of work
    assert summary["data_wait"] > 0.5
    assert summary["gpu"]["util"]["mean"] < 50
    assert "copy" in summary["phases"]
    assert summary["observation"]["training"]["device"].startswith("cuda")
    assert 0 <= summary["metrics"][-1]["train_accuracy"] <= 1
    (line,) = found["lines"]
    assert f"GPU {summary['gpu']['index']} " in line
    assert "GPU starved" in line
