"""Whole trainings to begin with: generated data, model, metric, and two configurations, *before* and *after*.

*before* is the loop as it is usually written (`plain`), with the settings that slow it down; *after* is `fulltilt
train`. Both read the same files and train the same model with the same loss.
"""
