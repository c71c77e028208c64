"""Decoder sessions of the GPU that a video has left and another can go on with: making one takes longer than a clip."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What has to be the same. Surfaces are allotted by a stream's header, so that one with another needs its own."""

    codec: str
    height: int
    width: int
    header: bytes
    device: str


class Sessions:
    """Of all threads. What has been left longest is let go when there are more than `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._left: OrderedDict[int, tuple[Key, Any]] = OrderedDict()
        self._lock = threading.Lock()
        self._number = 0
        self.made = self.used_again = 0
        """Sessions that were asked for and not there, and that were."""

    def take(self, key: Key) -> Any | None:
        """What was given for such a key, at most once each; None if there is none."""
        with self._lock:
            # Where a header is not kept apart, it is in the stream, and not known to be the same.
            found = next((number for number, (its, _) in self._left.items() if its == key and key.header), None)
            self.made, self.used_again = self.made + (found is None), self.used_again + (found is not None)
            return None if found is None else self._left.pop(found)[1]

    def give(self, key: Key, session: Any) -> None:
        dropped = None  # what is let go is ended outside of the lock
        with self._lock:
            self._left[self._number] = (key, session)
            self._number += 1
            if len(self._left) > self._most:
                dropped = self._left.popitem(last=False)
        del dropped

    def __len__(self) -> int:
        with self._lock:
            return len(self._left)

    def close(self) -> None:
        with self._lock:
            left, self._left = self._left, OrderedDict()
        left.clear()
