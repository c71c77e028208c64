"""What is known of videos, for all threads and processes that make clips of them.

To open a video for the first time its packets are read and a picture is decoded, which takes a fifth of a clip's time,
and in the next epochs it is mostly another worker's turn. Workers are forks of one process, which has made a file in
memory: who has opened a video writes what it knows behind all that is there, and who meets one that it does not know
reads on from where it left off.

    record = mark, bytes of path and of content, size and time of the video, checksum │ path │ content

Without a lock, which a process that is forked meanwhile might find locked for ever: a record is one call, which the
system appends whole, and here there are only single steps of dicts.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import struct
import weakref
import zlib

from fulltilt.decode.video.reader import Known

Stamp = tuple[int, int]
"""Size and time of a file."""
KNOWN_FRAMES = 1_000_000
"""Of all files of which is kept what is known of them: their times are what takes memory, about 40 bytes each."""
LOG_BYTES = 64 << 20
"""Of the file in memory, in which a frame takes about 5: nothing is written to one that is larger."""
_HEAD, _MARK = struct.Struct("<4sIIqqI"), b"clip"


class Knowledge:
    """Of files, by their paths, while they are as they were."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[Stamp, Known]] = {}
        self._frames = 0
        self._log = Log()

    def of(self, path: str, stamp: Stamp) -> Known | None:
        at, known = self._found.get(path, (None, None))
        if at == stamp:
            return known
        known = self._log.find(path, stamp)
        if known is not None:
            self._keep(path, stamp, known)
        return known

    def add(self, path: str, stamp: Stamp, known: Known) -> None:
        if self._found.get(path, (None, None))[0] != stamp:
            self._keep(path, stamp, known)
            self._log.add(path, stamp, known)

    def _keep(self, path: str, stamp: Stamp, known: Known) -> None:
        if self._frames > KNOWN_FRAMES:  # who goes through so many files meets few of them again soon
            self._found.clear()
            self._frames = 0
        if path not in self._found:
            self._frames += known.index.count
        self._found[path] = (stamp, known)


class Log:
    """Records of all forks. Where the system has no files in memory, and in processes that are no forks, of one."""

    def __init__(self) -> None:
        self._read = 0
        """Up to here, what is where is known."""
        self._places: dict[str, tuple[Stamp, int, int, int]] = {}
        """Of the last record of a path: the file's stamp, where its content begins, bytes, checksum."""
        self._file: int | None = None
        if hasattr(os, "memfd_create"):
            self._file = os.memfd_create("fulltilt-clips")
            fcntl.fcntl(self._file, fcntl.F_SETFL, os.O_APPEND)
            weakref.finalize(self, os.close, self._file).atexit = False  # threads may still read

    def find(self, path: str, stamp: Stamp) -> Known | None:
        """What somebody has written of it; None where nobody has, or the file was another then."""
        self._read_on()
        at, begin, count, checksum = self._places.get(path, (None, 0, 0, 0))
        if self._file is None or at != stamp:
            return None
        content = os.pread(self._file, count, begin)
        if zlib.crc32(content) != checksum:  # who wrote it was ended in the middle of it
            return None
        known: Known = pickle.loads(content)
        return known

    def add(self, path: str, stamp: Stamp, known: Known) -> None:
        self._read_on()
        its_stamp = self._places.get(path, (None,))[0]
        if self._file is None or its_stamp == stamp or os.fstat(self._file).st_size > LOG_BYTES:
            return
        name, content = os.fsencode(path), pickle.dumps(known)
        head = _HEAD.pack(_MARK, len(name), len(content), *stamp, zlib.crc32(content))
        os.write(self._file, head + name + content)

    def _read_on(self) -> None:
        """Threads that do it at the same time find the same."""
        if self._file is None:
            return
        at, end = self._read, os.fstat(self._file).st_size
        while at + _HEAD.size <= end:
            mark, name, content, size, changed, checksum = _HEAD.unpack(os.pread(self._file, _HEAD.size, at))
            begin = at + _HEAD.size + name
            if mark != _MARK or begin + content > end:  # it is being written, or will never be
                break
            path = os.fsdecode(os.pread(self._file, name, at + _HEAD.size))
            self._places[path] = ((size, changed), begin, content, checksum)
            at = begin + content
        self._read = at
