"""The group of processes under torchrun: nobody is in it before all are."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, sys, time
import torch.distributed as dist
from fulltilt.train import process_group

rank, connect = int(os.environ["RANK"]), dist.init_process_group

def late(*args, **more):
    connect(*args, **more)
    if rank:
        time.sleep(0.5)  # its core was taken away
        open(f"{sys.argv[1]}/connected", "w").close()

dist.init_process_group = late
with process_group():
    assert os.path.exists(f"{sys.argv[1]}/connected"), f"rank {rank} is through before the other"
"""


def test_nobody_goes_on_before_all_are_connected(tmp_path):
    script = tmp_path / "short.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    subprocess.run([*command, str(tmp_path)], check=True, capture_output=True, timeout=120)
