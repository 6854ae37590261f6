"""Stages, a folder for each feature: `stage.py` has settings and I/O, the other modules decide."""
