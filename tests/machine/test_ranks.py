"""Which of several processes this one is."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch.distributed as dist

from fulltilt.machine import ranks


def test_alone_nobody_tells_and_there_is_no_group(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert (ranks.rank(), ranks.world(), ranks.several(), ranks.grouped()) == (0, 1, False, False)
    assert ranks.told() is None
    assert (ranks.told_world(), ranks.told_local_rank(), ranks.told_local_world()) == (1, 0, 1)


def test_what_torchrun_tells_is_known_before_there_is_a_group(monkeypatch):
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    assert ranks.told() == (5, 8)
    assert (ranks.told_world(), ranks.told_local_rank(), ranks.told_local_world()) == (8, 1, 4)
    assert (ranks.rank(), ranks.world()) == (0, 1), "nobody is connected"


@pytest.mark.parametrize("value", ["", "0", "some"])
def test_cores_are_shared_by_one_process_at_least(monkeypatch, value):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", value)
    assert ranks.told_local_world() == 1


def test_the_group_is_asked_where_there_is_one(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        assert ranks.grouped()
        assert not ranks.several()
    finally:
        dist.destroy_process_group()
    assert not ranks.grouped()


def test_asking_imports_no_torch():
    asked = "import sys; from fulltilt.machine.ranks import several; several(); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", asked], check=True)
