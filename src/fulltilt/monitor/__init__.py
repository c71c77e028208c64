"""Recording → figures → verdict; and the live view of them.

watch ──► samples ─┬─► summary (Tally) ──► verdict ──► text, JSON, the HTML report
                   ├─► recording (and back)
                   ├─► frame, live: the terminal
                   └─► prometheus
"""
