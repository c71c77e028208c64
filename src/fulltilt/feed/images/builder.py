"""A cache built beside training: a process of its own that gives way to all others, and ends with the trainer.

Run by `caching.py` as `python -m`. Its standard input is a pipe that only the trainer holds: when that ends, by close()
or by the trainer's death, the build is broken off as by Ctrl-C, and keeps what it has made.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

from fulltilt.cache.build import build
from fulltilt.cache.settings import CacheSettings
from fulltilt.errors import FulltiltError
from fulltilt.feed.images.catalog import Catalog

_NICE = 15
"""Behind the decoders (10): where they take all cores, a build gets a quarter. With less it would gain too late."""


def main() -> int:
    options = json.loads(sys.argv[1])
    os.nice(_NICE)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Thread(target=_end_with_the_trainer, daemon=True).start()
        catalog = Catalog(options["catalog"])
        numbers = range(len(catalog))
        report = build(
            options["folder"],
            [catalog.image(number) for number in numbers],
            [catalog.mask(number) for number in numbers] if catalog.has_masks else None,
            settings=CacheSettings.from_json(options["settings"]),
            workers=options["workers"],
            budget_bytes=options["budget_bytes"],
        )
    except KeyboardInterrupt:
        return 130
    except FulltiltError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 2
    told = {"made": report.made, "present": report.present, "failed": len(report.failures), "seconds": report.seconds}
    print(json.dumps(told), flush=True)
    return 0


def _end_with_the_trainer() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main())
