"""Stages, a folder for each feature: `stage.py` has settings and I/O, the other modules decide.

No feature imports another one. What several of them need is in `reading`, if it only reads a
conversation, and otherwise in a module here.
"""
