"""Training with CPU work beside it, when a helper is killed or Ctrl-C comes: real processes, real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

COMMON = """
    import os, signal, sys, time
    import torch
    from torch import nn
    from torchmetrics import MeanMetric
    from torchmetrics.classification import MulticlassAccuracy
    from fulltilt import CPUAssistedTraining, HybridPrecisionTrainer, Trainer

    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    data = [(torch.randn(8, 3, 2, 2), torch.randint(3, (8,))) for _ in range(20)]
"""


def start(folder: Path, code: str) -> subprocess.Popen[str]:
    """A program in a file: what runs in processes has to be importable there."""
    program = folder / "program.py"
    program.write_text(textwrap.dedent(COMMON) + textwrap.dedent(code))
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def gone(pids: set[int], seconds: float = 15.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        alive = [pid for pid in pids if psutil.pid_exists(pid)]
        if all(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE for pid in alive):
            return True
        time.sleep(0.02)
    return False


def test_training_goes_on_when_an_assisting_process_is_killed(tmp_path):
    (tmp_path / "helpers.py").write_text(
        "import os, time\n\ndef score(values):\n    time.sleep(0.05)\n    return os.getpid(), sum(values)\n"
    )
    process = start(
        tmp_path,
        """
        import helpers

        if __name__ == "__main__":
            trainer = HybridPrecisionTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), device="cpu")
            with CPUAssistedTraining(2) as assist:
                assist.register("score", helpers.score, run_in="processes")
                first = assist.submit("score", [1.0, 2.0]).result()[0]
                seen, killed = set(), False
                pending = []
                for images, labels in data:
                    loss, outputs = trainer.train_step(images, labels)
                    pending.append(assist.submit("score", outputs[0].tolist(), retries=2))
                    if len(pending) == 10:
                        os.kill(first, signal.SIGKILL)
                for future in pending:
                    pid, total = future.result(timeout=60)
                    seen.add(pid)
                print("steps", len(pending), "of", *seen - {first}, flush=True)
        """,
    )
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    words = out.split()
    assert words[:2] == ["steps", "20"]
    assert gone({int(word) for word in words[3:]})


@pytest.mark.parametrize("moment", ["training", "validation"])
def test_ctrl_c_while_metrics_are_counted_beside_the_step(tmp_path, moment):
    process = start(
        tmp_path,
        f"""
        class Slow(MulticlassAccuracy):
            def update(self, preds, target):
                time.sleep(0.02)
                super().update(preds, target)

        class Endless:
            def __init__(self, count):
                self.count = count
            def __iter__(self):
                for n in range(self.count):
                    if n == 5:
                        print("ready", flush=True)
                    time.sleep(0.005)
                    yield data[n % 20]

        config = {{"epochs": 1000, "eval_interval": 1, "precision": "fp32", "compile": False, "output": r"{tmp_path}"}}
        train, held_out = ({"Endless(10**6), None" if moment == "training" else "data, Endless(80)"})
        trainer = Trainer(model, train, held_out, config=config, metrics={{"slow": Slow(3)}})
        history = trainer.fit()
        print("left", history.stopped_by is not None, trainer.step > 0, flush=True)
        """,
    )
    assert process.stdout.readline() == "ready\n"
    children = {child.pid for child in psutil.Process(process.pid).children(recursive=True)}
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert out.splitlines()[-1] == "left True True"
    assert "Traceback" not in error
    assert gone(children)


def test_an_error_in_the_loop_ends_the_program_with_metrics_pending(tmp_path):
    process = start(
        tmp_path,
        """
        class Slow(MulticlassAccuracy):
            def update(self, preds, target):
                time.sleep(0.05)
                super().update(preds, target)

        def batches():
            yield from data
            raise OSError("the disk is gone")

        Trainer(model, batches(), config={"epochs": 1}, metrics={"slow": Slow(3)}, device="cpu").fit()
        """,
    )
    _, error = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "OSError: the disk is gone" in error
