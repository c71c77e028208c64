"""Finding actions in untrimmed videos: what happens, from when to when.

data.py      videos, generated, with their segments in a CSV      drawing.py   what is to be seen in them
model.py     frozen backbone, adapters, heads for every frame     loss.py      what it is trained for
segments.py  from frames to segments and back                     metric.py    segment mAP at tIoU thresholds
"""
