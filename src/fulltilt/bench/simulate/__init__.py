"""Many GPUs from one: what saturates first, from rates that were measured. Behind `fulltilt bench simulate`.

model.py   stations and their capacities: pure arithmetic     rates.py   what was measured, and in which committed case
scenes.py  the fleets that the page shows                     page.py    docs/scaling.md: tables and chart
"""
