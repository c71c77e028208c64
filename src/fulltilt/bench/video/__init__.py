"""How fast frames and clips come. Behind `fulltilt bench video`.

material.py  videos to decode, made here
rates.py     frames per second of decoders side by side: the CPU's, the GPU's, both at once
opencv.py    the CPU's rate by another reader, where it is there
clips.py     random clips through the feed, against DataLoaders whose items open and decode videos themselves
contest.py   the ways in which they are made, one after another
training.py  a model that is trained on clips, from a cache and from files, against its limit
figures.py   results, targets, JSON: no effects
table.py     what is shown at the end
run.py       all of it, in order
"""
