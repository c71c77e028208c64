"""Any training script, unmodified: observe it, try settings upon it, verify that it trains as before, run it.

command ─► a fresh process each: observe / replay / loader alone ─► observations ─► (diagnose) findings
findings ─► candidates ─► trials ─► verified ─► plan ─► the script in full, with the plan

command.py   the user's own command                    job.py         what its processes are asked to do
observe.py   runs it and sees what it does             around.py      … on the machine meanwhile
run.py       … to its end, with a plan                 ending.py      ends it with all that it started
site/        where its Pythons begin, without an edit  untouched.py   whether its folder is as it was
watch/       in its processes: what it does            apply/         in its processes: what is done otherwise
shield/      its files stay as they are                search/        from a diagnosis to a plan
settings.py  what can be set from outside              patching.py, imports.py  functions put in others' places
"""
