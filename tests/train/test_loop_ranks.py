"""Two processes under torchrun: both train, one speaks and writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = """
import torch
from fulltilt import Trainer
from fulltilt.feed import feed
from tests.train.helpers import EXACT, network, samples

torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
data, held_out = (feed(samples(), batch_size=8, shuffle=shuffle, device="cpu") for shuffle in (True, False))
trainer = Trainer(network(), data, held_out, config={"epochs": 2, "eval_interval": 1, "output": "out", **EXACT})
history = trainer.fit()
print(f"rank {torch.distributed.get_rank()}: {trainer.step} steps, main {trainer.is_main}", flush=True)
torch.distributed.destroy_process_group()
"""


def test_only_rank_0_speaks_and_writes(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "script.py"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0: 12 steps, main True", "rank 1: 12 steps, main False"]
    assert done.stderr.count("epoch 1/2: train_loss") == 1
    assert done.stderr.count("training Sequential") == 1
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert kinds == ["start", "epoch", "epoch", "end"]
    assert len(list((tmp_path / "out" / "checkpoints").iterdir())) == 2
