"""How fast augmentation is, ours and its peers'. Behind `fulltilt bench augment`.

task.py      what everybody is asked to do            timing.py    clocks: the GPU's, the wall's, the host's
cases.py     ours: inputs, module, targets            check.py     that what is timed is right
peers.py     the others, on the same task             compiled.py  those that torch.compile first, apart
loader.py    the CPU's way: a DataLoader              figures.py   results, targets, JSON: no effects
run.py       all of it, in order                      table.py     what is shown at the end
"""
