"""Record known loads with the real monitor: the recordings behind the verdicts' tests.

    python benchmarks/record_loads.py tests/monitor/recordings

Runs each load of `fulltilt.bench.loads` in a process of its own, watches it for --seconds at --interval, writes a small
recording and prints the verdict. Needs a GPU; with --device cpu it only shows that the script works.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fulltilt.bench.loads import LOADS
from fulltilt.bench.running import running_load
from fulltilt.machine.files import write_whole
from fulltilt.monitor.recording import read_recording
from fulltilt.monitor.summary import summarize

_DROPPED = {"uuid", "processes"}  # they tell one machine and one moment apart, which no test asks for


def main() -> None:
    parser = argparse.ArgumentParser(description="Record known loads with the real monitor.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=42.0, help="how long each load is watched")
    parser.add_argument("--interval", type=float, default=0.2)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=LOADS)
    wanted = parser.parse_args()
    wanted.folder.mkdir(parents=True, exist_ok=True)
    for load in wanted.loads:
        file = wanted.folder / f"{load}.jsonl"
        with running_load(load, device=wanted.device):
            time.sleep(2)  # utilisation is averaged over up to a second: let the start pass out of it
            lines = record(seconds=wanted.seconds, interval=wanted.interval)
        write_whole(file, "".join(json.dumps(compact(line), separators=(",", ":")) + "\n" for line in lines))
        show(load, file)


def record(*, seconds: float, interval: float) -> list[dict[str, Any]]:
    """What `fulltilt monitor --record` writes."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "recording.jsonl"
        command = [sys.executable, "-m", "fulltilt", "monitor", "--record", str(file), "--interval", str(interval)]
        subprocess.run([*command, "--duration", str(seconds)], check=True, stdout=subprocess.DEVNULL)
        return [json.loads(line) for line in file.read_text().splitlines()]


def compact(value: Any, digits: int = 1) -> Any:
    """The same with fewer digits; whole numbers for the cores."""
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if key not in _DROPPED}
        return {key: compact(item, {"t": 3, "cores": 0}.get(key, digits)) for key, item in kept.items()}
    if isinstance(value, list):
        return [compact(item, digits) for item in value]
    if isinstance(value, float):
        return round(value, digits or None)
    return value


def show(load: str, file: Path) -> None:
    summary = summarize(read_recording(file).samples)
    size = f"{summary.samples} samples, {file.stat().st_size / 1000:.0f} kB"
    for gpu in summary.gpus:
        verdict = "none" if gpu.verdict is None else f"{gpu.verdict.name}: {gpu.verdict.evidence}"
        cycle = "" if gpu.cycle_seconds is None else f", cycle {gpu.cycle_seconds:.1f} s"
        flags = "".join(f", {flag.name} ({flag.evidence})" for flag in gpu.flags)
        print(f"{load}: GPU {gpu.label} {verdict}{cycle}{flags}; {size}", flush=True)
    if not summary.gpus:
        print(f"{load}: no GPU; {size}", flush=True)


if __name__ == "__main__":
    main()
