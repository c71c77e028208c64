"""Keeps the user's files as they are while a script is tried.

shield.py  what is written, renamed or removed goes elsewhere: overlay.py is where, natives.py what Python does not open
"""
