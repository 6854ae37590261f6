"""Shorten long results that the model has read back from files."""
