"""What a run says of itself; rank 0 alone speaks.

report.py  lines.py  progress.py (the bar)  logs.py (JSON lines, TensorBoard)
history.py    what came of it                          monitored.py  the figure that says which epoch was the best
"""
