"""From a diagnosis to a plan. Policy, but for tune.py and judge.py, who have runs made and files kept.

tune.py        in this order: observe, limits, diagnose, try, verify
candidates.py  what to try                             search.py   what to keep
rate.py        how fast, and how sure                  pairs.py    trials beside each other
judge.py       runs that are compared                  verify.py   losses, before and after (verify_semantic.py)
budget.py      what the time is spent on               plan.py     what was found, as TOML; edits.py by hand
lines.py       what is said meanwhile                  redrawn.py  random draws that are others in the run
"""
