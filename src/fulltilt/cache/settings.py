"""What was done to the pixels of a cache: all that they depend on beside the files themselves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from fulltilt.decode import Quality
from fulltilt.errors import CacheError, InputError

DECODE_VERSION: Final = 1
"""Goes up when the same file and settings would give other pixels: then every older cache is a miss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """Options of the pixels in a cache; another value is another cache."""

    size: int | None = None
    """The shorter side in pixels; smaller images stay as they are. None keeps every image whole."""
    channels: int = 3
    """1 (grey), 3 (RGB) or 4 (RGBA)."""
    quality: Quality = "exact"
    """As for `decode`."""
    decode_version: int = DECODE_VERSION
    """Of the fulltilt that made the pixels."""

    def __post_init__(self) -> None:
        if self.size is not None and not 1 <= self.size <= 65535:
            raise InputError(f"size is {self.size!r}; allowed: the shorter side in pixels, 1 to 65535, or None")
        if self.channels not in (1, 3, 4):
            raise InputError(f"channels is {self.channels!r}; allowed: 1 (grey), 3 (RGB), 4 (RGBA)")
        if self.quality not in ("exact", "fast"):
            raise InputError(f'quality is {self.quality!r}; allowed: "exact", "fast"')

    @property
    def digest(self) -> bytes:
        """16 bytes that differ when any setting does."""
        return hashlib.blake2b(json.dumps(asdict(self), sort_keys=True).encode(), digest_size=16).digest()

    def target(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) that an image of this size is kept at."""
        short = min(height, width)
        if self.size is None or short <= self.size:
            return height, width
        return max(1, round(height * self.size / short)), max(1, round(width * self.size / short))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> CacheSettings:
        try:
            return cls(**found)
        except (TypeError, InputError) as error:
            raise CacheError(f"settings {dict(found)!r} are not of this version of fulltilt ({error})") from None

    def differences(self, other: CacheSettings) -> str:
        """What is not the same, in words: `size 256 instead of 224`."""
        mine, others = asdict(self), asdict(other)
        return ", ".join(
            f"{name} {mine[name]} instead of {others[name]}" for name in mine if mine[name] != others[name]
        )
