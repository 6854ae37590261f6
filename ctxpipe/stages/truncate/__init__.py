"""Shorten the middle of a history without a model."""
