"""How fast the feed is, alone and under training, against the limit and its peers. Behind `fulltilt bench feed`.

scale.py     how much of everything, by machine     material.py  photos and masks, made for the run, removed after it
models.py    what is trained, and one step of it    measure.py   rates, waiting, CPU time; cores taken away
loader.py    the peer: a DataLoader with Pillow     limit.py     cases against the limit, measured around each
ladder.py    decoders, with no training             training.py  ResNet-50 from files
unet.py      images with masks                      windows.py   samples in memory
grid.py      automatic settings, every setting
figures.py   results, targets, JSON: no effects     table.py     what is shown at the end
run.py       all of it, in order
"""
