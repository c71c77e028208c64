"""Several processes that train one model (torchrun).

group.py      the process group, started and closed    parallel.py  a model for each (DDP), or a part (fsdp.py)
own_group.py  groups for messages beside the step's    ranks.py     what is said of a step
together.py   what loops agree on                      shared.py    a DataLoader's samples, each rank its own
"""
