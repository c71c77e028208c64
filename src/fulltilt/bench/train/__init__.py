"""How close the step that chooses for itself comes to one optimised by hand. Behind `fulltilt bench train`.

workloads.py  what is trained: model, batch, and the ways in which a person would run it
contest.py    contestants measured in turns, so that a GPU that gets warm slows all of them
figures.py    results, targets, JSON: no effects
table.py      what is shown at the end
run.py        all of it, in order
"""
