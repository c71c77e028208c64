"""A process of a build: takes samples from standard input, makes their pixels, appends them to its own shard.

One JSON line per sample in, one or more out:

    {"number": 7, "image": "…", "mask": null}  →  {"number": 7, "outcome": "made", "bytes": 562500}
                                               →  {"kept": 12}        so many more of those reported now survive a kill
                                               →  {"stopped": "…"}    the disk is full; nothing more is taken
It ends when its input does, also because the builder was killed, and keeps what it has made.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, TextIO

from fulltilt.cache.keys import content_of, name_of, read_steadily
from fulltilt.cache.make import make
from fulltilt.cache.settings import CacheSettings
from fulltilt.cache.shard import Record
from fulltilt.cache.store import Cache
from fulltilt.cache.writer import ShardWriter, Subject
from fulltilt.errors import FulltiltError


class Worker:
    """One process's work."""

    def __init__(self, folder: Path, settings: CacheSettings, *, shard_bytes: int, out: int) -> None:
        self._settings, self._digest, self._out = settings, settings.digest, out
        self._alone = False
        self._cache = Cache(folder, settings)
        self._writer = ShardWriter(folder, self._digest, shard_bytes=shard_bytes)
        self._made: dict[bytes, Record] = {}
        self._told = 0

    def run(self, lines: TextIO) -> None:
        try:
            for line in lines:
                self._sample(json.loads(line))
                if self._alone:
                    break
                self._tell_kept()
            self._writer.close()
            self._tell_kept()
        except OSError as error:  # of the shard; a sample's own are told as its outcome
            self._tell_kept()
            self._say(stopped=error.strerror or str(error), errno=error.errno)

    def _sample(self, task: dict[str, Any]) -> None:
        number, image, mask = task["number"], task["image"], task["mask"]
        try:
            data, stamp = read_steadily(image)
            mask_data, mask_stamp = (None, (0, 0, 0, 0)) if mask is None else read_steadily(mask)
            content = content_of(data, mask_data, self._digest)
            known = self._made.get(content) or self._cache.known(content)
            pixels = None if known else make(data, mask_data, self._settings)
        except (FulltiltError, OSError, MemoryError) as error:
            text = str(error)
            if isinstance(error, OSError) and error.strerror and error.filename != mask:
                text = error.strerror  # of the image, whose name is told with it
            self._say(number=number, outcome="failed", error=text or type(error).__name__)
            return
        subject = Subject(
            name=name_of(image, mask, self._digest),
            content=content,
            stamp=stamp + mask_stamp,
            image=os.fsencode(os.path.abspath(image)),
            mask=None if mask is None else os.fsencode(os.path.abspath(mask)),
        )
        size = 0
        if known:
            self._writer.add_known(subject, known)
        elif pixels is not None:
            record = self._writer.add(subject, *pixels)
            self._made[content] = record
            size = record.end - record.offset
        self._say(number=number, outcome="known" if known else "made", bytes=size)

    def _tell_kept(self) -> None:
        if (more := self._writer.kept - self._told) > 0:
            self._told += more
            self._say(kept=more)

    def _say(self, **report: Any) -> None:
        try:
            os.write(self._out, json.dumps(report).encode() + b"\n")
        except BrokenPipeError:
            self._alone = True  # the builder is gone; what was made is kept all the same


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the builder; it closes our input
    options = json.loads(sys.argv[1])
    settings = CacheSettings.from_json(options["settings"])
    worker = Worker(Path(options["folder"]), settings, shard_bytes=options["shard_bytes"], out=sys.stdout.fileno())
    worker.run(sys.stdin)


if __name__ == "__main__":
    main()
