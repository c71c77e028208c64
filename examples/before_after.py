"""Print what `fulltilt run --json FILE` found, in five lines.

python examples/before_after.py runs/demo/run.json
"""

import json
import sys
from pathlib import Path

found = json.loads(Path(sys.argv[1]).read_text())
plan, after = found["plan"], found["after"]
if plan is None:
    print("  the script was run as it is: this machine is too busy to try anything")
    sys.exit()
reached = plan["after"] if after is None else after["samples_per_second"]
limit = "not measured" if plan["limit"] is None else f"{plan['limit']:.0f}"
settings = ", ".join(f"{name} = {value}" for name, value in plan["settings"].items())
print(f"  before     {plan['before']:.0f} samples/s")
print(f"  after      {reached:.0f} samples/s, {reached / plan['before']:.2f} times as fast ({settings or 'unchanged'})")
print(f"  limit      {limit} samples/s, if batches cost nothing")
print(f"  the same?  {plan['verified']}")
