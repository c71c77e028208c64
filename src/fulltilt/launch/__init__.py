"""Any training script, unmodified: observe it, try settings upon it, verify that it trains as before, run it.

command ─► a fresh process each: observe / replay / loader alone ─► observations ─► (diagnose) findings
findings ─► candidates ─► trials ─► verified ─► plan ─► the script in full, with the plan
"""
