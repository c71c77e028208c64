"""Keeps the user's files as they are while a script is tried.

shield.py   what is written, renamed or removed goes elsewhere     overlay.py  where
natives.py  … by libraries that open their files themselves        paths.py    which paths
"""
