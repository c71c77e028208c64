"""Torch's own switches are put back by whichever names they were set; each in a process, as they can't be mixed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

ASKED = """
import json, torch
from fulltilt.tune.keeping import keep_maths

matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
{theirs}

def now():
    return [part.fp32_precision for part in (matmul, cudnn.conv, cudnn.rnn)] + [cudnn.benchmark]

before = now()
put_back = keep_maths()
torch.set_float32_matmul_precision("{ours}")
cudnn.allow_tf32, cudnn.benchmark = {tf32}, True
put_back()
print(json.dumps([before, now()]))
"""


@pytest.mark.parametrize(
    ("theirs", "ours", "tf32"),
    [
        ("torch.set_float32_matmul_precision('high'); cudnn.allow_tf32 = False", "highest", True),
        ("matmul.fp32_precision = 'tf32'", "highest", False),
        ("matmul.fp32_precision = 'tf32'; cudnn.conv.fp32_precision = 'ieee'", "highest", True),
    ],
)
def test_precision_is_put_back_by_whichever_names_it_was_set(theirs, ours, tf32):
    script = ASKED.format(theirs=theirs, ours=ours, tf32=tf32)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    before, after = json.loads(done.stdout)
    assert after == before
