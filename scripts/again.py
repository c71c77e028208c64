"""Behind `make test`, where tests have failed: a few of them are run once more, with no other test beside them.

Some tests look at real clocks, processes and memory, and a machine of two cores that others use takes a core away for a
tenth of a second now and then. What fails twice fails; what passes alone is named, with the end of what its failure
said, so that somebody mends it: it may as well be a race in what is tested. And more than a few are no accident.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

MOST = 3
LINES = 25
FAILED = Path(".pytest_cache/v/cache/lastfailed")
REPORT = Path(".pytest_cache/first.xml")
"""What `make test` has pytest write, as --junitxml does."""


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
        reasons = said()
        for name in failed:
            print(f"\nUnsteady, failed beside other tests and passed alone: {name}")
            for line in reasons.get(_address(name), ["(what it said is not in the report)"])[-LINES:]:
                print(f"    {line}")
    return status


def said() -> dict[tuple[str, str], list[str]]:
    """What the first failures said, line by line."""
    try:
        cases = ElementTree.parse(REPORT).iter("testcase")
    except (OSError, ElementTree.ParseError):
        return {}
    found: dict[tuple[str, str], list[str]] = {}
    for case in cases:
        for part in (*case.iter("failure"), *case.iter("error")):
            lines = found.setdefault((case.get("classname", ""), case.get("name", "")), [])
            lines += (part.text or part.get("message", "")).strip().splitlines()
    return found


def _address(name: str) -> tuple[str, str]:
    """A test's name in the report: parts of a path and classes are joined by dots."""
    place, bracket, parameters = name.partition("[")
    *outer, last = place.split("::")
    if outer:
        outer[0] = outer[0].removesuffix(".py").replace("/", ".")
    return ".".join(outer), last + bracket + parameters


if __name__ == "__main__":
    sys.exit(main())
