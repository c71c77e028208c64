"""What CPU work beside the step costs the step, and how fast tasks are. Behind `fulltilt bench assist`.

metrics.py  a U-Net trained without metrics, with metrics beside the step, and with metrics in the loop
tasks.py    trivial tasks against concurrent.futures, and a million of them
balance.py  half of the cores taken away from a feed, and given back; phases.py: what came of it
figures.py  results, targets, JSON: no effects
table.py    what is shown at the end
run.py      all of it, in order
"""
