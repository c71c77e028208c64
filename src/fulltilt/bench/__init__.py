"""Every figure that we print, measured by a script: a folder or a module for each `fulltilt bench NAME`. Beside them:

target.py    what is wanted of a figure            results.py  results, and what an earlier run has left
ground.py    the machine, the date                 tables.py   tables, on the terminal and in documents
running.py   processes that are measured           loads.py    known loads for them; observed.py: a known loop
photos.py    pictures to decode                    bars.py, curves.py  charts
decoding.py  ways to decode a JPEG, side by side (no command: `python -m`)
"""
