"""Behind `make test`, where tests have failed: a few of them are run once more, with no other test beside them.

Some tests look at real clocks, processes and memory, and a machine of two cores that others use takes a core away for a
tenth of a second now and then. What fails twice fails; what passes alone is named, so that somebody mends it; and more
than a few are no accident.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MOST = 3
FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main() -> int:
    try:
        failed = sorted(json.loads(FAILED.read_text()))
    except (OSError, ValueError):
        failed = []
    if not 0 < len(failed) <= MOST:
        print(f"{len(failed)} tests failed: they are not run again (1 to {MOST} would be)")
        return 1
    print(f"\nOnce more, alone: {', '.join(failed)}\n", flush=True)
    status = subprocess.run([sys.executable, "-m", "pytest", *failed], check=False).returncode
    if status == 0:
        print(f"\nUnsteady, failed beside other tests and passed alone: {', '.join(failed)}")
    return status


if __name__ == "__main__":
    sys.exit(main())
