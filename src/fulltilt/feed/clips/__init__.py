"""Clips of videos: which frames, who decodes them, how they are put together.

clips.py      clips as a source                        clip_feed.py    the feed of them, where a GPU decodes, too
entries.py    which videos and segments, labels        side.py         its share of them
times.py      seconds of a table to frames             batch.py        batches made in two places
knowledge.py  what is known of videos, for all workers sharing.py      workers and GPU, by the loop's rate
splits.py     decoders, and threads of each            open_videos.py  videos kept open
"""
