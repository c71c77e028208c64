"""Samples → batches on the device, ahead of the step.

order.py      which samples, in which order            base.py         what every feed is
files.py      image files as a source                  file_feed.py    the feed of them
  catalog.py  their paths, shared with the decoders      reader.py     a ring of slots, kept full
  slot.py     the memory of one batch                    pool.py       the decoder processes
  wire.py     what is said between them                  decoder.py    one of them (no torch, no shared lock)
  stage.py    one copy and one augmentation pass       tensor_feed.py  the feed of tensors in memory
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fulltilt.feed.base import Feed as Feed
    from fulltilt.feed.build import feed as feed
    from fulltilt.feed.files import ImageFiles as ImageFiles

__all__ = ["Feed", "ImageFiles", "feed"]

# Decoder processes import this package too, and must not load torch: names are imported on first use.
_HOMES = {"Feed": "base", "ImageFiles": "files", "feed": "build"}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'fulltilt.feed' has no attribute {name!r}; it has {', '.join(__all__)}")
    from importlib import import_module

    return getattr(import_module(f"fulltilt.feed.{home}"), name)
