"""A folder that stands on PYTHONPATH while a command is watched; `sitecustomize.py` is what Python looks for in it."""
