"""Decoded pixels kept on disk, in files that are mapped instead of read. No torch: decoder processes import this.

settings  what was done to the pixels            build    `build`: all of it, resumable, one builder at a time
keys      what a file is: name, stamp, content   predict  how large it will be, before anything is written
shard     the files' layout                      crew     the processes of a build
manifest  the folder: settings, lock, `clear`    worker   one of them
store     `Cache`: find and read                 writer   appends to a shard; what is half written is cut off
verify    every checksum, every source again     make     a file to the pixels that are kept
policy    `decide`: does keeping anything pay?   info     what is in it, in figures
"""

from __future__ import annotations

from fulltilt.cache.keys import Key
from fulltilt.cache.settings import CacheSettings
from fulltilt.cache.store import Cache, Entry

__all__ = ["Cache", "CacheSettings", "Entry", "Key"]
