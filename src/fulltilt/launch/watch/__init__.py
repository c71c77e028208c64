"""Inside the script's own processes: what its loop, its loaders and their workers do.

inside.py     begins with the interpreter, ends with   watch.py      what one process knows
              what was seen, written                   seen.py       … as an Observation
hooks.py      forward, backward, optimizer, …          places.py     the user's line
loaders.py    the wait for a batch, epochs             transfers.py  copies, waits that a method says
workers.py    where samples are made                   waits.py      … and those that none says
stages.py     reading, decoding, each transform        transforms.py which there are
replay.py     the step's limit                         alone.py      the loader's
again.py      … behind the last step that counts       hush.py       what is printed meanwhile is not shown
launches.py   kernels of one step                      batches.py    batches of any structure
dozing.py     between bursts, where steps are short    traced.py     whether the compiler was at work
agreement.py  ranks stop together                      draws.py      draws that depend on the sample alone
held.py       what workers can't share                 changed.py    what they would not see changed
traces.py     the user's tracebacks, without us
"""
