"""Videos: exactly the frames that were asked for, decoding only what they need.

index     which packet shows which frame, and from which key frame it can be reached: pure
entry     whether decoding can really begin at a packet flagged as a key frame: pure
container the file: its packets, and pictures from a place in it on (FFmpeg, through PyAV)
convert   pictures to RGB in the size that is wanted
straight  and without a copy, where it is their own
reader    `open_video`: frames by their numbers, in any order
device    the same with frames on a GPU
nvdec     its video engines (PyNvVideoCodec)
annexb    packets as these take them: pure
planes    their pictures, copied together
limits    what they decode, as the driver says
colour    NV12 to RGB of any size, as the CPU's path gives it
forks     files that are open when a process is forked
waiting   threads that wait for the GPU without a core
priority  processes that leave the trainer its cores
"""

from __future__ import annotations

from fulltilt.decode.video.reader import Video, open_video

__all__ = ["Video", "open_video"]
