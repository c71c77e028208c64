"""Throughput against cores, batch size and image size, as curves. Behind `fulltilt bench scaling`.

run.py      points, measured with the feed's own benchmark parts     figures.py  results, JSON, panels: no effects
"""
