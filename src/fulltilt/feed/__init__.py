"""Samples → batches on the device, ahead of the step.

build.py      `feed`: the feed that fits a source      base.py         what every feed is
wishes.py     what was asked for, checked              order.py        which samples, in which order
listing.py    folders and tables that name files
files.py      image files as a source                  file_feed.py    the feed of them
  catalog.py  their paths, shared with the decoders      reader.py     a ring of slots, kept full
  slot.py     the memory of one batch                    pool.py       the decoder processes
  wire.py     what is said between them                  decoder.py    one of them (no torch, no shared lock)
  stage.py    one copy and one augmentation pass         source.py     a file's bytes; were they in memory?
  gpu_side.py the GPU's share of decoding                tally.py      what the decoders have done, counted
  share.py    … how much of it, by the loop's rate       stages.py     … in rates, and who is slowest
  kept.py     samples kept in shared memory              step_clock.py how long the step itself takes
  caching.py  what is kept: decided, then done           builder.py    a cache on disk, built beside training
  features.py numbers that go with a file
  balance.py  decoders and GPU, when the load changes    in_flight.py  how far the loop may run ahead of the device
tensor_feed.py  the feed of tensors in memory
dataset_feed.py  the feed of a map-style data set      loader_feed.py  the feed of a DataLoader
  prepare.py  a look at it and the machine, then …       mover.py      an iterator's batches to the device, ahead
  probing.py  … what a sample costs, fit for threads?    structure.py  batches of any shape; augmentation of them
  hosting.py  … who makes batches, how many, how far ahead
  crew.py     the workers, and who steers their number   tuner.py      the number of workers, by the loop's rate
  legs.py     numbers that change on one stream          busy.py       cores in use
  leg.py      one number of processes or threads         parcel.py     batches handed over without /dev/shm
  shelf.py    the data set as a worker sees it
clips.py      clips of videos as a source              clip_feed.py    the feed of them, where a GPU decodes, too
  clip_entries.py  which videos and segments, labels     clip_side.py  its share of them
  open_videos.py   videos kept open                      clip_batch.py batches made in two places
  clip_knowledge.py what is known of them, for all workers
  clip_times.py    seconds of a table to frames
  splits.py   decoders, and threads of each              sharing.py    workers and GPU, by the loop's rate
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fulltilt.feed.base import Feed as Feed
    from fulltilt.feed.build import feed as feed
    from fulltilt.feed.clips import VideoClips as VideoClips
    from fulltilt.feed.files import ImageFiles as ImageFiles

__all__ = ["Feed", "ImageFiles", "VideoClips", "feed"]

# Decoder processes import this package too, and must not load torch: names are imported on first use.
_HOMES = {"Feed": "base", "ImageFiles": "files", "VideoClips": "clips", "feed": "build"}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'fulltilt.feed' has no attribute {name!r}; it has {', '.join(__all__)}")
    from importlib import import_module

    return getattr(import_module(f"fulltilt.feed.{home}"), name)
