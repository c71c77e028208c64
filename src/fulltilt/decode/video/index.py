"""Frames by number: when each is shown, and the key frame from which it can be reached. Pure.

Packets come in the order of decoding, frames are shown in the order of their times (pts), and the two differ where
frames are predicted from later ones. A frame is reached from the last key frame that is shown no later than it: the
pictures that follow a key frame in the file but are shown before it (an open group of pictures) may need the one
before, and they have an earlier time, so the rule leads them there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameIndex:
    """Of one video. Times are in the stream's own units."""

    times: tuple[int, ...] | None
    """When each frame is shown, ascending; None where the file does not say, or its times can't be relied on: such a
    file can only be decoded from its beginning, and frames are counted."""
    keys: tuple[int, ...]
    """Numbers of the frames that need no other, ascending; the first frame counts as one."""
    count: int

    def key_before(self, frame: int) -> int:
        """The key frame from which it is reached."""
        return self.keys[bisect_right(self.keys, frame) - 1]

    def number_of(self, time: int | None) -> int | None:
        """The frame that is shown at a time; None if there is none."""
        times = self.times
        if times is None or time is None:
            return None
        number = bisect_left(times, time)
        return number if number < len(times) and times[number] == time else None

    @property
    def key_interval(self) -> float:
        """Frames from one key frame to the next, on average."""
        return self.count / len(self.keys)


@dataclass(frozen=True, slots=True)
class PacketFacts:
    """What a packet says of itself."""

    time: int | None
    """When its frame is shown."""
    decode_time: int | None
    key: bool
    """Decoding can begin here."""
    shown: bool
    """False where the file says that the frame is only there for others to refer to (edit lists)."""


def index_of(packets: Iterable[PacketFacts], *, timed: bool = True) -> FrameIndex | None:
    """From all packets in the file's order; None if nothing is shown.

    What comes before the first key frame needs pictures that are not in the file, and is not counted. `timed` is False
    where the packets' times are known not to be those of the frames.
    """
    found = list(packets)
    first = next((at for at, packet in enumerate(found) if packet.key), 0)
    since = found[first].time if found else None
    # Its pictures end at the next one: what is shown earlier and comes behind that has a clock that was set back.
    second = next((at for at, packet in enumerate(found) if packet.key and at > first), len(found))
    own = [packet for packet in found[first:second] if packet.time is None or since is None or packet.time >= since]
    found = own + found[second:]
    shown = [packet for packet in found if packet.shown]
    if not shown:
        return None
    times = [packet.time for packet in shown if packet.time is not None]
    clock = [packet.decode_time for packet in found if packet.decode_time is not None]
    # Files that were joined end to end have times that occur twice, or a clock that is set back.
    if not timed or len(times) < len(shown) or len(set(times)) < len(times) or clock != sorted(clock):
        return FrameIndex(times=None, keys=(0,), count=len(shown))
    ordered = sorted((packet.time, packet.key) for packet in shown if packet.time is not None)
    keys = {0, *(number for number, (_, key) in enumerate(ordered) if key)}
    return FrameIndex(times=tuple(time for time, _ in ordered), keys=tuple(sorted(keys)), count=len(ordered))


@dataclass(frozen=True, slots=True)
class Run:
    """Frames that one pass through the decoder gives."""

    start: int
    """The key frame to begin at; −1: go on from where the decoder stands."""
    frames: tuple[int, ...]
    """Ascending."""


def runs_of(index: FrameIndex, wanted: Sequence[int], position: int | None) -> list[Run]:
    """The passes that give `wanted` (any order, repeats allowed), each frame decoded once.

    `position` is the next frame that the decoder will give, None if it has to be placed first. Where a key frame lies
    between two wanted ones, it is jumped to: at most the decoder's own delay is lost by it.
    """
    runs: list[Run] = []
    current: list[int] = []
    start = -1
    here = position
    for frame in sorted(set(wanted)):
        key = index.key_before(frame)
        if here is not None and here <= frame and key <= here:
            current.append(frame)  # no key frame between here and there
        else:
            if current:
                runs.append(Run(start, tuple(current)))
            start, current = key, [frame]
        here = frame + 1
    if current:
        runs.append(Run(start, tuple(current)))
    return runs
