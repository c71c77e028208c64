"""Checkpoints of several ranks: real processes, gloo, FSDP2 on the CPU."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fulltilt.errors import CheckpointError
from fulltilt.train.checkpoint import Checkpoints, load_checkpoint
from fulltilt.train.checkpoint.shards import _without_doubles

SCRIPT = Path(__file__).parent / "scripts" / "ranks.py"


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    done = subprocess.run(
        [sys.executable, "-W", "error", SCRIPT, folder],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    return folder, done


def test_saved_by_two_ranks_and_loaded_by_one_two_and_three(told):
    """And: damage that one rank finds, a rank that can't write, a rank that is killed, replicas. See the script."""
    _, done = told
    assert done.stdout == "done\n", done.stderr


@pytest.fixture
def checkpoint(told, tmp_path):
    """A copy of one that two ranks wrote, to be damaged."""
    source = Checkpoints(told[0] / "checkpoints").latest()
    return Path(shutil.copytree(source, tmp_path / source.name))


@pytest.mark.parametrize("name", ["manifest.json", "rank-00000.safetensors", "shards/__0_0.distcp", "shards/.metadata"])
@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing"])
def test_damage_is_found_in_every_file(checkpoint, name, damage):
    load_checkpoint(checkpoint)
    path = checkpoint / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content if damage == "flipped" else content[:-5])
    with pytest.raises(CheckpointError, match=str(checkpoint)):
        load_checkpoint(checkpoint)


def test_an_index_that_would_run_code_is_refused(checkpoint):
    """Also by somebody who has set the checksums right."""
    from fulltilt.train.checkpoint import sharded

    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(checkpoint / "executed"),)

    index = checkpoint / "shards" / ".metadata"
    index.write_bytes(pickle.dumps(Bomb()))
    manifest = sharded.read_manifest(checkpoint)
    manifest["files"]["shards/.metadata"] = sharded._check(index)
    (checkpoint / "manifest.json").unlink()
    sharded._write_manifest(checkpoint, manifest)
    sharded.verify(checkpoint)
    with pytest.raises(CheckpointError, match=r"names (posix|os)\.mkdir, which does not belong"):
        load_checkpoint(checkpoint)
    assert not (checkpoint / "executed").exists()


def test_torchs_own_tools_read_the_shards(checkpoint, tmp_path):
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save(checkpoint / "shards", tmp_path / "whole.pt")
    found = torch.load(tmp_path / "whole.pt", weights_only=True)
    assert torch.equal(found["model.0.weight"], load_checkpoint(checkpoint)["model"]["0.weight"])


def test_replicas_are_written_once_and_shared_out():
    from torch.distributed.checkpoint.planner import SavePlan

    from fulltilt.train.checkpoint.shards import _item

    items = [_item(f"w{i}", torch.ones(size), (0,), (size,)) for i, size in enumerate([100, 60, 50])]
    first, second = _without_doubles([SavePlan(items), SavePlan(items)])
    assert [item.index.fqn for item in first.items] == ["w0"]
    assert [item.index.fqn for item in second.items] == ["w1", "w2"]
