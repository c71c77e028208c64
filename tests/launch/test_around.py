"""What goes on around a command, of readings made up."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from fulltilt.launch.around import Around, _is_ours
from fulltilt.machine.cores import read_cores
from fulltilt.machine.sample import CpuSample, GpuSample, ProcessSample, Sample


@pytest.mark.parametrize(
    ("since", "until", "expected"), [(0.0, 99.0, 20), (6.0, 99.0, 8), (9.0, 99.0, 20), (0.0, 4.6, 10)]
)
def test_memory_is_that_of_the_training_where_there_are_readings_enough(
    since: float, until: float, expected: int
) -> None:
    """A process that imports for six seconds, and then trains for four."""
    around = Around(os.getpid())
    around._samples = [
        Sample(t=0.5 * at, process=replace(ProcessSample(pid=1), ram_used=min(at, 12) * 100 * 2**20))
        for at in range(20)
    ]
    found = around.seen(None, since=since, until=until)
    assert len(found.memory_bytes) == expected
    if expected == 20:
        begun = around.seen(None, begun=6.0, since=since, until=until).memory_bytes
        assert len(set(begun)) == 1 or since < 6.0, "nor is it where most of a short training was warm-up"
    if expected == 8:
        assert len(set(found.memory_bytes)) == 1, "what the imports took is not growth"


def test_workers_that_start_for_an_epoch_are_no_growth() -> None:
    around = Around(os.getpid())
    counts = [3, 3, 1, 3, 3, 3, 1, 3, 2, 3]
    around._samples = [
        Sample(t=float(at), process=ProcessSample(pid=1, count=count, ram_used=count * 100 * 2**20))
        for at, count in enumerate(counts)
    ]
    assert set(around.seen(None).memory_bytes) == {300 * 2**20}
    around._samples = []
    assert around.seen(None).memory_bytes == ()


def test_cores_that_others_keep_busy() -> None:
    around = Around(os.getpid())
    cores = read_cores().usable
    around._samples = [
        Sample(t=float(at), cpu=CpuSample(util=75.0), process=ProcessSample(pid=1, cpu=50.0)) for at in range(9)
    ]
    assert around.seen(None).others_cores == pytest.approx(0.75 * cores - 0.5)
    around._samples = [Sample(t=0.0)]
    assert around.seen(None).others_cores is None


def test_a_gpu_is_seen_while_it_trains() -> None:
    """Ten seconds of imports, one of training, three in which kernels are counted; its name comes once."""
    around = Around(os.getpid())
    around._samples = [
        Sample(
            t=0.2 * at,
            gpus=(GpuSample(index=0, name="H200" if at == 0 else None, util=90.0 if 50 <= at <= 55 else 0.0),),
            process=replace(ProcessSample(pid=1), ram_used=at * 100 * 2**20),
        )
        for at in range(70)
    ]
    found = around.seen("cuda:0", since=9.9, until=11.1)
    assert found.gpu == "H200"
    assert found.gpu_share == pytest.approx(0.9)
    assert len(found.memory_bytes) == 6, "what CUDA takes of the host before is not the training's"
    assert around.seen("cuda:0", since=99.0).gpu_share == pytest.approx(0.9 * 6 / 47)


def test_all_samples_are_handed_on_with_the_commands_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fulltilt.launch.around.MOST_READINGS", 3)
    handed: list[Sample] = []
    around = Around(os.getpid(), handed.append)
    around._sampling.zero = around._began + 0.5  # the driver took so long to open
    for at in range(5):
        around._add(Sample(t=float(at), process=replace(ProcessSample(pid=1), ram_used=100)))
    assert [sample.t for sample in handed] == pytest.approx([0.5, 1.5, 2.5, 3.5, 4.5])
    assert around.seen("cuda:0", since=1.4, until=9.0).memory_bytes == (100, 100), "of the first three"


def test_the_process_that_looks_is_no_other() -> None:
    assert _is_ours(os.getpid())
    assert not _is_ours(os.getppid())
