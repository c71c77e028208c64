"""Samples → batches on the device, ahead of the step.

build.py      `feed`: the feed that fits a source      base.py         what every feed is
wishes.py     what was asked for, checked              order.py        which samples, in which order
listing.py    folders and tables that name files       structure.py    batches of any shape; augmentation of them
images/       the feed of image files                  clips/          clips of videos
datasets/     data sets and DataLoaders of others      tensor_feed.py  the feed of tensors in memory
mover.py      an iterator's batches to the device      in_flight.py    how far the loop may run ahead of the device
tuner.py      the number of workers, by the loop's rate
share.py      the GPU's share of decoding, likewise    step_clock.py   how long the step itself takes
balance.py    both, when the load changes              busy.py         cores in use
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fulltilt.lazy import on_first_use

if TYPE_CHECKING:
    from fulltilt.feed.base import Feed as Feed
    from fulltilt.feed.build import feed as feed
    from fulltilt.feed.clips.clips import VideoClips as VideoClips
    from fulltilt.feed.images.files import ImageFiles as ImageFiles

__all__ = ["Feed", "ImageFiles", "VideoClips", "feed"]

# Decoder processes import this package too, and must not load torch: names are imported on first use.
_HOMES = {"Feed": "base", "ImageFiles": "images.files", "VideoClips": "clips.clips", "feed": "build"}

__getattr__ = on_first_use(__name__, _HOMES)
