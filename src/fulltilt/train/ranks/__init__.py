"""Several processes that train one model (torchrun).

group.py     the process group, started and closed     parallel.py  a model for each (DDP), or a part (fsdp.py)
together.py  what loops agree on                       ranks.py     what is said of a step
shared.py    a DataLoader's samples, each rank its own
"""
