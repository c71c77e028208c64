"""A workload's contestants on the GPU: what only a GPU has is there."""

from __future__ import annotations

import pytest

from fulltilt.bench.guides import run

pytestmark = pytest.mark.gpu


def test_before_and_after_have_memory_metric_and_limit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scale = run.Scale(each_seconds=4.0, before_seconds=4.0, workload_seconds=240.0)
    only = run.parts_of("forecast/before,forecast/after")
    found = run.measure(only=only, small=True, scale=scale, say=lambda _: None, has_gpu=True)
    cases = {one.key: one for one in found.cases}
    assert [one.problem for one in found.cases] == [None] * 3
    for key in ("before", "after"):
        answer = cases[key].answer
        assert answer.peak_memory_bytes > 0
        assert answer.gpu_uuid
        assert answer.metric is not None
        assert answer.samples == pytest.approx(cases["before"].answer.samples, abs=answer.batch_size / 2)
    assert cases["after"].answer.plan
