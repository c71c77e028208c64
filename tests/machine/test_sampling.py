"""The thread that samples."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest
from tests.machine.fake_nvml import h200, install

from fulltilt.machine.sample import Sample
from fulltilt.machine.sampling import Sampling


def test_samples_come_until_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, [h200()])
    samples: list[Sample] = []
    third = threading.Event()

    def add(sample: Sample) -> None:
        samples.append(sample)
        if len(samples) == 3:
            third.set()

    before = time.monotonic()
    with Sampling(add, 0.02, pid=os.getpid()) as sampling:
        assert third.wait(60)
    ended = time.monotonic()
    assert before <= sampling.zero <= ended
    assert sampling.problem is None
    many = len(samples)
    assert [sample.t for sample in samples] == sorted(sample.t for sample in samples)
    assert samples[0].t >= 0.02
    assert sampling.zero + samples[-1].t <= ended + 1e-3
    assert samples[0].gpus[0].name == "NVIDIA H200"
    assert all(sample.process is not None for sample in samples)
    time.sleep(0.1)
    assert len(samples) == many


def test_one_sample_is_taken_however_early_the_end() -> None:
    samples: list[Sample] = []
    with Sampling(samples.append, 3600.0):
        pass
    assert len(samples) == 1


def test_it_ends_by_itself_after_as_many_as_were_wanted() -> None:
    samples: list[Sample] = []
    sampling = Sampling(samples.append, 0.001, most=4)
    sampling.start()
    sampling._thread.join(60)
    assert not sampling._thread.is_alive()
    assert len(samples) == 4
    sampling.close()


def test_without_a_driver_the_host_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, [])
    samples: list[Sample] = []
    with Sampling(samples.append, 3600.0) as sampling:
        pass
    assert sampling.problem is not None
    assert len(samples) == 1


def test_a_process_that_has_ended_is_not_sampled() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    samples: list[Sample] = []
    with Sampling(samples.append, 0.001, pid=child.pid) as sampling:
        pass
    assert sampling.problem is not None
    assert f"no process {child.pid} is running" in sampling.problem
    assert samples == []
