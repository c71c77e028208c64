"""Image files: decoder processes fill a ring of slots; one copy and one pass take a slot to the device.

files.py     image files as a source                   file_feed.py  the feed of them
catalog.py   their paths, shared with the decoders     reader.py     a ring of slots, kept full
slot.py      the memory of one batch                   pool.py       the decoder processes
wire.py      what is said between them                 decoder.py    one of them (no torch, no shared lock)
source.py    a file's bytes; were they in memory?      stage.py      one copy and one augmentation pass
gpu_side.py  the GPU's share of decoding               features.py   numbers that go with a file
tally.py     what the decoders have done, counted      stages.py     … in rates, and who is slowest
kept.py      samples kept in shared memory             caching.py    what is kept: decided, then done
builder.py   a cache on disk, built beside training
"""
