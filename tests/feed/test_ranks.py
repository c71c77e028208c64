"""Two ranks under torchrun: every sample once between them, in equal shares, with the cores shared out."""

import json
import subprocess
import sys

SCRIPT = """
import json, os, sys, torch
import torch.distributed as dist
from fulltilt.feed import feed
dist.init_process_group("gloo")
# Gloo's connecting fails if the other side has left already, and this one may have lost its core meanwhile. Training
# has the ranks wait for each other at once; a feed alone never does.
dist.barrier()
it = feed(torch.arange(50), batch_size=4, shuffle=True, seed=3, device="cpu")
epochs = [[batch.tolist() for (batch,) in it] for _ in range(2)]
with open(os.path.join(sys.argv[1], f"{dist.get_rank()}.json"), "w") as file:
    json.dump(epochs, file)
dist.destroy_process_group()
"""


def test_ranks_share_every_epoch(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    subprocess.run([*command, str(tmp_path)], check=True, capture_output=True, timeout=120)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    for epoch in range(2):
        ours, theirs = ranks[0][epoch], ranks[1][epoch]
        assert [len(batch) for batch in ours] == [len(batch) for batch in theirs]
        taken = [number for pair in zip(ours, theirs, strict=True) for batch in pair for number in batch]
        assert sorted(taken) == list(range(50))
    assert ranks[0][0] != ranks[0][1]
