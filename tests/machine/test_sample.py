"""One reading and its form on disk: absent stays absent, unknown stays, wrong is named."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulltilt.machine.sample import CpuSample, GpuSample, ProcessSample, Sample

LINE = (
    '{"t": 2.018, "gpus": [{"index": 0, "util": 34, "sm": 23.4, "occupancy": 10.9, "dram": 12.0, "tensor": 6.9,'
    ' "mem_used": 6171787264, "mem_total": 150754820096, "temp": 41, "power_w": 171.1}],'
    ' "cpu": {"util": 6.2, "iowait": 0.0, "cores": [99.0, 1.2]}}'
)


def test_the_documented_line_reads_and_writes_back():
    sample = Sample.from_json(json.loads(LINE))
    assert sample.gpus[0].util == 34
    assert sample.gpus[0].power_limit_w is None
    assert sample.cpu.cores == (99.0, 1.2)
    assert sample.to_json() == json.loads(LINE)


def test_unknown_fields_are_kept():
    flat = {
        "t": 1,
        "note": "x",
        "gpus": [{"index": 0, "fan": 30}],
        "cpu": {"steal": 2.5},
        "process": {"pid": 7, "gids": []},
    }
    assert Sample.from_json(flat).to_json() == flat


figures = st.none() | st.floats(0, 100).map(lambda value: round(value, 2))


@given(
    st.builds(GpuSample, index=st.integers(0, 15), slice=st.none() | st.integers(0, 6), util=figures, sm=figures),
    figures,
)
def test_what_is_written_reads_back(gpu, cpu):
    sample = Sample(
        t=1.5,
        gpus=(gpu,),
        cpu=CpuSample(util=cpu, cores=None if cpu is None else (cpu,)),
        process=ProcessSample(pid=1, cpu=cpu, gpu_mem={"0": 5}),
    )
    assert Sample.from_json(json.loads(json.dumps(sample.to_json()))) == sample


@pytest.mark.parametrize(
    ("flat", "names"),
    [
        ({}, "'t' is missing"),
        ({"t": "soon"}, "'t' must be a number, found 'soon'"),
        ({"t": True}, "'t' must be a number"),
        ({"t": float("nan")}, "'t' must be a number"),
        ({"t": 1, "gpus": {}}, "'gpus' must be a list, found dict"),
        ({"t": 1, "gpus": [3]}, "'gpus' must hold objects"),
        ({"t": 1, "gpus": [{}]}, "'gpus.index' is missing"),
        ({"t": 1, "gpus": [{"index": 0.5}]}, "'gpus.index' must be a whole number"),
        ({"t": 1, "gpus": [{"index": 0}, {"index": 0}]}, "each GPU once, found 0, 0"),
        ({"t": 1, "gpus": [{"index": 0, "util": "busy"}]}, "'gpus.util' must be a number, found 'busy'"),
        ({"t": 1, "gpus": [{"index": 0, "name": 3}]}, "'gpus.name' must be text"),
        ({"t": 1, "gpus": [{"index": 0, "processes": []}]}, "'gpus.processes' must be an object"),
        ({"t": 1, "cpu": []}, "'cpu' must hold objects"),
        ({"t": 1, "cpu": {"cores": 3}}, "'cpu.cores' must be a list"),
        ({"t": 1, "cpu": {"cores": ["x"]}}, "'cpu.cores' must be a number, found 'x'"),
        ({"t": 1, "process": {}}, "'process.pid' is missing"),
    ],
)
def test_what_does_not_fit_is_named(flat, names):
    with pytest.raises((TypeError, ValueError, KeyError)) as caught:
        Sample.from_json(flat)
    assert names in caught.value.args[0]
